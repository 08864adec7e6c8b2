"""What an attack is given: refused before anything is trained, told apart by its key, and drawn from all classes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.attacks.shared.gan import slope_penalty
from bench.cli.attack_jobs import Attacks
from bench.core.config import Preset, Reuse, build_config
from bench.core.options import ONE_CPU, Students
from bench.core.progress import Progress
from bench.core.seeds import Streams, seeded
from bench.core.types import Facts, Knowledge, PublicData, Released
from bench.evaluation.attack import inversion, membership
from bench.evaluation.attack.attack import attack_key
from bench.evaluation.attack.evaluator_nets import recipes, turned
from bench.evaluation.attack.membership import Candidates
from bench.evaluation.attack.workplace import AttackOptions
from bench.evaluation.audit.canary_runs import ShadowRun
from bench.interface.registry import ATTACKS
from bench.interface.target_model import Target
from bench.models.build import build
from bench.results.run_dir import RunDir
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.gan import GanGenerator
from helpers.commands import bench as command
from helpers.data import put_image
from helpers.records import record

FACTS = Facts("shapes", 40, 40, 0, 4, (1, 8, 8), True)


def test_two_views_of_one_store_are_two_kinds_of_auxiliary_data(tmp_path: Path) -> None:
    def key(name: str) -> str:
        described = SimpleNamespace(facts=dataclasses.replace(FACTS, dataset=name), revision="sha256:1")
        source: Any = SimpleNamespace(describe=lambda _: described)
        options = AttackOptions(Preset.TINY, auxiliary=name)
        attacks = Attacks(Students(), "gmi", options, Reuse.DONE, ONE_CPU, quiet=True)
        place = attacks.workplace(RunDir(tmp_path), source, Progress(), ONE_CPU)
        return attack_key(record(), ATTACKS.get("gmi"), None, place.options)

    assert key("att-faces-a") != key("att-faces-b")


@pytest.fixture(scope="module")
def students(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on digits and on images of 6x6 pixels."""
    out = tmp_path_factory.mktemp("students")
    for label in "ab":
        for number in range(30):
            put_image(out / "small" / label / f"{number}.png", 3 * number + 90 * (label == "b"), (6, 6))
    for name in ("digits", f"folder:{out / 'small'}"):
        done = command("run", "-m", "nonprivate", "-d", name, "-p", "tiny", "-o", out / "runs", "--workers", "1")
        assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize(
    ("student", "words", "said"),
    [
        (
            "digits",
            ["-a", "lira"],
            "lira compares each shadow run with at least 4 others, so 2 are too few",
        ),
        ("digits", ["-a", "inversion-network", "--tune", "2"], "inversion-network cannot choose its settings"),
        ("digits", ["-a", "mi-face", "--tune", "2"], "Name one with --auxiliary"),
        ("folder_small", ["-a", "gmi"], "gmi takes images of 8x8 pixels or more, not 6x6"),
        ("folder_small", ["-a", "brep-mi"], "brep-mi takes images of 8x8 pixels or more, not 6x6"),
        ("folder_small", ["-a", "plg-mi"], "plg-mi takes images of 8x8 pixels or more, not 6x6"),
    ],
)
def test_what_cannot_be_attacked_is_refused_before_anything_is_trained(
    students: Path, student: str, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(*_: object, **__: object) -> None:
        raise AssertionError("trained before it was refused")

    monkeypatch.setattr(inversion, "committee_of", trained)
    monkeypatch.setattr(membership, "train_shadow_runs", trained)
    own = ["--data", f"folder:{students / 'small'}"] if student != "digits" else []
    done = command("attack", student, *words, *own, "-p", "tiny", "-o", students / "runs", "--reuse", "none")
    assert done.returncode == 1
    logs = "".join(log.read_text() for log in (students / "runs" / "cache").glob("*.log"))
    assert said in " ".join((done.stdout + done.stderr + logs).split())
    assert "trained before it was refused" not in logs


def test_a_population_holds_all_classes_of_records_that_are_sorted_by_class() -> None:
    labels = torch.arange(4).repeat_interleave(800)
    images = torch.arange(len(labels)).view(-1, 1, 1, 1).expand(-1, 1, 1, 2).contiguous().to(torch.uint8)
    material: Any = SimpleNamespace(test_images=images, test_labels=labels)
    candidates = Candidates(images[:6], labels[:6].numpy(), np.arange(6), np.ones(6, bool), np.full(6, "natural"))
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 4))
    runs = [ShadowRun(index, np.arange(6) % 2 == index, Released(net, "", {}), 1.0, 1.0) for index in range(2)]
    signals = membership.signals_of(runs, candidates, material, 0, torch.device("cpu"))[0]
    counts = np.bincount(signals.population_labels, minlength=4)
    assert counts.sum() == membership.POPULATION
    assert counts.min() > membership.POPULATION / 5


@pytest.mark.parametrize("name", ["plg-mi", "inversion-network", "data-free"])
def test_each_target_has_a_checkpoint_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    original = Context.checkpoint

    def checkpoint(self: Context, kind: str, depends: Any) -> Any:
        asked.append(depends)
        return original(self, kind, depends)

    monkeypatch.setattr(Context, "checkpoint", checkpoint)
    for seed in (0, 1, 0):
        _attack(name, seed)
    assert asked[0] == asked[2] != asked[1]


def test_the_noise_of_brep_mi_stays_in_its_box(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    original = GanGenerator.forward

    def forward(self: GanGenerator, noise: Tensor, *rest: Any) -> Tensor:
        seen.append(float(noise.abs().max()))
        return original(self, noise, *rest)

    monkeypatch.setattr(GanGenerator, "forward", forward)

    class Left(nn.Module):
        """Two of the four classes: is the left half brighter than the right one, or not? So each try moves far."""

        def forward(self, images: Tensor) -> Tensor:
            lead = images[..., :4].mean((1, 2, 3)) - images[..., 4:].mean((1, 2, 3))
            return torch.stack([lead, -lead, *[torch.full_like(lead, -9.0)] * 2], 1)

    _attack("brep-mi", 0, Left(), steps=30, patience=50, radius=6.0, unit_moves=True, inside=0.99)
    assert max(seen) > 3.0, "points around it may lie outside"
    assert seen[-1] <= 1.5, "the images that are returned"


def test_the_penalty_takes_the_slope_on_pixels_between_0_and_1() -> None:
    direction = torch.nn.functional.normalize(torch.rand(64, generator=torch.Generator().manual_seed(0)), dim=0)

    class Slope(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1) @ direction

    real, made = torch.rand(2, 5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    critic: Any = Slope()
    assert float(slope_penalty(critic, real, made, torch.Generator())) < 1e-10


def test_characters_are_never_mirrored_and_others_are() -> None:
    digits = dataclasses.replace(FACTS, dataset="digits")
    assert not any(recipe.augmentation == "turned" for recipe in recipes(digits, 40))
    assert all(recipe.augmentation == "turned" for recipe in recipes(FACTS, 40))
    left = torch.zeros(200, 1, 16, 16)
    left[..., :5] = 1.0
    for mirrored in (True, False):
        views = turned(left, torch.Generator().manual_seed(0), mirrored=mirrored)
        right = (views[..., 8:].mean((1, 2, 3)) > views[..., :8].mean((1, 2, 3))).float().mean()
        assert 0.4 < right < 0.6 if mirrored else right == 0.0
    presets = {name: ATTACKS.get("plg-mi").presets(dataclasses.replace(FACTS, dataset=name)) for name in ("svhn", "x")}
    for preset in ("paper", "quick", "tiny"):
        assert [presets[name][preset]["flips"] for name in presets] == [False, True]


def _attack(name: str, seed: int, net: nn.Module | None = None, **changes: Any) -> None:
    """Run the attack on `net`, by default a random one, at the tiny preset."""
    generator = torch.Generator().manual_seed(seed)
    with seeded(generator):
        student = net or build("small_cnn", 4, 1, (8, 8)).eval()
    images = (torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 255).to(torch.uint8)
    kind = ATTACKS.get(name)
    attack = kind(build_config(kind, Preset.TINY, FACTS, changes)[0], FACTS)
    target = Target(Released(student, "", {}), FACTS, kind.access)
    auxiliary = PublicData(images, "noise") if attack.knows is Knowledge.AUXILIARY else None
    context = Context(torch.device("cpu"), Streams(0, f"{name}/"), Cache(None, {}), Progress())
    attack.run(target, auxiliary, None, context)
