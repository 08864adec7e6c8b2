"""One gradient for each example of a batch, from one forward and one backward pass.

A linear layer that sees one vector per example has gradients of rank one: their norms are products of norms, and a
weighted sum of them is one matrix product (Goodfellow, arXiv:1510.01799), so that they are never formed. Plain
convolutions form theirs from windows; all other layers take theirs from Opacus. Norms of convolutions and sequences
without their gradients exist too, but cancel in float32, and a norm that is too small lets a gradient pass the clip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient, prepare_layer
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.training.precision import arithmetic

_AT_ONCE = 32  # Of this many examples, copies of the windows stay in a processor's cache.
_TINY = 1e-15  # Squares below 1e-45 are 0 in float32; this hides no factor of a norm, and changes no norm above 1e-8.


@dataclass(frozen=True, slots=True)
class Outer:
    """Gradients of rank one: the products of the rows of `left` (n, outputs) and `right` (n, inputs)."""

    left: Tensor
    right: Tensor


Gradients = Tensor | Outer
"""One gradient of one parameter for each of n examples: (n, *shape), or not formed."""


def picked(gradients: Gradients, rows: Sequence[int] | slice) -> Tensor:
    """Return the gradients of the examples `rows`, formed."""
    if isinstance(gradients, Outer):
        return gradients.left[rows][:, :, None] * gradients.right[rows][:, None]
    return gradients[rows]


def without(gradients: Gradients, rows: Tensor) -> Gradients:
    """Return a copy of the gradients with zeros for the examples whose numbers are `rows`."""
    if isinstance(gradients, Outer):
        return Outer(gradients.left.index_fill(0, rows, 0.0), gradients.right.index_fill(0, rows, 0.0))
    return gradients.index_fill(0, rows, 0.0)


def keep_largest(gradients: Sequence[Gradients], count: int) -> list[Tensor]:
    """Return the gradients of all parameters, formed, with only the `count` largest entries of each example.

    The others are set to zero, in place where they are formed already. Entries as large as the last one stay too. A
    gradient that is not finite keeps an entry that is not.
    """
    formed = [picked(gradient, slice(None)) for gradient in gradients]
    for start in range(0, len(formed[0]), 16):  # so few that they stay in the processor's cache
        parts = [gradient[start : start + 16] for gradient in formed]
        sizes = torch.cat([part.flatten(1).abs() for part in parts], 1).cpu().numpy()
        place = sizes.shape[1] - count
        sizes.partition(place, axis=1)  # half the time of torch's topk
        least = torch.from_numpy(sizes[:, place]).to(parts[0].device)
        for part in parts:
            part *= part.abs() >= least.view(-1, *[1] * (part.dim() - 1))  # a product, as NaN times zero is NaN
    return formed


def norms(gradients: Gradients) -> Tensor:
    """Return the L2 norms (n,) of the gradients; not finite where a gradient is not."""
    if isinstance(gradients, Outer):
        return (norms(gradients.left) + _TINY) * (norms(gradients.right) + _TINY)
    found: Tensor = torch.linalg.vector_norm(gradients[..., None], dim=tuple(range(1, gradients.dim() + 1)))
    return found


def weighted_sum(gradients: Gradients, factors: Tensor) -> Tensor:
    """Return the sum of the gradients times `factors` (n,), in float32: TensorFloat-32 would pass the clipping norm."""
    with arithmetic("float32", factors.device):
        if isinstance(gradients, Outer):
            return (gradients.left * factors[:, None]).T @ gradients.right
        # In the order of memory: tensordot would copy them all to another.
        order = sorted(range(1, gradients.dim()), key=gradients.stride, reverse=True)
        summed: Tensor = torch.tensordot(factors, gradients.permute(0, *order), dims=1)
    return summed.permute([order.index(place) for place in range(1, gradients.dim())])


@dataclass(frozen=True, slots=True)
class _Call:
    layer: nn.Module
    inputs: list[Tensor]
    versions: list[int]
    output: torch.autograd.graph.GradientEdge = field(repr=False)


class ExampleGradients:
    """Per-example gradients of `model`, as `grad_sample` of its trained parameters.

    Its hooks watch each pass of `model` until :meth:`remove`. Raises :class:`BenchError` for a trained layer with
    buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        if GradSampleModule.validate(model):
            raise BenchError(
                "the student has trained layers with buffers, such as running statistics, which are not private. "
                "Choose layers without, such as GroupNorm or LayerNorm."
            )
        self.model = model
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._calls: list[_Call] = []
        layers = list(_layers(model))
        for layer in layers:
            if type(layer) not in GradSampleModule.GRAD_SAMPLERS:
                prepare_layer(layer)  # copies the layer, so it comes before all hooks
        self._layers = layers
        self._hooks = [layer.register_forward_hook(self._watch) for layer in layers]

    def remove(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()
        for layer in self._layers:
            vars(layer).pop("ft_compute_sample_grad", None)

    def backward(self, loss: Tensor, examples: int) -> None:
        """Set `grad_sample` of each parameter from `loss`, the mean of the losses of `examples` examples.

        Raises :class:`BenchError` for layers that do not see one row per example, and trained weights without effect.
        """
        calls, self._calls = self._calls, []
        # The backward pass stops at outputs: autograd computes no gradient of a parameter.
        edges = [call.output for call in calls]
        flows: Sequence[Tensor | None] = torch.autograd.grad(examples * loss, edges, allow_unused=True)
        found: dict[Tensor, Gradients] = {}
        for call, flow in zip(calls, flows, strict=True):
            if flow is None:
                continue
            if [value._version for value in call.inputs] != call.versions:
                raise BenchError(
                    f"the input of a {type(call.layer).__name__} is overwritten in place after it, so that its "
                    "gradient is lost. Use operations that are not in place."
                )
            if len(flow) != examples:
                raise BenchError(
                    f"a {type(call.layer).__name__} sees {len(flow)} rows for {examples} examples. Keep the examples "
                    "as the first dimension of every layer."
                )
            for parameter, gradients in _of_layer(call.layer, call.inputs, flow).items():
                if parameter.requires_grad and parameter in found:  # tied weights, or several passes
                    every = slice(None)
                    found[parameter] = picked(found[parameter], every) + picked(gradients, every)
                elif parameter.requires_grad:
                    found[parameter] = gradients
        if any(parameter not in found for parameter in self._parameters):
            raise BenchError("some trained weights do not act on the loss. Freeze them by requires_grad=False.")
        for parameter in self._parameters:
            parameter.grad_sample = found[parameter]  # type: ignore[attr-defined]

    def _watch(self, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if torch.is_grad_enabled() and first.requires_grad:
            tensors = [value.detach() for value in inputs if isinstance(value, Tensor)]
            # The edge stays that of this layer's output if a later operation overwrites it.
            edge = torch.autograd.graph.get_gradient_edge(first)
            self._calls.append(_Call(layer, tensors, [value._version for value in tensors], edge))


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    # Opacus's recurrent layers share the weights of layers in them, which have a formula.
    own = type(module) not in (DPRNN, DPLSTM, DPGRU) and any(
        parameter.requires_grad for parameter in module.parameters(recurse=False)
    )
    if own:
        yield module
    # A layer that Opacus does not know is differentiated as a whole, with all that is in it.
    if not own or type(module) in GradSampleModule.GRAD_SAMPLERS:
        for child in module.children():
            yield from _layers(child)


def _of_layer(layer: nn.Module, inputs: list[Tensor], flow: Tensor) -> dict[Tensor, Gradients]:
    if type(layer) is nn.Linear and flow.dim() == 2:
        linear: dict[Tensor, Gradients] = {layer.weight: Outer(flow, inputs[0].to(flow.dtype))}
        return linear if layer.bias is None else {**linear, layer.bias: flow}
    if type(layer) is nn.Conv2d and _is_plain(layer):
        return _of_convolution(layer, inputs[0], flow)
    sampler = GradSampleModule.GRAD_SAMPLERS.get(type(layer), ft_compute_per_sample_gradient)
    sampled: dict[Tensor, Gradients] = sampler(layer, inputs, flow)
    return sampled


def _is_plain(layer: nn.Conv2d) -> bool:
    plain = (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
    return plain and not isinstance(layer.padding, str)


def _of_convolution(layer: nn.Conv2d, inputs: Tensor, flow: Tensor) -> dict[Tensor, Gradients]:
    """Return what Opacus returns; channels come last in between, so that the windows are copied in runs."""
    (high, wide), (down, across), (rows, columns) = layer.kernel_size, layer.stride, map(int, layer.padding)
    count, channels, tall, broad = inputs.shape
    at_once = min(count, _AT_ONCE) if flow.device.type == "cpu" else count
    padded = flow.new_zeros(at_once, tall + 2 * rows, broad + 2 * columns, channels)
    inner = padded[:, rows : rows + tall, columns : columns + broad].permute(0, 3, 1, 2)
    windows = padded.unfold(1, high, down).unfold(2, wide, across).permute(0, 1, 2, 4, 5, 3)
    copied = flow.new_empty(windows.shape)
    factors = copied.flatten(1, 2).flatten(2).mT
    formed = flow.new_empty(count, factors.shape[1], flow.shape[1])
    for maps, flows, into in zip(
        *(torch.split(whole, at_once) for whole in (inputs, flow.flatten(2), formed)), strict=True
    ):
        inner[: len(maps)] = maps.clone()  # Read in order before it is read across: most of the time was the memory's.
        copied[: len(maps)] = windows[: len(maps)]
        torch.bmm(factors[: len(maps)], flows.mT, out=into)
    weight = formed.view(count, high, wide, channels, -1).permute(0, 4, 3, 1, 2)
    return {layer.weight: weight} if layer.bias is None else {layer.weight: weight, layer.bias: flow.sum((2, 3))}
