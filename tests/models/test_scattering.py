"""The scattering transform: kymatio's coefficients, each image and channel by itself, differentiable everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.models.build import build, features_and_logits
from bench.models.rebuild import rebuild
from bench.models.registration import model_options
from bench.models.scattering import BATCH, COEFFICIENTS, GROUPS, Scattering
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.features import trained_part
from bench.training.loop import FitSettings, fit, predict

NETS = ("scatter_linear", "scatter_cnn_mnist", "scatter_cnn_cifar")
GOLDEN = json.loads((Path(__file__).parents[1] / "fixtures" / "scattering.json").read_text())
"""By size: of the image of `waves`, the sum of each coefficient's values times cos(0.7 k) at the k-th pixel, as
kymatio 0.3.0 has them (kymatio.numpy.Scattering2D(J=2, shape))."""


def waves(height: int, width: int) -> torch.Tensor:
    row, column = torch.arange(height, dtype=torch.float64)[:, None], torch.arange(width, dtype=torch.float64)
    image = 0.5 + 0.5 * torch.sin(0.37 * row + 0.011 * column**2) * torch.cos(0.23 * column - 0.05 * row)
    return image.float()[None, None]


@pytest.mark.parametrize("size", GOLDEN)
def test_coefficients_are_those_of_kymatio(size: str) -> None:
    height, width = map(int, size.split("x"))
    found = Scattering(1, height, width).coefficients(waves(height, width))[0, 0].double()
    assert found.shape == (81, height // 4, width // 4)
    weights = torch.cos(0.7 * torch.arange(found[0].numel(), dtype=torch.float64))
    wanted = torch.tensor(GOLDEN[size], dtype=torch.float64)
    # Relative to the largest of an order: some sums cancel.
    for order in (slice(0, 1), slice(1, 17), slice(17, 81)):
        distance = (found.flatten(1) @ weights - wanted)[order].abs().max()
        assert distance <= 1e-5 * wanted[order].abs().max()


def test_channels_are_transformed_by_themselves_and_in_order() -> None:
    images = torch.rand(2, 3, 12, 16)
    together = Scattering(3, 12, 16).coefficients(images)
    assert together.shape == (2, 3, COEFFICIENTS, 3, 4)
    alone = Scattering(1, 12, 16)
    for channel in range(3):
        assert torch.allclose(together[:, channel : channel + 1], alone.coefficients(images[:, [channel]]), atol=1e-6)
    features = Scattering(3, 12, 16)(images)
    assert features.shape == (2, 3 * 81 * 3 * 4)


def test_features_are_normalised_in_groups_of_each_image() -> None:
    images = torch.rand(BATCH + 3, 1, 28, 28)
    scattering = Scattering(1, 28, 28)
    features = scattering(images)
    plain = scattering.coefficients(images).flatten(1).unflatten(1, (GROUPS, -1))
    mean, variance = plain.mean(2, keepdim=True), plain.var(2, correction=0, keepdim=True)
    assert torch.allclose(features, ((plain - mean) / (variance + 1e-5).sqrt()).flatten(1), atol=1e-3)
    alone = torch.cat([scattering(image[None]) for image in images])
    assert torch.allclose(features, alone, atol=1e-4)


def test_the_gradient_is_right_and_finite_where_the_modulus_is_zero() -> None:
    scattering = Scattering(1, 8, 8).double()
    image = torch.rand(1, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(scattering, (image.requires_grad_(),), eps=1e-7, atol=1e-4, nondet_tol=1e-9)
    for level in (0.0, 0.5):
        flat = torch.full((1, 1, 8, 8), level, requires_grad=True)
        (gradient,) = torch.autograd.grad(Scattering(1, 8, 8).coefficients(flat).sum(), flat)
        assert gradient.isfinite().all()


@pytest.mark.few(5)
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    ("shape", "standardised"),
    [((1, 28, 28), False), ((3, 32, 32), True), ((1, 8, 8), True), ((1, 112, 92), False), ((2, 4, 7), True)],
)
def test_nets_fit_every_size_and_hold_their_head_only(
    name: str, shape: tuple[int, int, int], standardised: bool
) -> None:
    channels, height, width = shape
    net = build(name, 5, channels, (height, width), standardised=standardised).eval()
    images = torch.rand(2, *shape, requires_grad=True)
    features, logits = features_and_logits(net, images)
    assert logits.shape == (2, 5)
    assert torch.allclose(logits, net.get_classifier()(features), atol=1e-5)
    assert set(net.state_dict()) == {f"head.{key}" for key in net.head.state_dict()}
    (gradient,) = torch.autograd.grad(net(images).sum(), images)
    assert gradient.abs().max() > 0
    options = json.loads(json.dumps(model_options(name, 5, channels, (height, width), standardised=standardised)))
    again = rebuild(name, options, net.state_dict())
    assert torch.equal(again(images), net(images))


def test_heads_have_the_published_layers() -> None:
    for name, channels, size, shapes in (
        ("scatter_linear", 1, 28, [(10, 3969)]),
        ("scatter_cnn_mnist", 1, 28, [(16, 81, 3, 3), (32, 16, 3, 3), (32, 512), (10, 32)]),
        ("scatter_cnn_cifar", 3, 32, [(64, 243, 3, 3), (64, 64, 3, 3), (10, 1024)]),
    ):
        layers = [m for m in build(name, 10, channels, size).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        assert [tuple(layer.weight.shape) for layer in layers] == shapes


@pytest.mark.parametrize("name", NETS)
def test_students_and_heads_train_and_predict_as_other_nets(name: str) -> None:
    """A head trains on features for the controls of attacks; convolutions get another memory layout there."""
    images, labels = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8), torch.arange(20) % 4
    net = build(name, 4, 1, 8)
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    head, inputs = trained_part(net, images, context, "private")
    fit(head, inputs, labels, FitSettings(steps=3, batch_size=5), torch.Generator())
    whole, cached = predict(net, images), predict(head, inputs)
    assert torch.allclose(whole, cached, atol=0.02)


def test_small_images_are_refused_clearly() -> None:
    with pytest.raises(BenchError, match="at least 4x4 pixels, not 1x64"):
        build("scatter_linear", 2, 2, (1, 64))
