"""Per-example gradients: norms and weighted sums are those of the gradients of each example alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus import GradSampleModule
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from bench.core.errors import BenchError
from bench.data.text import PADDING
from bench.models.classifiers import small_cnn, tanh_cnn_mnist
from bench.models.text_nets import text_cnn
from bench.privacy.dpsgd.example_gradients import ExampleGradients
from bench.privacy.dpsgd.gradient_forms import Outer, norms, picked, weighted_sum, without

N = 5


class Scaled(nn.Module):
    """A layer without a known formula."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.tanh(self.inner(x)) ** 2


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = DPLSTM(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0].flatten(1)


class Around(nn.Module):
    """A net of one `layer`, which `forward` calls in its own way."""

    def __init__(self, layer: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, x)


def words(layer: nn.Module, x: Tensor) -> Tensor:
    return layer((x * 5).long()).flatten(1)


def attended(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([found.flatten(1) for found in layer(x, x.sin(), x, key_padding_mask=x[:, :, 0] > 0.9)], 1)


class TwoParents(nn.Module):
    """A layer that is registered and called twice, here and in a layer without a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = Scaled()
        self.again = nn.Sequential(self.scaled.inner, nn.Tanh())
        self.once_more = self.again

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(self.again(x))


class Shifted(nn.Module):
    """A layer without a formula that takes further arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor, power: float = 1.0, *, shift: Tensor | None = None) -> Tensor:
        return self.scale * x**power + (0 if shift is None else shift * self.scale)


class Recalled(nn.Module):
    """An LSTM cell, one of whose two outputs depends on the other."""

    def __init__(self, which: int | slice) -> None:
        super().__init__()
        self.cell, self.which = nn.LSTMCell(4, 3), which

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.cell(x)[self.which], 1) if isinstance(self.which, slice) else self.cell(x)[self.which]


def scattering_cnn() -> nn.Module:
    return nn.Sequential(
        nn.GroupNorm(27, 81, affine=False), nn.Conv2d(81, 16, 3, 2, 1), nn.Tanh(), nn.Conv2d(16, 32, 3, 1, 1),
        nn.Tanh(), nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def vit(*, frozen: str = "", **options: Any) -> nn.Module:
    import timm

    size = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 12, "depth": 1, "num_heads": 2}
    net = timm.create_model("vit_tiny_patch16_224", num_classes=10, **size, **options)
    if frozen:
        net.get_parameter(frozen).requires_grad_(False)
    return net


def frozen_bias() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.bias.requires_grad_(False)
    return layer


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (4,)),
    "linear with a frozen bias": (frozen_bias, (4,)),
    "linear on a sequence": (lambda: nn.Linear(4, 3), (6, 4)),
    "linear on a short sequence": (lambda: nn.Linear(8, 6), (3, 8)),
    "linear on each pixel": (lambda: nn.Linear(8, 9, bias=False), (2, 2, 8)),
    "strided convolution": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 7, 7)),
    "convolution of wide kernels": (lambda: nn.Conv2d(3, 2, (2, 4), (1, 3), (0, 2), bias=False), (3, 5, 6)),
    "convolution padded to the same size": (lambda: nn.Conv2d(2, 4, 3, padding="same"), (2, 5, 5)),
    "grouped convolution": (lambda: nn.Conv2d(4, 4, (3, 2), groups=2, dilation=2), (4, 7, 7)),
    "convolution of a line": (lambda: nn.Conv1d(2, 4, 3), (2, 7)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    "layer norm": (lambda: nn.LayerNorm(4), (3, 4)),
    **{
        f"convolution padded by {mode}": (partial(nn.Conv2d, 2, 3, 3, padding=1, padding_mode=mode), (2, 6, 6))
        for mode in ("reflect", "replicate", "circular")
    },
    "convolution of a padded line": (partial(nn.Conv1d, 2, 3, 3, padding=1, padding_mode="reflect"), (2, 6)),
    "convolution of volumes": (partial(nn.Conv3d, 2, 4, 2, 2, 1, 2, 2), (2, 4, 5, 6)),
    "transposed convolution": (partial(nn.ConvTranspose2d, 2, 3, 3, stride=2), (2, 4, 4)),
    "layer norm without bias": (lambda: nn.LayerNorm(4, bias=False), (3, 4)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 4)),
    "RMS norm": (lambda: nn.RMSNorm(4), (3, 4)),
    "embedding": (lambda: Around(nn.Embedding(5, 4), words), (6,)),
    "embedding with padding": (lambda: Around(nn.Embedding(5, 4, padding_idx=1), words), (6,)),
    "embedding with padding at the end": (lambda: Around(nn.Embedding(5, 4, padding_idx=-1), words), (6,)),
    "embedding by frequency": (lambda: Around(nn.Embedding(5, 4, scale_grad_by_freq=True), words), (6,)),
    **{
        f"bag of words, {mode}": (lambda mode=mode: Around(nn.EmbeddingBag(5, 4, mode=mode), words), (6,))
        for mode in ("sum", "mean", "max")
    },
    "attention": (lambda: Around(nn.MultiheadAttention(4, 2, batch_first=True), attended), (3, 4)),
    "transformer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (3, 4)),
    **{
        kind.__name__: (
            lambda kind=kind: Around(kind(4, 3, 2, batch_first=True), lambda layer, x: layer(x)[0].flatten(1)), (6, 4)
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    "output of a cell": (lambda: Recalled(0), (4,)),
    "state of a cell": (lambda: Recalled(1), (4,)),
    "output and state of a cell": (lambda: Recalled(slice(None)), (4,)),
    "bilinear": (lambda: Around(nn.Bilinear(4, 4, 3), lambda layer, x: layer(x, x.sin())), (4,)),
    "further arguments": (lambda: Around(Shifted(), lambda layer, x: layer(x, 2.0, shift=x.sin())), (4,)),
    "argument by name": (lambda: Around(nn.Linear(4, 3), lambda layer, x: layer(input=x)), (4,)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3, bias=False)), (4,)),
    "two parents": (TwoParents, (4,)),
    "trained slope": (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU()), (4,)),
    "layer of its own": (Scaled, (4,)),
    "tied weights": (Tied, (4,)),
    "one layer twice": (lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2), (4,)),
    "recurrent": (Recurrent, (6, 4)),
    "in place": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)), (4,)),
    "tanh CNN": (tanh_cnn_mnist, (1, 28, 28)),
    "small CNN": (small_cnn, (1, 28, 28)),
    "linear on scattering": (
        lambda: nn.Sequential(nn.GroupNorm(27, 81, affine=False), nn.Flatten(), nn.Linear(3969, 10)), (81, 7, 7)
    ),
    "CNN on scattering": (scattering_cnn, (81, 7, 7)),
    "vision transformer": (vit, (1, 8, 8)),
    "vision transformer with registers": (partial(vit, reg_tokens=2, no_embed_class=True), (1, 8, 8)),
    "vision transformer without tokens": (partial(vit, class_token=False, global_pool="avg"), (1, 8, 8)),
    "vision transformer with fixed positions": (partial(vit, frozen="pos_embed"), (1, 8, 8)),
    "vision transformer for all sizes": (partial(vit, dynamic_img_size=True), (1, 8, 8)),
    "vision transformer at another size": (partial(vit, dynamic_img_size=True), (1, 12, 12)),
}  # fmt: skip


def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs.flatten(1), labels)


@pytest.mark.parametrize("name", NETS)
def test_they_are_those_of_each_example_alone(name: str) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    net, inputs, labels, factors = make(), torch.rand(N, *shape), torch.arange(N) % 3, torch.rand(N)
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    alone = [
        torch.autograd.grad(loss_of(net(inputs[[row]]), labels[[row]]), parameters, materialize_grads=True)
        for row in range(N)
    ]
    gradients = ExampleGradients(net)
    gradients.backward(loss_of(net(inputs), labels), N)
    gradients.remove()
    for parameter, each in zip(parameters, zip(*alone, strict=True), strict=True):
        found, wanted = parameter.grad_sample, torch.stack(each)
        size = float(wanted.abs().max()) + 1e-6
        torch.testing.assert_close(picked(found, slice(None)), wanted, rtol=1e-4, atol=2e-5 * size)
        torch.testing.assert_close(norms(found), wanted.flatten(1).norm(dim=1), rtol=1e-4, atol=1e-4 * size)
        summed = torch.tensordot(factors, wanted, dims=1)
        torch.testing.assert_close(weighted_sum(found, factors), summed, rtol=1e-4, atol=2e-5 * size)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in net.modules())
    assert not any(hasattr(layer, "ft_compute_sample_grad") for layer in net.modules())
    assert [id(parameter) for parameter in net.parameters() if parameter.requires_grad] == list(map(id, parameters))


def test_a_transformer_forms_no_gradients_of_its_products() -> None:
    gradients = ExampleGradients(net := vit())
    gradients.backward(loss_of(net(torch.rand(N, 1, 8, 8)), torch.arange(N)), N)
    found = {name for name, one in net.named_parameters() if isinstance(one.grad_sample, Outer)}
    assert {"blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight", "head.weight"} <= found


def test_an_error_in_the_net_leaves_its_parameters_in_place() -> None:
    net = vit()
    parameters = list(net.parameters())
    ExampleGradients(net)
    net.get_submodule("blocks.0").register_forward_pre_hook(lambda layer, inputs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net(torch.rand(N, 1, 8, 8))
    assert list(map(id, net.parameters())) == list(map(id, parameters))


@given(
    st.integers(0, 4), st.integers(0, 4), st.integers(1, 5), st.integers(1, 5), st.integers(-6, 12),
    st.integers(-6, 12), st.integers(0),
)  # fmt: skip
def test_those_that_are_not_formed_are_those_that_are(
    count: int, length: int, outputs: int, inputs: int, left: int, right: int, seed: int
) -> None:
    """A length of 0 stands for one vector per example. Norms of sequences are upper bounds."""
    generator = torch.Generator().manual_seed(seed % 2**32)
    shape = (count, length) if length else (count,)
    one, other = (torch.randn(*shape, width, generator=generator) for width in (outputs, inputs))
    factors = torch.randn(count, 1, generator=generator)
    outer = Outer(one * 10.0**left, other * 10.0**right)
    formed = outer.left.mT @ outer.right if length else outer.left[:, :, None] * outer.right[:, None]
    torch.testing.assert_close(picked(outer, slice(None)), formed)
    positions = [part.double().reshape(count, max(length, 1), part.shape[-1]) for part in (outer.left, outer.right)]
    exact, found = (positions[0].mT @ positions[1]).flatten(1).norm(dim=1), norms(outer).double()
    sizes = (positions[0].norm(dim=2) * positions[1].norm(dim=2)).sum(1)
    assert (found >= exact * (1 - 4e-5)).all()
    assert (found <= exact * (1 + 1e-4) + sizes * (2e-3 if length else 0.0) + 1e-8).all()  # positions that cancel
    size = float(sizes.max()) if count else 1.0
    given_to, wanted = factors[:, 0], torch.tensordot(factors[:, 0], formed, dims=1)
    torch.testing.assert_close(weighted_sum(outer, given_to), wanted, rtol=1e-3, atol=1e-5 * size)
    rows = torch.arange(0, count, 2)
    assert torch.equal(picked(without(outer, rows), slice(None)), formed.index_fill(0, rows, 0.0))


PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 5, 32, 33, 70]), PAIRS, PAIRS, PAIRS, PAIRS, st.booleans(), st.integers(0, 2**32 - 1))
def test_those_of_a_convolution_are_those_of_opacus(
    count: int, maps: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
    bias: bool, seed: int,
) -> None:  # fmt: skip
    """Holds for one part and for several parts, the last of which is shorter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        padding = (padding[0] - 1, padding[1] - 1)
        layer = nn.Conv2d(*maps, kernel, stride, padding, bias=bias)
        inputs, factors = torch.randn(count, maps[0], 5, 4), torch.rand(count)
        flow = torch.randn_like(layer(inputs))
    theirs = GradSampleModule.GRAD_SAMPLERS[nn.Conv2d](layer, [inputs], flow)
    gradients = ExampleGradients(layer)
    gradients.backward((layer(inputs) * flow).sum() / count, count)
    for parameter in layer.parameters():
        found, wanted = parameter.grad_sample, theirs[parameter].view(count, *parameter.shape)
        torch.testing.assert_close(picked(found, slice(None)), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(norms(found), wanted.flatten(1).norm(dim=1), rtol=1e-4, atol=1e-5)
        summed = torch.tensordot(factors, wanted, dims=1)
        torch.testing.assert_close(weighted_sum(found, factors), summed, rtol=1e-4, atol=1e-3)


def test_a_norm_whose_factors_underflow_or_overflow_is_never_too_small() -> None:
    left = torch.tensor([1e-24, 1e-24, 1e30, float("nan")])[:, None].expand(4, 2)
    found = norms(Outer(left, torch.tensor([1e18, 1.0, 1.0, 1.0])[:, None].expand(4, 3)))
    assert float(found[0]) >= 6**0.5 * 1e-6 * 0.99
    assert float(found[1]) < 1e-9
    assert found[2:].isfinite().tolist() == [False, False]


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(-1, 2)).reshape(len(x), -1)


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        outputs = self.layer(x)
        x.zero_()
        return outputs


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Borrowed(nn.Module):
    """Its head uses the embedding's weights through a function."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.words((x * 5).long()).mean(1), self.words.weight)


def heads_first(layer: nn.Module, x: Tensor) -> Tensor:
    x = x[:, :, None].expand(-1, -1, 4)
    return layer(x, x, x, attn_mask=torch.zeros(4, 4))[0]


def sequence_first(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x.T[:, :, None].expand(-1, -1, 4))[0].transpose(0, 1)


@pytest.mark.parametrize(
    ("net", "error"),
    [
        (Folded, "Linear sees 10 rows for 5 examples"), (Overwriting, "overwritten in place"),
        (Unused, "do not affect the loss"), (Borrowed, "words.weight affect the loss outside a call of their layer"),
        (lambda: Around(nn.MultiheadAttention(4, 2, batch_first=True), heads_first), "MultiheadAttention sees 4 rows"),
        (lambda: Around(nn.LSTM(4, 3), sequence_first), "LSTM sees 4 rows for 5 examples.*batch_first=True"),
        (lambda: Around(nn.LSTM(1, 3, 2, dropout=0.5, batch_first=True), lambda layer, x: layer(x[:, :, None])[0]),
         "LSTM draws random numbers.*dropout"),
        (lambda: Around(nn.EmbeddingBag(5, 3), lambda layer, x: layer((x * 5).long().flatten(), torch.arange(N) * 4)),
         "EmbeddingBag sees 20 rows"),
    ],
)  # fmt: skip
def test_a_net_without_a_gradient_for_each_example_is_refused(net: Callable[[], nn.Module], error: str) -> None:
    model = net()
    gradients = ExampleGradients(model)
    with pytest.raises(BenchError, match=error):
        gradients.backward(loss_of(model(torch.rand(N, 4)), torch.arange(N) % 3), N)


def test_an_embedding_that_changes_its_weights_in_a_pass_is_refused() -> None:
    with pytest.raises(BenchError, match="Embedding has max_norm"):
        ExampleGradients(nn.Embedding(5, 4, max_norm=1.0))


def test_the_padding_of_sentences_has_no_gradient() -> None:
    net = text_cnn(vocabulary=20, width=4, filters=6, hidden=5)
    sentences = torch.randint(0, 3, (N, 2, 1, 7)).float() / 255
    gradients = ExampleGradients(net)
    gradients.backward(loss_of(net(sentences), torch.arange(N) % 2), N)
    found = picked(net.embedding.weight.grad_sample, slice(None))
    assert float(found[:, PADDING].abs().max()) == 0
    assert float(found.abs().max()) > 0


def test_a_trained_layer_with_running_statistics_is_refused() -> None:
    with pytest.raises(BenchError, match="trained layers with buffers"):
        ExampleGradients(nn.InstanceNorm2d(3, affine=True, track_running_stats=True))
