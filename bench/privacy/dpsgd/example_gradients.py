"""Per-example gradients from one forward and one backward pass.

Linear layers give theirs as factors (:mod:`bench.privacy.dpsgd.gradient_forms`), unless their sequences are long. Plain
convolutions form theirs from windows; other layers with a formula in Opacus use it; all others make a second pass of
the layer by torch.func or, if that fails, of each example alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from bench.core.errors import BenchError
from bench.core.lazy_libraries import opacus, timm
from bench.privacy.dpsgd.gradient_forms import Gradients, Outer, picked

_AT_ONCE = 32  # with this many examples, copies of the windows fit a processor's cache

_Edge = torch.autograd.graph.GradientEdge
_NOTHING = pytree.tree_flatten(())[1]


@dataclass(frozen=True, slots=True)
class _Call:
    """A pass of a layer; or, without inputs, `copied`: a parameter that its layer got as one copy per example."""

    layer: nn.Module
    inputs: list[Any]
    """All arguments, flattened, with detached tensors; `spec` restores their structure."""
    spec: pytree.TreeSpec
    versions: list[int]
    before: list[_Edge]
    """Where the graph continues before the layer."""
    outputs: list[_Edge] = field(repr=False)
    copied: nn.Parameter | None = None


class ExampleGradients:
    """Per-example gradients of `model`, as `grad_sample` of its trained parameters.

    Its hooks watch each pass of `model` until :meth:`remove`. Raises :class:`BenchError` for a trained layer with
    buffers, or one that changes its weights in the forward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        if opacus.GradSampleModule.validate(model):
            raise BenchError(
                "the student has trained layers with buffers, such as running statistics, which are not private. "
                "Choose layers without, such as GroupNorm or LayerNorm."
            )
        # A layer with two parents occurs twice.
        layers = list(dict.fromkeys(_layers(model)))
        for layer in layers:
            if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.max_norm is not None:
                raise BenchError(
                    f"the student's {_name(layer)} has max_norm, so each pass would change its weights "
                    "without noise, depending on the words of the batch. Leave out max_norm."
                )
        self.model = model
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._calls: list[_Call] = []
        self._watching = True
        self._without_vmap: set[nn.Module] = set()
        self._swapped: dict[nn.Module, dict[str, nn.Parameter]] = {}
        """The parameters of layers that run with a copy per example, by name."""
        self._hooks = [layer.register_forward_hook(self._watch, with_kwargs=True) for layer in layers]
        for layer in filter(_copies, layers):
            self._hooks.append(layer.register_forward_pre_hook(self._swap))
            self._hooks.append(layer.register_forward_hook(self._restore, always_call=True))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore passes inside the block."""
        before, self._watching = self._watching, False
        try:
            yield
        finally:
            self._watching = before

    def remove(self) -> None:
        """Restore the model."""
        for hook in self._hooks:
            hook.remove()

    def backward(self, loss: Tensor, examples: int) -> None:
        """Set `grad_sample` of each parameter from `loss`, the mean loss of `examples` examples.

        Raises :class:`BenchError` for layers that do not see one row per example, and for trained weights that have no
        effect or are used outside their layers.
        """
        calls = self._reached(loss)
        # The backward pass stops at outputs, so autograd computes no parameter gradients.
        edges = [edge for call in calls for edge in call.outputs]
        flows = iter(torch.autograd.grad(examples * loss, edges, allow_unused=True) if edges else ())
        found: dict[Tensor, Gradients] = {}
        for call in calls:
            own: list[Tensor | None] = [next(flows) for _ in call.outputs]
            tensors = [value for value in call.inputs if isinstance(value, Tensor)]
            if [value._version for value in tensors] != call.versions:
                raise BenchError(
                    f"the input of a layer {_name(call.layer)} is overwritten in place after it, which "
                    "loses its gradient. Avoid in-place operations."
                )
            for rows in (*tensors, *own):
                if rows is not None and (not rows.dim() or len(rows) != examples):
                    raise BenchError(
                        f"a layer {_name(call.layer)} sees {len(rows) if rows.dim() else 'no'} rows for {examples} "
                        "examples. Keep the examples as the first dimension of all inputs and outputs of "
                        "a layer (batch_first=True)."
                    )
            for parameter, gradients in self._of_layer(call, own).items():
                if parameter.requires_grad and parameter in found:  # tied weights, or several passes
                    every = slice(None)
                    found[parameter] = picked(found[parameter], every) + picked(gradients, every)
                elif parameter.requires_grad:
                    found[parameter] = gradients
        if any(parameter not in found for parameter in self._parameters):
            raise BenchError("some trained weights do not affect the loss. Freeze them with requires_grad=False.")
        for parameter in self._parameters:
            parameter.grad_sample = found[parameter]  # type: ignore[attr-defined]

    def alone(self, loss: Tensor) -> Tensor:
        """Return autograd's gradient of `loss`, one example's, for all trained parameters, flattened."""
        self._calls = []
        found = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        return torch.cat([gradient.reshape(-1) for gradient in found])

    def formed(self, rows: Sequence[int] | slice) -> Tensor:
        """Return the gradients of the examples `rows` that :meth:`backward` set, in the same form: (n, numbers)."""
        samples = [picked(parameter.grad_sample, rows) for parameter in self._parameters]  # type: ignore[attr-defined]
        return torch.cat([sample.flatten(1) for sample in samples], 1)

    def _swap(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Give each example its own copy of the parameters beside the sublayers, if `inputs` have the net's size."""
        meant = layer.get_submodule("patch_embed").img_size
        if not self._watching or not torch.is_grad_enabled() or not inputs or meant != inputs[0].shape[2:]:
            return
        own = {name: one for name, one in layer.named_parameters(recurse=False) if one.requires_grad}
        self._swapped[layer] = own
        for name, parameter in own.items():
            copies = parameter.expand(len(inputs[0]), *parameter.shape[1:])
            layer._parameters[name] = copies  # type: ignore[assignment]
            edge = torch.autograd.graph.get_gradient_edge(copies)
            self._calls.append(_Call(layer, [], _NOTHING, [], [], [edge], copied=parameter))

    def _restore(self, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        layer._parameters.update(self._swapped.pop(layer, {}))

    def _watch(self, layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        if not self._watching or not torch.is_grad_enabled() or not _trained(output) or layer in self._swapped:
            return output
        if len(_trained(output)) > 1:
            # One output may depend on another, as in an LSTM cell; views get only gradients from outside the layer.
            output = pytree.tree_map_only(Tensor, lambda value: value.view_as(value), output)
        leaves, spec = pytree.tree_flatten((inputs, named))
        tensors = [value for value in leaves if isinstance(value, Tensor)]
        edge = torch.autograd.graph.get_gradient_edge
        before = [edge(value) for value in tensors if value.requires_grad]
        detached = [value.detach() if isinstance(value, Tensor) else value for value in leaves]
        # The edges still point to this layer's outputs if a later operation overwrites them.
        outputs = [edge(value) for value in _trained(output)]
        self._calls.append(_Call(layer, detached, spec, [value._version for value in tensors], before, outputs))
        return output

    def _reached(self, loss: Tensor) -> list[_Call]:
        """Return the calls that `loss` depends on, in order, without those inside other calls."""
        calls, self._calls = self._calls, []
        call_of = {(edge.node, edge.output_nr): number for number, call in enumerate(calls) for edge in call.outputs}
        trained, reached, seen = set(self._parameters), set(), set()
        left: list[tuple[Any, int]] = [(loss.grad_fn, 0)]
        while left:
            place = left.pop()
            if place[0] is None or place in seen:
                continue
            seen.add(place)
            if place in call_of:
                reached.add(call_of[place])
                left += [(edge.node, edge.output_nr) for edge in calls[call_of[place]].before]
            elif getattr(place[0], "variable", None) in trained:
                name = next(name for name, own in self.model.named_parameters() if own is place[0].variable)
                raise BenchError(
                    f"the trained weights {name} affect the loss outside a call of their layer, as in "
                    "functional.linear(x, layer.weight), so that part of their gradient would be lost. "
                    "Tie weights through separate layers (second.weight = first.weight), and call those."
                )
            else:
                left += place[0].next_functions
        return [call for number, call in enumerate(calls) if number in reached]

    def _of_layer(self, call: _Call, flows: list[Tensor | None]) -> dict[Tensor, Gradients]:
        layer, inputs, flow = call.layer, call.inputs, flows[0]
        if call.copied is not None:
            return {} if flow is None else {call.copied: flow[:, None]}
        if flow is not None and len(inputs) == len(flows) == 1 and _has_formula(layer):
            if type(layer) is nn.Linear and _is_short(layer, flow):
                left, right = (rows.flatten(1, -2) if rows.dim() > 3 else rows for rows in (flow, inputs[0]))
                linear: dict[Tensor, Gradients] = {layer.weight: Outer(left, right.to(flow.dtype))}
                return linear if layer.bias is None else {**linear, layer.bias: left.sum(1) if left.dim() > 2 else left}
            if type(layer) is nn.Conv2d and _is_plain(layer):
                return _of_convolution(layer, inputs[0], flow)
            sampled: dict[Tensor, Gradients] = opacus.GradSampleModule.GRAD_SAMPLERS[type(layer)](layer, inputs, flow)
            if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
                picked(sampled[layer.weight], slice(None))[:, layer.padding_idx] = 0.0
            return sampled
        self._watching = False
        try:
            if layer not in self._without_vmap:
                try:
                    return _by_vmap(call, flows)
                except (RuntimeError, ValueError, TypeError):  # an operation that vmap does not support
                    self._without_vmap.add(layer)
            return _one_by_one(call, flows)
        finally:
            self._watching = True


def generator_states(device: torch.device) -> list[Tensor]:
    """Return the states of torch's generators on the CPU and, if different, on `device`."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _name(layer: nn.Module) -> str:
    return type(layer).__name__


def _trained(output: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(output) if isinstance(value, Tensor) and value.requires_grad]


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    # Opacus's recurrent layers share weights with their inner layers, which have a formula.
    own = type(module) not in (opacus.layers.DPRNN, opacus.layers.DPLSTM, opacus.layers.DPGRU) and any(
        parameter.requires_grad for parameter in module.parameters(recurse=is_parametrized(module))
    )
    if own:
        yield module
    # A layer without a formula is differentiated as a whole, including its children.
    if not own or type(module) in opacus.GradSampleModule.GRAD_SAMPLERS or _copies(module):
        for child in module.children():
            yield from _layers(child)


def _copies(module: nn.Module) -> bool:
    """Return whether `module` is timm's vision transformer, which adds its tokens and positions to all examples."""
    return type(module) is timm.models.VisionTransformer


def _has_formula(layer: nn.Module) -> bool:
    """Return whether this module or Opacus has a gradient formula for `layer` as configured."""
    if type(layer) not in opacus.GradSampleModule.GRAD_SAMPLERS or isinstance(layer, nn.EmbeddingBag):
        return False
    if {name for name, _ in layer.named_parameters()} - {"weight", "bias"}:  # as with weight_norm
        return False
    if isinstance(layer, nn.LayerNorm):
        return layer.bias is not None
    return getattr(layer, "padding_mode", "zeros") == "zeros" and not getattr(layer, "scale_grad_by_freq", False)


def _by_vmap(call: _Call, flows: list[Tensor | None]) -> dict[Tensor, Gradients]:
    """Return the gradients by a second pass of the layer, with torch.func."""
    names, parameters = zip(*call.layer.named_parameters(), strict=True)

    def loss(weights: tuple[Tensor, ...], inputs: list[Any], flows: list[Tensor | None]) -> Tensor:
        one = [value.unsqueeze(0) if isinstance(value, Tensor) else value for value in inputs]
        args, named = pytree.tree_unflatten(one, call.spec)
        output = torch.func.functional_call(call.layer, dict(zip(names, weights, strict=True)), args, named)
        parts = zip(_trained(output), flows, strict=True)
        total = [(value * flow.unsqueeze(0)).sum() for value, flow in parts if flow is not None]
        return sum(total[1:], total[0])

    places = [[0 if isinstance(value, Tensor) else None for value in values] for values in (call.inputs, flows)]
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, *places))
    detached = tuple(parameter.detach() for parameter in parameters)
    return dict(zip(parameters, each(detached, call.inputs, flows), strict=True))


def _one_by_one(call: _Call, flows: list[Tensor | None]) -> dict[Tensor, Gradients]:
    """Return the gradients by a second pass of the layer for each example."""
    parameters = [parameter for parameter in call.layer.parameters() if parameter.requires_grad]
    rows: list[tuple[Tensor, ...]] = []
    before = generator_states(parameters[0].device)
    try:
        for row in range(next(len(flow) for flow in flows if flow is not None)):
            one = [value[row : row + 1] if isinstance(value, Tensor) else value for value in call.inputs]
            args, named = pytree.tree_unflatten(one, call.spec)
            with torch.enable_grad():
                given = zip(_trained(call.layer(*args, **named)), flows, strict=True)
            outputs, own = zip(*((value, flow[[row]]) for value, flow in given if flow is not None), strict=True)
            rows.append(torch.autograd.grad(outputs, parameters, own, materialize_grads=True))
    except (RuntimeError, ValueError, TypeError) as error:
        raise BenchError(
            f"a layer {_name(call.layer)} has no per-example gradients: it fails on one example of the "
            f"batch ({error}). Use layers that take the examples as their first dimension."
        ) from error
    if not all(map(torch.equal, before, generator_states(parameters[0].device))):
        raise BenchError(
            f"a layer {_name(call.layer)} draws random numbers, so its gradients cannot be recomputed. Set "
            "its dropout to 0, or use a separate layer for it (torch.nn.Dropout)."
        )
    return dict(zip(parameters, map(torch.stack, zip(*rows, strict=True)), strict=True))


def _is_short(layer: nn.Linear, flow: Tensor) -> bool:
    """Return whether gradients of low rank take fewer operations than formed ones, which also fill more memory."""
    if flow.dim() < 3:
        return flow.dim() == 2
    return math.prod(flow.shape[1:-1]) * (layer.in_features + layer.out_features) < layer.weight.numel()


def _is_plain(layer: nn.Conv2d) -> bool:
    return (layer.groups, layer.dilation) == (1, (1, 1)) and not isinstance(layer.padding, str)


def _of_convolution(layer: nn.Conv2d, inputs: Tensor, flow: Tensor) -> dict[Tensor, Gradients]:
    """Return the same as Opacus; channels are last internally, so that windows are copied in contiguous runs."""
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
        inner[: len(maps)] = maps
        copied[: len(maps)] = windows[: len(maps)]
        torch.bmm(factors[: len(maps)], flows.mT, out=into)
    weight = formed.view(count, high, wide, channels, -1).permute(0, 4, 3, 1, 2)
    return {layer.weight: weight} if layer.bias is None else {layer.weight: weight, layer.bias: flow.sum((2, 3))}
