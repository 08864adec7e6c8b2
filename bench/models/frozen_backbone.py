"""Classifiers on a frozen public backbone: TrPATE's teachers and students, and the linear baselines.

A released student refers to a fetchable backbone by its hash, and includes any other (trained here, or random). Batch
normalisation keeps its public statistics and features are normalised per image, so no record affects another's
features.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.errors import BenchError
from bench.core.seeds import seeded
from bench.models.build import build
from bench.models.feature_net import FixedMap, OnFixedMap, Size, TwoPartNet, height_width
from bench.models.gaussian_nb import GaussianHead
from bench.models.layers import Normalise
from bench.models.pretrained import load_backbone, weights_by_digest
from bench.models.registration import register_own

VERSION = 1
"""Increment when the same backbone would give different features."""
HeadKind = Literal["dense", "gaussian"]


@dataclass(frozen=True, slots=True)
class BackboneSpec:
    """A frozen backbone's timm name, weights and preprocessing, as JSON values.

    `sha256` is the digest of the weight file, or of the tensors if there is no file. Images are resized to `size`
    pixels a side (0: not resized); `mean` and `std` are per channel, for values in [0, 1] (empty: not normalised).
    """

    name: str
    origin: Literal["package", "hub", "file", "random", "trained"]
    sha256: str
    source: str
    trained_on: str
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    in_chans: int = 3
    bf16: bool = False

    @property
    def carried(self) -> bool:
        """Whether a released student includes the backbone because it cannot be fetched by hash."""
        return self.origin in ("random", "trained")

    def identity(self) -> dict[str, Any]:
        """Return everything that affects features, except the images, as JSON values."""
        options = {**self.options()["backbone"], "version": VERSION}
        return {name: value for name, value in options.items() if name not in ("origin", "source", "trained_on")}

    def options(self) -> dict[str, Any]:
        """Return the spec as options of :func:`frozen_transfer`."""
        return {"backbone": {**asdict(self), "mean": list(self.mean), "std": list(self.std)}}


def spec_from(options: dict[str, Any]) -> BackboneSpec:
    """Return the spec of `options`, the inverse of :meth:`BackboneSpec.options`."""
    return BackboneSpec(**{**options, "mean": tuple(options["mean"]), "std": tuple(options["std"])})


class FrozenBackbone(FixedMap):
    """Maps images, float in [0, 1] (n, channels, height, width), independently to features (n, num_features)."""

    def __init__(self, spec: BackboneSpec, net: nn.Module) -> None:
        super().__init__()
        self.spec = spec
        self.net: nn.Module = net.eval().requires_grad_(False)
        # 1.3 times faster on a CPU; a net without convolutions keeps its layout.
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        width = getattr(self.net, "num_features", None)
        if not isinstance(width, int) or width < 1:
            raise BenchError(f"{spec.name} does not state its number of features: use a timm model.")
        self.num_features = int(getattr(self.net, "head_hidden_size", None) or width)
        self.carried = spec.carried

    def identity(self) -> dict[str, Any]:
        """See :meth:`BackboneSpec.identity`."""
        return self.spec.identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, standardised within each image."""
        ready = prepared(images, self.spec)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.spec.bf16):
            features: Tensor = self.net(ready)
        return functional.layer_norm(features.float().flatten(1), (self.num_features,))


def prepared(images: Tensor, spec: BackboneSpec) -> Tensor:
    """Convert float `images` in [0, 1] to the channels, size and normalisation of `spec`; BenchError if impossible."""
    channels = images.shape[1]
    if channels != spec.in_chans:
        if {channels, spec.in_chans} != {1, 3}:
            raise BenchError(
                f"{spec.name} takes images of {spec.in_chans} channels and the data has {channels}: only "
                "grey and colour can be converted into each other. Choose another backbone."
            )
        images = images.expand(-1, 3, -1, -1) if channels == 1 else images.mean(1, keepdim=True)
    if spec.size and images.shape[-2:] != (spec.size, spec.size):
        shrinks = max(images.shape[-2:]) > spec.size
        images = functional.interpolate(
            images, (spec.size, spec.size), mode="bilinear", align_corners=False, antialias=shrinks
        )
    if spec.mean:
        shape = (1, len(spec.mean), 1, 1)
        images = (images - images.new_tensor(spec.mean).view(shape)) / images.new_tensor(spec.std).view(shape)
    return images.contiguous(memory_format=torch.channels_last)


def random_backbone(name: str, in_chans: int, size: int, shape: tuple[int, int, int], seed: int) -> FrozenBackbone:
    """Return an untrained backbone for controls and tests, from the public `seed`; `size` 0 keeps images of `shape`."""
    pixels = height_width(size or shape[1:])
    with seeded(torch.Generator().manual_seed(seed)):
        net = build(name, 0, in_chans, pixels)
    normalised = any(isinstance(layer, Normalise) for layer in net.modules())
    half = () if normalised or in_chans not in (1, 3) else (0.5,) * in_chans
    source = f"drawn at random, seed {seed}" if net.state_dict() else "none: the net has no weights"
    return FrozenBackbone(BackboneSpec(name, "random", state_digest(net), source, "", size, half, half, in_chans), net)


def state_digest(net: nn.Module) -> str:
    """Return the SHA-256 of the net's named tensors, which identifies a net without a weight file."""
    digest = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


class DenseHead(TwoPartNet):
    """Features to logits: one hidden layer of ReLU units, or none with `hidden` = 0."""

    end = "last"

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden) if hidden else None
        self.last = nn.Linear(hidden or features, classes)

    def forward_features(self, features: Tensor) -> Tensor:
        """Return the input of the last layer for `features` (n, features)."""
        return features if self.first is None else self.first(features).relu()


class FrozenTransfer(OnFixedMap):
    """A head on a frozen backbone."""

    @property
    def backbone(self) -> FrozenBackbone:
        """Return the frozen backbone."""
        assert isinstance(self.fixed, FrozenBackbone)
        return self.fixed


def make_head(kind: HeadKind, features: int, hidden: int, classes: int) -> nn.Module:
    """Return a head of `kind`; only a dense head has `hidden` units."""
    return DenseHead(features, hidden, classes) if kind == "dense" else GaussianHead(features, classes)


@register_own
def frozen_transfer(
    num_classes: int = 10, in_chans: int = 3, img_size: Size = 32,
    backbone: dict[str, Any] | None = None, head: HeadKind = "dense", hidden: int = 256, **_: Any,
) -> FrozenTransfer:  # fmt: skip
    """Build a head on a frozen backbone (TrPATE, section V.A), found by hash unless carried; BenchError if missing."""
    if backbone is None:
        raise BenchError(
            "frozen_transfer needs the option backbone; a method makes it, see methods/shared/transfer.py."
        )
    spec = spec_from(backbone)
    if spec.carried:
        frozen = FrozenBackbone(spec, build(spec.name, 0, spec.in_chans, height_width(spec.size or img_size)))
    else:
        frozen = FrozenBackbone(spec, load_backbone(weights_by_digest(spec.name, spec.sha256), spec.size or None))
    return FrozenTransfer(frozen, make_head(head, frozen.num_features, hidden, num_classes), num_classes)
