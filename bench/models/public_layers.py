"""Teachers that start from public weights: frozen layers below, trained layers and a fresh head above.

Everything up to a named block of a timm model stays as it is, so that its outputs are computed once for all records and
teachers. Trained layers start at the public weights. Batch normalisation keeps its public statistics, and nothing is
dropped out: a record's outputs depend on no other's, and few records suffice.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import timm
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torchvision.models.feature_extraction import NodePathTracer

from bench.core.errors import BenchError
from bench.models.feature_net import Evaluated, FixedMap, Size, TwoPartNet, height_width
from bench.models.frozen_backbone import BackboneSpec, FrozenBackbone, prepared, spec_from
from bench.models.pretrained import load_backbone, weights_by_digest
from bench.models.registration import register_own

VERSION = 1
"""Increment when the same options would give different layers."""
ALL, NONE = "all", "nothing"
"""Freeze the whole backbone, or no layer; else the name of the last frozen block."""


class SharedBackbone(FrozenBackbone):
    """A frozen backbone that keeps its last features, since teacher and student see each batch in turn."""

    _seen: tuple[weakref.ref[Tensor], int, Tensor] | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, standardised within each image."""
        if self._seen is not None and self._seen[0]() is images and self._seen[1] == images._version:
            return self._seen[2]
        found = super().forward(images)
        self._seen = None if found.requires_grad else (weakref.ref(images), images._version, found)
        return found


class FrozenLayers(FixedMap):
    """Maps images, float in [0, 1], to the flat outputs (n, num_features) of a backbone's layers up to a block."""

    def __init__(self, spec: BackboneSpec, block: str, layers: nn.Module) -> None:
        super().__init__()
        self.spec, self.block = spec, block
        self.layers: nn.Module = layers.eval().requires_grad_(False)
        side = spec.size
        with torch.no_grad():
            shown = self.layers(torch.zeros(1, spec.in_chans, side, side))
        self.shape = tuple(shown.shape[1:])
        self.num_features = shown.numel()

    def identity(self) -> dict[str, Any]:
        """Return the backbone's identity and the block."""
        return {**self.spec.identity(), "block": self.block, "layers": VERSION}

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs of the block, flattened."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.spec.bf16):
            found: Tensor = self.layers(prepared(images, self.spec))
        return found.float().flatten(1)


class Above(Evaluated, TwoPartNet):
    """Trained layers on the outputs of frozen ones, and a linear head on standardised features.

    `layers` map inputs (n, *shape) to pooled features; None: the inputs are the features. With `spec` the inputs are
    images in [0, 1], which are prepared for the net first.
    """

    def __init__(
        self, layers: nn.Module | None, shape: tuple[int, ...], width: int, classes: int,
        spec: BackboneSpec | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers, self.shape, self.spec = layers, shape, spec
        self.num_features, self.num_classes = width, classes
        self.head = nn.Linear(width, classes)
        if layers is not None:
            layers.eval()

    def forward_features(self, inputs: Tensor) -> Tensor:
        """Return the features (n, num_features), standardised within each image."""
        if self.layers is None:
            return inputs.flatten(1)
        ready = inputs.reshape(len(inputs), *self.shape) if self.spec is None else prepared(inputs, self.spec)
        found: Tensor = self.layers(ready)
        return functional.layer_norm(found.float().flatten(1), (self.num_features,))


def cut(net: nn.Module, block: str) -> tuple[nn.Module, nn.Module]:
    """Return the layers of `net` up to `block` and those after it, traced in evaluation mode.

    Raise :class:`BenchError` if there is no such block, or if later layers use more than its output.
    """
    models: Any = timm.models
    features = models._features_fx
    modules, functions = features.get_notrace_modules(), features.get_notrace_functions()
    tracer = NodePathTracer(leaf_modules=modules, autowrap_functions=functions)
    _, *others = inspect.signature(net.forward).parameters.values()
    try:
        graph = tracer.trace(net.eval(), {option.name: option.default for option in others})
    except Exception as error:  # a tracer runs the net's own code
        raise BenchError(f"the layers of the net cannot be traced: {str(error).splitlines()[0]}.") from error
    fx.GraphModule(net, graph).graph.eliminate_dead_code()  # such as assertions on unused options
    paths = tracer.node_to_qualname
    nodes = list(graph.nodes)
    inside = [node for node in nodes if (paths.get(node, "") + ".").startswith(f"{block}.")]
    if not inside:
        raise BenchError(f"no block {block!r}; there are {', '.join(blocks(net))}.")
    place = nodes.index(inside[-1])
    constants = [node for node in nodes if node.op == "get_attr"]
    fed = {*constants, *nodes[place:]}
    if place + 1 == len(nodes) or any(not set(node.all_input_nodes) <= fed for node in nodes[place + 1 :]):
        raise BenchError(f"layers after {block} use more than its output; there are {', '.join(blocks(net))}.")
    below, above = fx.Graph(), fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    for node in nodes[: place + 1]:
        if node.op != "placeholder" or node.users:
            known[node] = below.node_copy(node, known.__getitem__)
    below.output(known[nodes[place]])
    known = {nodes[place]: above.placeholder("features")}
    for node in [*constants, *nodes[place + 1 :]]:
        if node not in known:
            known[node] = above.node_copy(node, known.__getitem__)
    fx.GraphModule(net, above).graph.eliminate_dead_code()
    # Make modules last: each keeps only the weights that its graph uses at that time.
    return fx.GraphModule(net, below), fx.GraphModule(net, above)


def block_problem(name: str, frozen: str) -> str:
    """Return why no layer named `frozen` of timm's model `name` can be the last frozen one; empty if it can."""
    if frozen in (ALL, NONE):
        return ""
    with torch.device("meta"):
        net = timm.create_model(name, num_classes=0)
    try:
        cut(net, frozen)
    except BenchError as error:
        return f"{name}: {error}"
    return ""


def blocks(net: nn.Module) -> list[str]:
    """Return the names at which a user most likely wants to cut `net`: stages and their blocks, in order."""
    return [name for name, _ in net.named_modules() if name and name.count(".") < 2][:60]


def load_layers(spec: BackboneSpec, frozen: str) -> tuple[FixedMap | None, nn.Module | None, int]:
    """Return the frozen map (None: none is frozen), the trained layers (None: none is trained), their feature width.

    Weights are found by digest. Raise :class:`BenchError` if they are not here, or as :func:`cut` does.
    """
    net = load_backbone(weights_by_digest(spec.name, spec.sha256), spec.size or None)
    whole = SharedBackbone(spec, net)
    if frozen == ALL:
        return whole, None, whole.num_features
    if frozen == NONE:
        return None, net.requires_grad_(), whole.num_features
    try:
        below, above = cut(net, frozen)
    except BenchError as error:
        raise BenchError(f"teacher_frozen={frozen}, {spec.name}: {error}") from error
    return FrozenLayers(spec, frozen, below), above.requires_grad_(), whole.num_features


@register_own
def above_frozen(
    num_classes: int = 10, in_chans: int = 3, img_size: Size = 32,
    backbone: dict[str, Any] | None = None, frozen: str = ALL, **_: Any,
) -> Above:  # fmt: skip
    """Build the trained part of a teacher; it takes outputs of the frozen layers, (n, features, 1, 1), or images."""
    if backbone is None:
        return Above(None, (), in_chans * height_width(img_size)[0] * height_width(img_size)[1], num_classes)
    spec = spec_from(backbone)
    with torch.random.fork_rng(devices=[]):
        fixed, layers, width = load_layers(spec, frozen)
    shape = fixed.shape if isinstance(fixed, FrozenLayers) else ()
    return Above(layers, shape, width, num_classes, spec if frozen == NONE else None)
