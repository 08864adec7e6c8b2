"""The training loops are deterministic, depend on their settings, refuse invalid ones, and learn."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.core.seeds import seeded
from bench.core.transforms import as_float, shifted
from bench.models.build import build
from bench.models.generators import DenseGenerator
from bench.training.improved_gan import ImprovedGANSettings, train_improved_gan, unlabelled_loss
from bench.training.loop import FitSettings, accuracy, fit, predict
from bench.training.self_training import SelfTrainingSettings, poisson_labels, sharpened, train_self_trained


def seed(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def blobs(count: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """Three easy classes of 8x8 images: each brightens one quarter, plus noise."""
    generator = seed(start)
    labels = torch.randint(0, 3, (count,), generator=generator)
    images = torch.randint(0, 120, (count, 1, 8, 8), generator=generator)
    for label, (row, column) in enumerate([(0, 0), (0, 4), (4, 0)]):
        images[labels == label, :, row : row + 4, column : column + 4] += 110
    return images.to(torch.uint8), labels


def small(number: int = 0) -> nn.Module:
    with seeded(seed(number)):
        return build("small_cnn", 3, 1, 8, width=4)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fit_learns_and_is_deterministic(optimizer: str) -> None:
    images, labels = blobs(90)
    settings = FitSettings(
        epochs=8,
        batch_size=16,
        optimizer=optimizer,
        lr=0.05 if optimizer == "sgd" else 0.003,
        shift=1,  # type: ignore[arg-type]
    )
    models = [fit(small(), images, labels, settings, seed(1)) for _ in range(2)]
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert not models[0].training
    other = fit(small(), images, labels, settings, seed(2))
    assert not torch.equal(weights(models[0]), weights(other))
    assert accuracy(models[0], *blobs(200, start=5)) > 0.95


def test_fit_leaves_the_global_generator_alone_and_does_not_depend_on_it() -> None:
    images, labels = blobs(20)
    found = []
    for number in (1, 2):
        torch.manual_seed(number)
        state = torch.get_rng_state()
        model = build("salimans_mlp", 3, 1, 8, widths=(8,))
        torch.set_rng_state(state)
        with seeded(seed(0)):
            model = build("salimans_mlp", 3, 1, 8, widths=(8,))
        found.append(weights(fit(model, images, labels, FitSettings(steps=3, batch_size=5), seed(1))))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(found[0], found[1])


def test_soft_labels_of_one_class_equal_hard_ones() -> None:
    images, labels = blobs(30)
    settings = FitSettings(steps=6, batch_size=10)
    hard = fit(small(), images, labels, settings, seed(1))
    soft = fit(small(), images, nn.functional.one_hot(labels, 3).float(), settings, seed(1))
    assert torch.allclose(weights(hard), weights(soft), atol=1e-6)


def test_average_of_weights_is_what_tensorflow_computes() -> None:
    images, labels = blobs(12)
    trail = []
    for steps in (1, 2, 3):
        trail.append(weights(fit(small(), images, labels, _constant(steps), seed(1))))
    expected = weights(small())
    for step, now in enumerate(trail):
        decay = min(0.9999, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * now
    averaged = fit(small(), images, labels, dataclasses.replace(_constant(3), ema=0.9999), seed(1))
    assert torch.allclose(weights(averaged), expected, atol=1e-6)


def _constant(steps: int) -> FitSettings:
    return FitSettings(steps=steps, batch_size=4, schedule="constant")


def test_schedules() -> None:
    cosine = FitSettings(steps=10, lr=1.0)
    assert cosine.rate(0, 10) == 1.0
    assert cosine.rate(5, 10) == pytest.approx(0.5)
    stairs = FitSettings(steps=10, lr=1.0, schedule="staircase", decay_steps=4)
    assert [stairs.rate(step, 10) for step in (0, 3, 4, 8)] == pytest.approx([1.0, 1.0, 0.1, 0.01])
    assert FitSettings(epochs=2, batch_size=30).total_steps(100) == 8


def test_sequential_batches_are_moved_back_to_full_size() -> None:
    seen: list[list[int]] = []

    def watch(batch: Tensor, generator: torch.Generator) -> Tensor:
        seen.append((batch[:, 0, 0, 0] * 255).round().int().tolist())
        return batch

    images = torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(10, 1, 8, 8).contiguous()
    settings = FitSettings(steps=4, batch_size=4, order="sequential")
    fit(small(), images, torch.zeros(10, dtype=torch.long), settings, seed(0), augment=watch)
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [6, 7, 8, 9], [0, 1, 2, 3]]


def test_dense_decay_shrinks_dense_layers_but_the_last() -> None:
    images, labels = blobs(12)
    plain = fit(small(), images, labels, _constant(1), seed(1))
    decayed = fit(small(), images, labels, dataclasses.replace(_constant(1), dense_decay=1.0), seed(1))
    changed = [
        name
        for (name, a), b in zip(plain.named_parameters(), decayed.parameters(), strict=True)
        if not torch.allclose(a, b)
    ]
    assert len(changed) == 1
    assert changed[0].startswith("body.")


@pytest.mark.parametrize("count", [1, 5])
def test_batch_normalisation_of_one_value_does_not_stop_training(count: int) -> None:
    """The number of records is private for a client, and an error would reveal it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    before = [weight.detach().clone() for weight in net.parameters()]
    images, labels = torch.rand(count, 1, 4, 4), torch.arange(count) % 2
    fit(net, images, labels, FitSettings(epochs=2, batch_size=4, lr=0.1), torch.Generator().manual_seed(0))
    assert all(not torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True))


def test_bad_settings_and_data_are_refused() -> None:
    with pytest.raises(BenchError, match="exactly one"):
        FitSettings()
    with pytest.raises(BenchError, match="positive number"):
        FitSettings(epochs=math.nan)
    with pytest.raises(BenchError, match="lr must be"):
        FitSettings(steps=1, lr=-1.0)
    with pytest.raises(BenchError, match="decay_steps"):
        FitSettings(steps=1, schedule="staircase")
    images, labels = blobs(4)
    with pytest.raises(BenchError, match="as many labels"):
        fit(small(), images, labels[:3], FitSettings(steps=1), seed(0))
    with pytest.raises(BenchError, match="diverged"):
        fit(small(), images, labels, FitSettings(steps=40, lr=1e12, schedule="constant"), seed(0))


def test_predict_and_shift() -> None:
    images, _ = blobs(7)
    model = small().train()
    logits = predict(model, images, batch_size=3)
    assert model.training
    assert torch.allclose(logits, predict(model, as_float(images), batch_size=100), atol=1e-6)
    assert predict(model, images[:0]).shape == (0, 3)
    floats = as_float(images)
    assert torch.equal(shifted(floats, 0, seed(0)), floats)
    moved = shifted(floats, 2, seed(0))
    assert moved.shape == floats.shape
    assert not torch.equal(moved, floats)
    assert set(moved[0].unique().tolist()) <= set(floats[0].unique().tolist())


def test_unlabelled_loss_is_two_cross_entropies() -> None:
    real, fake = torch.randn(5, 3), torch.randn(4, 3)
    z_real, z_fake = real.exp().sum(1).log(), fake.exp().sum(1).log()
    expected = -0.5 * (z_real.sigmoid().log().mean() + (1 - z_fake.sigmoid()).log().mean())
    assert float(unlabelled_loss(real, fake)) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("name", ["salimans_mlp", pytest.param("small_cnn", marks=pytest.mark.slow)])
def test_improved_gan_learns_and_is_deterministic(name: str) -> None:
    images, labels = blobs(12)
    pool, _ = blobs(200, start=1)
    settings = ImprovedGANSettings(epochs=25, batch_size=40, ema=0.9, start_images=50)
    found = []
    for _ in range(2):
        with seeded(seed(0)):
            student = build(name, 3, 1, 8, **({"widths": (32, 16)} if name == "salimans_mlp" else {"width": 4}))
            generator = DenseGenerator(1, 8, 8, units=32)
        found.append(train_improved_gan(student, generator, images, labels, pool, settings, seed(1)))
    assert torch.equal(weights(found[0]), weights(found[1]))
    assert not found[0].training
    assert all(parameter.requires_grad for parameter in found[0].parameters())
    assert accuracy(found[0], *blobs(200, start=5)) > 0.9


def test_self_training_learns_with_and_without_the_graph() -> None:
    images, labels = blobs(12)
    pool, _ = blobs(150, start=1)
    for graph_below in (0, 20):
        settings = SelfTrainingSettings(
            labelled=FitSettings(steps=40, batch_size=12, lr=0.05),
            pool=FitSettings(steps=60, batch_size=30, lr=0.05),
            committee=2,
            graph_below=graph_below,
        )
        students = [train_self_trained(small, images, labels, pool, 3, settings, seed(1)) for _ in range(2)]
        assert torch.equal(weights(students[0]), weights(students[1]))
        assert accuracy(students[0], *blobs(200, start=5)) > 0.9
    with pytest.raises(BenchError, match="at least one labelled"):
        train_self_trained(small, images[:0], labels[:0], pool, 3, SelfTrainingSettings(), seed(1))


def test_poisson_labels_follow_the_graph_from_one_label_per_class() -> None:
    images, labels = blobs(150)
    first = torch.stack([(labels == label).nonzero()[0, 0] for label in range(3)])
    rest = torch.tensor([i for i in range(150) if i not in first.tolist()])
    order = torch.cat([first, rest])
    scores = poisson_labels(as_float(images[order]), labels[first], 3)
    assert scores.shape == (150, 3)
    assert float((scores.argmax(1) == labels[order]).double().mean()) > 0.9


def test_sharpened_rows_sum_to_one_and_sharpen() -> None:
    beliefs = torch.tensor([[3.0, 1.0, 0.0]])
    assert torch.allclose(sharpened(beliefs, 1.0), torch.tensor([[0.75, 0.25, 0.0]]))
    assert torch.allclose(sharpened(beliefs, 0.5), torch.tensor([[0.9, 0.1, 0.0]]))
