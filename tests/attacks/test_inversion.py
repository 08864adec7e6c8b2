"""Model-inversion attacks: their output, the access they use, and that they recover what the student learnt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor
from torch.nn import functional

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams, seeded
from bench.core.types import Access, Facts, Knowledge, PublicData, Reconstructions, Released
from bench.interface.registry import ATTACKS
from bench.interface.target_model import Target
from bench.models.build import build
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.loop import FitSettings, accuracy, fit

NAMES = ("brep-mi", "data-free", "gmi", "inversion-network", "mi-face", "plg-mi")
CLASSES = 4


@dataclasses.dataclass
class World:
    """Blurred random shapes, one for each class, and noisy bright copies of them."""

    facts: Facts
    prototypes: Tensor
    images: Tensor
    labels: Tensor
    auxiliary: Tensor

    def student(self, *, trained: bool) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(3)
        with seeded(generator):
            net = build("small_cnn", self.facts.classes, 1, self.facts.shape[1])
        if trained:
            fit(net, self.images, self.labels, FitSettings(steps=150, batch_size=64), generator)
        return net.eval()


def world(classes: int = CLASSES, size: int = 16) -> World:
    from bench.attacks.shared.inversion import blurred

    generator = torch.Generator().manual_seed(1)
    rough = blurred(torch.randn(classes, 1, size, size, generator=generator), 1.5)
    prototypes = (rough > rough.flatten(1).quantile(0.75, dim=1)[:, None, None, None]).float()

    def draw(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % classes
        noise = 0.15 * torch.randn(count, 1, size, size, generator=generator)
        bright = 0.6 + 0.4 * torch.rand(count, 1, 1, 1, generator=generator)
        return ((prototypes[labels] * bright + noise).clamp(0, 1) * 255).round().to(torch.uint8), labels

    images, labels = draw(400)
    facts = Facts("shapes", 400, 300, 0, classes, (1, size, size), True)
    return World(facts, prototypes, images, labels, draw(300)[0])


@pytest.mark.parametrize("sigma", [0.5, 3.0, 8.0])
def test_the_blur_is_a_gaussian_that_extends_the_border(sigma: float) -> None:
    from bench.attacks.shared.inversion import blurred

    images = torch.rand(2, 3, 20, 12, generator=torch.Generator().manual_seed(0))
    usual = gaussian_filter(
        images.numpy(), (0, 0, sigma, sigma), mode="nearest", radius=(0, 0, *[round(3 * sigma + 0.4)] * 2)
    )
    np.testing.assert_allclose(blurred(images, sigma), usual, atol=1e-6)


@pytest.fixture(scope="module")
def shapes() -> World:
    return world()


@pytest.fixture(scope="module")
def trained(shapes: World) -> torch.nn.Module:
    net = shapes.student(trained=True)
    assert accuracy(net, shapes.images, shapes.labels) > 0.99
    return net


@pytest.fixture(scope="module")
def shared() -> Cache:
    """One GAN for all attacks that use one."""
    return Cache(None, {})


def attack(
    name: str, scene: World, student: torch.nn.Module, *, preset: str = "tiny", access: Access | None = None,
    cache: Cache | None = None, seed: int = 0, prefix: str = "", auxiliary: Tensor | None = None,
    observed: Tensor | None = None, **changes: Any,
) -> tuple[Reconstructions, Target]:  # fmt: skip
    kind = ATTACKS.get(name)
    config, _ = build_config(kind, Preset(preset), scene.facts, changes)
    target = Target(Released(student, "small_cnn", {}), scene.facts, access or kind.access)
    context = Context(torch.device("cpu"), Streams(seed, prefix), cache or Cache(None, {}), Progress())
    known = None
    if kind.knowledge == Knowledge.AUXILIARY:
        known = PublicData(scene.auxiliary if auxiliary is None else auxiliary, "shapes")
    return kind(config, scene.facts).run(target, known, observed, context), target


def check(made: Reconstructions, scene: World, per_class: int) -> None:
    count = per_class * scene.facts.classes
    assert made.images.shape == (count, *scene.facts.shape)
    assert made.images.dtype == torch.float32
    assert made.images.device.type == "cpu"
    assert not made.images.requires_grad
    assert 0 <= float(made.images.min()) <= float(made.images.max()) <= 1
    assert made.labels.dtype == torch.int64
    assert made.labels.tolist() == [label for label in range(scene.facts.classes) for _ in range(per_class)]
    if made.reached is not None:
        assert made.reached.shape == (count,)
        assert made.reached.dtype == torch.bool


def resemblance(images: Tensor, labels: Tensor, prototypes: Tensor) -> tuple[float, float]:
    """Return how often the most correlated prototype is the right one, and by how much it leads the wrong ones."""

    def centred(values: Tensor) -> Tensor:
        flat = values.flatten(1)
        return functional.normalize(flat - flat.mean(1, keepdim=True), dim=1)

    table = centred(images) @ centred(prototypes).T
    right = table.gather(1, labels[:, None]).squeeze(1)
    wrong = (table.sum(1) - right) / (len(prototypes) - 1)
    return float((table.argmax(1) == labels).float().mean()), float((right - wrong).mean())


def test_names() -> None:
    assert set(NAMES) <= set(ATTACKS.names())
    for name in NAMES:
        kind = ATTACKS.get(name)
        assert kind.citation
        assert all(field.metadata["source"] for field in dataclasses.fields(kind.Config))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * name.endswith("mi")) for name in NAMES])
def test_shapes_and_determinism(name: str, shapes: World, trained: torch.nn.Module) -> None:
    first, target = attack(name, shapes, trained)
    again, _ = attack(name, shapes, trained)
    other, _ = attack(name, shapes, trained, seed=1)
    check(first, shapes, 2)
    assert target.queries > 0
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.images, other.images)
    assert not first.images.isnan().any()


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NAMES)
def test_two_classes_of_8x8(name: str) -> None:
    scene = world(classes=2, size=8)
    check(attack(name, scene, scene.student(trained=False))[0], scene, 2)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["gmi", "inversion-network", "plg-mi", "data-free", "mi-face"])
def test_odd_sizes_and_colour(name: str) -> None:
    facts = Facts("noise", 20, 20, 0, 3, (3, 13, 10), True)
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(40, *facts.shape, generator=generator)
    scene = World(facts, noise[:3], noise, torch.arange(40) % 3, noise)
    with seeded(generator):
        student = build("small_cnn", 3, 3, (13, 10))
    check(attack(name, scene, student)[0], scene, 2)


SURE: dict[str, dict[str, Any]] = {
    "mi-face": {"preset": "quick", "steps": 100, "images_per_class": 3, "shift": 1},
    "inversion-network": {"epochs": 15.0, "images_per_class": 3},
    "data-free": {"steps": 100, "images_per_class": 6, "pool": 200, "units": 16, "batch_size": 64, "shift": 1},
    "gmi": {"gan_steps": 200, "gan_critic_steps": 2, "steps": 60, "images_per_class": 3},
    "plg-mi": {"gan_steps": 100, "top": 40, "steps": 40, "images_per_class": 3, "flips": False},
    "brep-mi": {"gan_steps": 200, "gan_critic_steps": 2, "steps": 10, "images_per_class": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_images_show_what_was_learnt(name: str, shapes: World, trained: torch.nn.Module, shared: Cache) -> None:
    made, _ = attack(name, shapes, trained, cache=shared, **SURE[name])
    right, lead = resemblance(made.images, made.labels, shapes.prototypes)
    blank, _ = attack(name, shapes, shapes.student(trained=False), cache=shared, **SURE[name])
    right_blank, lead_blank = resemblance(blank.images, blank.labels, shapes.prototypes)
    assert right >= 0.7
    assert lead > 0.3
    assert right_blank <= 0.6
    assert lead_blank < 0.5 * lead


def test_observed_answers_are_inverted(shapes: World, trained: torch.nn.Module) -> None:
    answers = Target(Released(trained, "", {}), shapes.facts, Access.CONFIDENCES).confidences(shapes.images[:12])
    made, _ = attack("inversion-network", shapes, trained, observed=answers, epochs=15.0, truncation=2, rounding=0.01)
    assert made.observed is not None
    assert made.observed.shape == (12, *shapes.facts.shape)
    assert resemblance(made.observed, shapes.labels[:12], shapes.prototypes)[0] >= 0.9


def test_truncated_answers_keep_the_largest() -> None:
    from bench.attacks.inversion_network import encode

    codes = encode(torch.tensor([[0.7, 0.2, 0.1, 0.0]]), 2)
    assert (codes > 0).tolist() == [[True, True, False, False]]
    assert torch.equal(encode(torch.eye(3), 0), encode(torch.eye(3), 3))
    np.testing.assert_allclose(codes[0, 0], (np.log(0.7) + 50) / 50, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_access_is_enough_and_needed(name: str, shapes: World, trained: torch.nn.Module) -> None:
    kind = ATTACKS.get(name)
    assert kind.access == {"brep-mi": Access.LABELS, "inversion-network": Access.CONFIDENCES}.get(name, Access.WEIGHTS)
    if kind.access == Access.LABELS:  # a target refuses anything beyond its access: see bench.interface.target_model
        attack(name, shapes, trained, access=Access.LABELS)
        return
    with pytest.raises(BenchError, match="cannot use"):
        attack(name, shapes, trained, access=Access.LABELS)


@pytest.mark.slow
def test_numeric_gradient_needs_confidences_only(shapes: World, trained: torch.nn.Module) -> None:
    changes: dict[str, Any] = {"gradient": "numeric", "views": 1, "images_per_class": 1, "restarts": 1, "steps": 30}
    changes |= {"directions": 20, "access": Access.CONFIDENCES, "noise": 0.0, "shift": 0}
    changes |= {"prior": "absolute", "smoothness": 1e-3, "darkness": 0.0}
    made, target = attack("mi-face", shapes, trained, **changes)
    assert target.queries == CLASSES * (30 * (2 * 20 + 1) + 1)
    assert trained(made.images).argmax(1).tolist() == made.labels.tolist()
    lead = resemblance(made.images, made.labels, shapes.prototypes)[1]
    assert lead > 0.4
    coarse, _ = attack("mi-face", shapes, trained, rounding=0.1, **changes)
    # Rounded answers do not change under small steps, so this variant learns little from them.
    assert resemblance(coarse.images, coarse.labels, shapes.prototypes)[1] < lead - 0.1


def test_mi_face_stops_where_the_paper_says(shapes: World, trained: torch.nn.Module) -> None:
    plain: dict[str, Any] = {"views": 1, "shift": 0, "noise": 0.0, "restarts": 1, "images_per_class": 1, "keep": "best"}
    plain |= {"loss": "cross-entropy", "prior": "absolute", "smoothness": 0.0, "darkness": 0.0}
    made, target = attack("mi-face", shapes, trained, steps=400, confidence=0.9, **plain)
    assert target.queries < CLASSES * 400
    confidences = functional.softmax(trained(made.images), 1).gather(1, made.labels[:, None])
    assert float(confidences.detach().min()) >= 0.9
    _, patient = attack("mi-face", shapes, trained, steps=400, patience=3, confidence=1.0, rate=1e-9, **plain)
    assert patient.queries < CLASSES * 400


def test_mi_face_compares_no_costs_of_different_units() -> None:
    kind, facts = ATTACKS.get("mi-face"), Facts("shapes", 400, 300, 0, CLASSES, (1, 8, 8))
    for preset, overrides in (
        (Preset.QUICK, {"keep": "best"}), (Preset.QUICK, {"patience": 5}), (Preset.PAPER, {"prior": "relative"}),
    ):  # fmt: skip
        with pytest.raises(BenchError, match="keep=last and patience=0"):
            build_config(kind, preset, facts, overrides)
    assert build_config(kind, Preset.QUICK, facts, {"keep": "best", "prior": "absolute"})[0].keep == "best"
    for shape in ((1, 8, 8), (3, 32, 32), (3, 64, 64)):
        for preset in Preset:
            made = build_config(kind, preset, dataclasses.replace(facts, shape=shape))[0]
            assert made.prior == "absolute" or (made.keep, made.patience) == ("last", 0)


@pytest.mark.parametrize("name", ["gmi", "brep-mi", "plg-mi", "inversion-network"])
def test_auxiliary_images_are_checked(name: str, shapes: World, trained: torch.nn.Module) -> None:
    kind = ATTACKS.get(name)
    target = Target(Released(trained, "", {}), shapes.facts, kind.access)
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    config = kind.Config(**kind.presets(shapes.facts)["tiny"])
    with pytest.raises(BenchError, match="auxiliary images and was given 0"):
        kind(config, shapes.facts).run(target, None, None, context)
    with pytest.raises(BenchError, match="of the target's shape"):
        attack(name, shapes, trained, auxiliary=shapes.auxiliary[:, :, :8])


@pytest.mark.slow
def test_targets_share_a_gan(shapes: World, trained: torch.nn.Module, tmp_path: Path) -> None:
    cache = Cache(tmp_path, {})
    first, _ = attack("gmi", shapes, trained, cache=cache, prefix="one/")
    assert len(cache.made) == 1
    attack("gmi", shapes, shapes.student(trained=False), cache=cache, prefix="two/")
    attack("brep-mi", shapes, trained, cache=cache, prefix="three/")
    assert (len(cache.made), len(cache.found)) == (1, 2)
    again, _ = attack("gmi", shapes, trained, cache=cache, prefix="one/")
    assert torch.equal(first.images, again.images)
    attack("gmi", shapes, trained, cache=cache, auxiliary=shapes.auxiliary[:-1])
    attack("gmi", shapes, trained, cache=cache, seed=1)
    assert len(cache.made) == 3


class OneClass(torch.nn.Module):
    """Predicts class 0 for everything."""

    def forward(self, images: Tensor) -> Tensor:
        return functional.one_hot(torch.zeros(len(images), dtype=torch.int64), CLASSES).float()


def test_classes_out_of_reach_are_failures(shapes: World) -> None:
    made, _ = attack("brep-mi", shapes, OneClass())
    check(made, shapes, 2)
    assert made.reached is not None
    assert made.reached.tolist() == [True, True] + [False] * 6
    assert float(made.images[2:].max()) == 0.0
    network, _ = attack("inversion-network", shapes, OneClass())
    check(network, shapes, 2)


@pytest.mark.parametrize(("name", "field"), [("mi-face", "restarts"), ("gmi", "gan_width"), ("plg-mi", "top")])
def test_settings_are_checked(name: str, field: str, shapes: World, trained: torch.nn.Module) -> None:
    with pytest.raises(BenchError, match=f"{field} must be at least 1"):
        attack(name, shapes, trained, **{field: 0})
