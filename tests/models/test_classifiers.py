"""The registered nets: shapes, sizes, starts, normalisation, and how any timm model is found and built."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from bench.core.errors import BenchError, UnknownNameError
from bench.core.lazy_libraries import torchvision
from bench.models.build import build, features_and_logits
from bench.models.generators import ConvGenerator, DenseGenerator, generator_for
from bench.models.layers import BytesAboutHalf, ChannelNorm, GaussianNoise, WeightNormLinear, data_dependent_start
from bench.models.registration import model_options

OWN = [
    "pate_mnist", "pate_svhn", "tanh_cnn_mnist", "tanh_cnn_cifar", "tempered_cnn_mnist", "tempered_cnn_cifar",
    "small_cnn", "small_cnn_bn", "salimans_mlp", "softmax_regression", "convnet",
]  # fmt: skip


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (1, 8)])
def test_own_nets_fit_every_size(name: str, channels: int, size: int) -> None:
    model = build(name, 7, channels, size).eval()
    images = torch.rand(3, channels, size, size)
    features, logits = features_and_logits(model, images)
    assert logits.shape == (3, 7)
    assert features.shape == (3, model.num_features)
    assert torch.allclose(logits, model(images), atol=1e-5)
    keeps_statistics = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())
    assert keeps_statistics == name.endswith("_bn")


def test_nets_without_noise_act_on_each_image_alone() -> None:
    images = torch.rand(4, 1, 28, 28)
    for name in OWN:
        model = build(name, 10, 1, 28).eval()
        assert torch.allclose(model(images)[:1], model(images[:1]), atol=1e-4), name


@pytest.mark.parametrize(("name", "channels", "size"), [("cnn_mnist", 1, 28), ("cnn_cifar", 3, 32)])
def test_a_tempered_sigmoid_of_2_2_1_is_tanh(name: str, channels: int, size: int) -> None:
    tanh, tempered = build(f"tanh_{name}", 10, channels, size), build(f"tempered_{name}", 10, channels, size)
    tempered.load_state_dict(tanh.state_dict())
    images = torch.rand(4, channels, size, size)
    torch.testing.assert_close(tempered(images), tanh(images), rtol=1e-4, atol=1e-5)
    other = build(f"tempered_{name}", 10, channels, size, scale=1.5, inverse_temperature=3.0, offset=0.5)
    other.load_state_dict(tanh.state_dict())
    hidden = features_and_logits(other, images)[0].detach()
    assert -0.5 <= float(hidden.min()) < 0
    assert float(hidden.max()) <= 1.0
    assert not torch.allclose(other(images), tanh(images), atol=1e-2)


def test_timm_models_are_built_with_and_without_img_size() -> None:
    assert "img_size" not in model_options("resnet18", 10, 1, 28)
    assert model_options("vit_tiny_patch16_224", 10, 3, 32)["img_size"] == 32
    model = build("resnet18", 5, 1, 28).eval()
    features, logits = features_and_logits(model, torch.rand(2, 1, 28, 28))
    assert features.shape == (2, 512)
    assert logits.shape == (2, 5)


TORCHVISION: dict[str, Callable[[int], nn.Module]] = {
    "alexnet": lambda classes: torchvision.models.alexnet(num_classes=classes),
    "shufflenet": lambda classes: torchvision.models.shufflenet_v2_x1_0(num_classes=classes),
    "googlenet": lambda classes: torchvision.models.googlenet(
        num_classes=classes, aux_logits=False, init_weights=False
    ),
}


@pytest.mark.parametrize(("name", "size"), [("alexnet", 63), ("shufflenet", 32), ("googlenet", 32)])
def test_torchvisions_nets_take_its_weights_and_give_its_logits(name: str, size: int) -> None:
    theirs, ours = TORCHVISION[name](7).eval(), build(f"torchvision_{name}", 7, 3, size).eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.rand(2, 3, size, size)
    hidden, logits = features_and_logits(ours, images)
    assert torch.equal(logits, theirs(images))
    assert hidden.shape == (2, ours.get_classifier().in_features)


@pytest.mark.parametrize(
    ("name", "channels", "size"), [("alexnet", 3, 62), ("shufflenet", 1, 32), ("googlenet", 3, 14)]
)
def test_torchvisions_nets_refuse_what_they_cannot_take(name: str, channels: int, size: int) -> None:
    with pytest.raises(BenchError, match=f"takes RGB images of .* not {channels} x {size} x {size}"):
        build(f"torchvision_{name}", 7, channels, size)


def test_options_are_json_and_rebuild_the_same_net() -> None:
    options = json.loads(json.dumps(model_options("small_cnn", 10, 1, 28, width=4)))
    model, again = build("small_cnn", 10, 1, 28, width=4), build("small_cnn", **options)
    assert [p.shape for p in model.parameters()] == [p.shape for p in again.parameters()]


def test_unknown_model_names_the_nearest_first() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'small_cnn'"):
        build("smal_cnn", 10, 1, 28)


def test_images_too_small_are_refused_clearly() -> None:
    with pytest.raises(BenchError, match="too small"):
        build("tanh_cnn_cifar", 10, 3, 4)
    with pytest.raises(BenchError, match="cannot be built"):
        build("resnet18", 10, 3, 32, nonsense=1)


def test_pate_net_has_the_published_layers_and_starts() -> None:
    torch.manual_seed(0)
    layers = [layer for layer in build("pate_mnist", 10, 1, 28).modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    shapes = [tuple(layer.weight.shape) for layer in layers]
    assert shapes == [(64, 1, 5, 5), (128, 64, 5, 5), (384, 6272), (192, 384), (10, 192)]
    for layer, start in zip(layers, [1e-4, 1e-4, 0.04, 0.04, 1 / 192], strict=True):
        assert float(layer.weight.detach().abs().max()) <= 2 * start + 1e-9
        assert float(layer.weight.detach().std()) == pytest.approx(0.88 * start, rel=0.15)
    assert [float(layer.bias.detach()[0]) for layer in layers] == pytest.approx([0.0, 0.1, 0.1, 0.1, 0.0])


def test_pate_input_is_on_the_scale_of_bytes() -> None:
    assert BytesAboutHalf()(torch.tensor([0.0, 1.0])).tolist() == [-0.5, 254.5]


def test_channel_norm_is_local_response_normalisation() -> None:
    values = torch.randn(2, 12, 3, 3) * 30
    expected = functional.local_response_norm(values, size=9, alpha=0.001, beta=0.75, k=1.0)
    assert torch.allclose(ChannelNorm(12)(values), expected, rtol=1e-4, atol=1e-5)


def test_weight_norm_has_rows_of_set_length_and_a_data_dependent_start() -> None:
    torch.manual_seed(0)
    layer = WeightNormLinear(20, 5)
    batch = torch.rand(200, 20)
    assert torch.allclose((layer(batch) - layer.bias).square().mean(), (batch @ _rows(layer).T).square().mean())
    with torch.no_grad(), data_dependent_start(layer):
        layer(batch)
    after = layer(batch)
    assert torch.allclose(after.mean(0), torch.zeros(5), atol=1e-5)
    assert torch.allclose(after.std(0, correction=0), torch.ones(5), atol=1e-4)
    assert "scale" not in dict(layer.named_parameters())
    assert "scale" in dict(WeightNormLinear(20, 5, train_scale=True).named_parameters())


def _rows(layer: WeightNormLinear) -> torch.Tensor:
    return layer.direction / layer.direction.norm(dim=1, keepdim=True) * layer.scale[:, None]


def test_noise_is_there_in_training_only() -> None:
    noise = GaussianNoise(0.5)
    values = torch.zeros(10_000)
    assert float(noise(values).std()) == pytest.approx(0.5, rel=0.1)
    assert torch.equal(noise.eval()(values), values)


@pytest.mark.parametrize(("shape", "kind"), [((1, 28, 28), DenseGenerator), ((3, 32, 32), ConvGenerator)])
def test_generators_make_images(shape: tuple[int, int, int], kind: type[nn.Module]) -> None:
    generator = generator_for(*shape)
    assert isinstance(generator, kind)
    noise = generator.noise(4, torch.Generator().manual_seed(0))
    assert torch.equal(noise, generator.noise(4, torch.Generator().manual_seed(0)))
    images = generator(noise).detach()
    assert images.shape == (4, *shape)
    assert 0.0 <= float(images.min()) <= float(images.max()) <= 1.0


def test_conv_generator_refuses_other_sides() -> None:
    with pytest.raises(BenchError, match="divisible by 8"):
        ConvGenerator(3, 30, 32)


def test_sentences_features_depend_neither_on_the_length_of_images_nor_on_the_embedding_of_padding() -> None:
    """DP-SGD's noise moves that embedding, although its gradient is 0."""
    net = build("text_cnn", 2, 2, (1, 12), vocabulary=30, width=4, filters=6, hidden=5).eval()
    images = torch.zeros(3, 2, 1, 12)
    images[:, 1, 0, :7] = torch.randint(2, 30, (3, 7), generator=torch.Generator().manual_seed(0)) / 255
    expected = net(images[..., :7])
    with torch.no_grad():
        net.embedding.weight[0] += 1.0
    torch.testing.assert_close(net(images), expected)
