"""A backbone that saw no data: its images, its training, and the weights of this package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from bench.core.types import Facts, PublicKind
from bench.data import random_scenes
from bench.data.random_scenes import MIXTURE, Scenes
from bench.interface.registry import METHODS
from bench.models import noise_wrn as nets
from bench.models.noise_wrn import NoiseWRN, Whitening
from bench.models.pretrained import find_weights, image_size_problem, load_backbone
from bench.models.weight_packages import PACKAGES, unpacked
from bench.models.weight_store import read_state
from bench.training import noise_pretraining as pretraining

FACTS = Facts("colour", 60_000, 9_000, 0, 10, (3, 32, 32), public_benchmark=True)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_scenes, "GROUP", 4)


def scenes(seed: int, count: int = 40) -> torch.Tensor:
    return torch.cat(list(Scenes(CPU, seed, side=32).batches(count)))


def test_scenes_follow_their_seed_and_mixture() -> None:
    found = scenes(0)
    assert found.dtype is torch.uint8
    assert found.shape[1:] == (3, 32, 32)
    assert 40 <= len(found) <= 40 + 4 * len(MIXTURE)
    assert torch.equal(found, scenes(0))
    assert not torch.equal(found, scenes(1))
    assert all(len(image.unique()) > 8 for image in found)


def test_views_keep_the_image_and_change_its_look() -> None:
    draws, images = torch.Generator().manual_seed(0), scenes(0, 12)
    first, second = pretraining.view(images, draws), pretraining.view(images, draws)
    assert first.shape == (len(images), 3, 32, 32)
    assert float(first.abs().max()) <= 2
    assert not torch.equal(first, second)
    # Grey stays grey under all changes of colour.
    grey = images.float().mean(1, keepdim=True).round().to(torch.uint8).expand(-1, 3, -1, -1)
    look = pretraining.view(grey, draws)
    assert float((look - look.mean(1, keepdim=True)).abs().max()) < 1e-5


def test_the_loss_wants_near_views_and_spread_images() -> None:
    spread = torch.eye(8)
    together = torch.nn.functional.normalize(torch.ones(8, 8), dim=1)
    assert float(pretraining.loss_of(spread, spread)) == pytest.approx(-4)
    assert float(pretraining.loss_of(together, together)) == pytest.approx(0, abs=1e-6)
    assert float(pretraining.loss_of(spread, spread.roll(1, 0))) == pytest.approx(-2)


def test_whitening_makes_every_direction_of_each_part_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nets, "CHANNELS", 6)
    draws = torch.Generator().manual_seed(0)
    quarters = torch.einsum("cd,ndq->ncq", torch.randn(6, 6, generator=draws), torch.randn(500, 6, 4, generator=draws))
    white = Whitening()
    white.fit(quarters + 3, 1e-9)
    found = white(quarters + 3)
    assert found.shape == (500, 24)
    for part in found.split(6, 1):
        assert float((part.T.cov() - torch.eye(6)).abs().max()) < 1e-3
        assert float(part.mean(0).abs().max()) < 1e-3


@pytest.mark.slow
def test_pretraining_lowers_the_loss_and_its_file_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = pretraining.whiten
    monkeypatch.setattr(pretraining, "whiten", lambda net, device, seed: whole(net, device, seed, images=16))
    file, again = tmp_path / "net.safetensors", tmp_path / "again.safetensors"
    common = ["--images", "16", "--batch", "8", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["pretrain", str(file), "--minutes", "0.03", *common])
    pretraining.main()
    assert "steps of 8 images" in capsys.readouterr().err
    net = NoiseWRN()
    net.load_state_dict(unpacked(read_state(file)))
    monkeypatch.setattr(sys, "argv", ["pretrain", str(again), "--pretrained", str(file), *common])
    pretraining.main()
    # Rounded weights are rounded to themselves, and the statistics are those of the same seed.
    first, second = read_state(file), read_state(again)
    assert all(torch.equal(first[name], second[name]) for name in first if first[name].dtype is torch.int8)


def test_the_weights_of_this_package_tell_scenes_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    found = find_weights("noise_wrn")
    assert (found.origin, found.sha256) == ("package", PACKAGES["noise_wrn"].sha256)
    assert not image_size_problem("noise_wrn", 32)
    net = load_backbone(found)
    images = scenes(7, 60).float() / 255
    features = net(pretraining.normalised(images))
    assert features.shape == (len(images), 1536)
    # Two crops of a scene are nearer than crops of two scenes: what the net was trained for.
    left, right = (
        torch.nn.functional.normalize(net(pretraining.normalised(images[:, :, side : 24 + side, 4:28])), dim=1)
        for side in (0, 8)
    )
    nearest = (left @ right.T).argmax(1)
    assert float((nearest == torch.arange(len(images))).float().mean()) > 0.8


@pytest.mark.parametrize(
    ("method", "kinds", "words"),
    [
        ("dp-linear", (PublicKind.NONE,), "none"),
        ("dp-fc", (PublicKind.UNLABELLED,), "unlabelled images of the target's distribution"),
    ],
)
def test_the_backbone_counts_as_no_public_data(method: str, kinds: tuple[PublicKind, ...], words: str) -> None:
    made = METHODS.get(method)
    own = made(made.Config(backbone="noise_wrn", image_size=32), FACTS)
    assert (own.public_kinds(), own.public_words()) == (kinds, words)
    other = made(made.Config(), own.facts)
    assert PublicKind.TRANSFERRED in other.public_kinds()
