"""The GANs of the ablation: images, determinism, their draws and constraints, and that they learn their data."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from bench.core.errors import BenchError
from bench.training import gan as gans
from bench.training.divergence import NotFiniteError
from bench.training.gan import CONTINUOUS_CODES, RATES, GanGenerator, GanSettings, Kind, train_gan

KINDS: tuple[Kind, ...] = get_args(Kind)


def seed(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def stripes(count: int, channels: int = 1, size: int = 8) -> tuple[Tensor, Tensor]:
    """Two classes: the left or the right half is bright."""
    generator = seed(0)
    labels = torch.randint(0, 2, (count,), generator=generator)
    images = torch.randint(0, 40, (count, channels, size, size), generator=generator)
    half = size // 2
    images[labels == 0, :, :, :half] += 200
    images[labels == 1, :, :, half:] += 200
    return images.to(torch.uint8), labels


def small(kind: Kind, number: int = 1) -> GanGenerator:
    return train_gan(kind, *stripes(20), 2, GanSettings(steps=3, batch_size=8, width=4), seed(number))


def drawn(made: GanGenerator, count: int = 64, number: int = 7) -> Tensor:
    with torch.no_grad():
        return made(made.noise(count, seed(number)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 13, 10)])
def test_images_of_every_size(kind: Kind, shape: tuple[int, int, int]) -> None:
    images = torch.randint(0, 256, (6, *shape), generator=seed(0), dtype=torch.uint8)
    labels = torch.arange(6) % 3
    made = train_gan(kind, images, labels, 3, GanSettings(steps=2, batch_size=4, width=4), seed(1))
    found = drawn(made, 5)
    assert found.shape == (5, *shape)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    assert not made.training
    assert made.noise(5, seed(0)).shape == (5, made.noise_size)


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_one_generator(kind: Kind) -> None:
    state = torch.get_rng_state()
    first = drawn(small(kind))
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    torch.manual_seed(123)
    assert torch.equal(first, drawn(small(kind)))
    assert not torch.equal(first, drawn(small(kind, 2)))
    images, labels = stripes(20)
    settings = GanSettings(steps=3, batch_size=8, width=4)
    assert torch.equal(first, drawn(train_gan(kind, images.float() / 255, labels, 2, settings, seed(1))))


def test_what_each_draws() -> None:
    acgan, wgan, infogan = (small(kind) for kind in KINDS)
    assert (acgan.plain, acgan.noise_size) == (100, 102)
    assert (wgan.plain, wgan.noise_size) == (100, 100)
    assert (infogan.plain, infogan.noise_size) == (62, 62 + 2 + CONTINUOUS_CODES)
    for made in (acgan, infogan):
        noise = made.noise(500, seed(0))
        label = noise[:, made.plain : made.plain + 2]
        assert (label.sum(1) == 1).all()
        assert torch.equal(label.argmax(1), made.labels_of(noise))
        assert 200 < int(made.labels_of(noise).sum()) < 300, "labels are uniform"
    codes = infogan.noise(500, seed(0))
    assert float(codes.abs().max()) <= 1
    assert float(codes[:, -2:].std()) == pytest.approx(1 / math.sqrt(3), abs=0.05)
    assert float(acgan.noise(500, seed(0))[:, :100].std()) == pytest.approx(1, abs=0.05)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[gans.Game]:
    games: list[gans.Game] = []

    class Spy(gans.Game):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            games.append(self)

    monkeypatch.setattr(gans, "Game", Spy)
    return games


def largest(game: gans.Game) -> float:
    return max(float(p.detach().abs().max()) for p in game.critic.parameters())


def test_weights_of_a_wasserstein_critic_stay_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    games = spied(monkeypatch)
    small("wgan")
    small("acgan")
    assert largest(games[0]) == pytest.approx(gans.CLIP)
    assert largest(games[1]) > 0.5, "batch normalisation starts at 1: an unclipped critic is seen"


class Count:
    def __init__(self) -> None:
        self.steps = 0

    def advance(self, steps: int = 1) -> None:
        self.steps += steps


@pytest.mark.parametrize("kind", KINDS)
def test_stage_and_length(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, taken = Count(), Count()
    as_float = gans.as_float

    def counted(images: Tensor) -> Tensor:
        taken.advance()
        return as_float(images)

    monkeypatch.setattr(gans, "as_float", counted)
    settings = GanSettings(steps=3, batch_size=8, width=4, critic_steps=5)
    train_gan(kind, *stripes(20), 2, settings, seed(1), stage=stage)
    assert stage.steps == 3
    assert taken.steps == (15 if kind == "wgan" else 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_that_is_not_finite_stops_the_training(kind: Kind) -> None:
    images = torch.full((8, 1, 8, 8), float("nan"))
    with pytest.raises(NotFiniteError, match=f"{kind} diverged at iteration 0"):
        train_gan(kind, images, torch.arange(8) % 2, 2, GanSettings(steps=5, batch_size=4, width=4), seed(0))


@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (4, 1, 7, 8), (4, 1, 8, 7)])
def test_what_cannot_be_trained(shape: tuple[int, ...]) -> None:
    with pytest.raises(BenchError, match="two images of 8x8 pixels or more"):
        train_gan("acgan", torch.zeros(shape), torch.arange(shape[0]) % 2, 2, GanSettings(steps=1), seed(0))


def gap(made: Tensor, images: Tensor) -> float:
    """Return the mean distance from generated images to the nearest real one, as the root mean square over pixels."""
    nearest = torch.cdist(made.flatten(1), images.flatten(1)).min(1).values
    return float(nearest.mean()) / math.sqrt(made[0].numel())


def digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels * (255 / 16)).to(torch.uint8).view(-1, 1, 8, 8)
    return images, torch.from_numpy(labels).long()


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])])
def test_training_brings_images_to_the_data(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = digits()
    real = images.float() / 255

    # Higher rates than in the papers, which train for thousands of steps.
    quick = {"acgan": 5.0, "wgan": 20.0, "infogan": 1.0}[kind]
    monkeypatch.setitem(RATES, kind, (quick * RATES[kind][0], quick * RATES[kind][1]))

    def trained(steps: int) -> GanGenerator:
        settings = GanSettings(steps=steps, batch_size=32, width=16, critic_steps=3)
        return train_gan(kind, images, labels, 10, settings, seed(1))

    made = trained(200)
    found = drawn(made, 200)
    assert gap(found, real) < 0.65 * gap(drawn(trained(1), 200), real)
    means = torch.stack([real[labels == label].mean(0) for label in range(10)])
    nearest = torch.cdist(found.flatten(1), means.flatten(1)).argmin(1)
    assert len(nearest.unique()) >= 6, "more than one image"
    if kind == "acgan":
        asked = made.labels_of(made.noise(200, seed(7)))
        assert float((nearest == asked).float().mean()) > 0.8, "the class that was asked for"
