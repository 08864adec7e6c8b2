"""Train a backbone on labelled public data (TrPATE, IV.A and V); it is a public artefact that all cells share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.core.seeds import Streams, seeded
from bench.core.types import Facts
from bench.data.spec import Records
from bench.models.build import build
from bench.models.frozen_backbone import BackboneSpec, FrozenBackbone, prepared, state_digest
from bench.storage.cache import Arrays
from bench.training.context import Context
from bench.training.loop import FitSettings, fit

VERSION = 1  # Increment when the same source and settings would give a different backbone.
HALF = 0.5  # Assumed mean and standard deviation of pixels in [0, 1], not statistics of a data set.


class LazyImages:
    """The images at positions `which` of `records`, read batch by batch for sources larger than memory."""

    def __init__(self, records: Records, which: NDArray[np.int64]) -> None:
        self._records, self._which = records, which
        self.shape = (len(which), *records.shape)
        self._device: torch.device | str = "cpu"

    def __len__(self) -> int:
        return len(self._which)

    def to(self, device: torch.device | str) -> LazyImages:
        """Set the device of the batches."""
        self._device = device
        return self

    def __getitem__(self, index: Tensor) -> Tensor:
        """Return the images at the positions `index`, uint8 (k, channels, height, width)."""
        return torch.from_numpy(self._records.images(self._which[index.cpu().numpy()])).to(self._device)


class _Prepared(nn.Module):
    def __init__(self, net: nn.Module, spec: BackboneSpec) -> None:
        super().__init__()
        self.net, self.spec = net, spec

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(prepared(images, self.spec))
        return logits


def train_source(
    name: str,
    images: Tensor | LazyImages,
    labels: Tensor,
    classes: int,
    source: str,
    revision: str,
    settings: FitSettings,
    size: int,
    facts: Facts,
    context: Context,
    *,
    fraction: float = 1.0,
    bf16: bool = False,
) -> FrozenBackbone:
    """Return the timm model `name`, trained on the public `images` (n, c, h, w) with `labels` (n,), without its head.

    `source`, `revision` and `fraction` (the paper: all, half and a tenth of ImageNet; SST) identify the records in the
    artefact's name; `size` is the side of resized images, 0 for no resizing. Initial weights and batch order come from
    a public stream, so all seeds share one backbone. Raises BenchError if timm lacks the model or it cannot take them.
    """
    channels = facts.shape[0] if facts.shape[0] not in (1, 3) else 3
    mean = (HALF,) * channels if channels == 3 else ()
    pixels = (size, size) if size else (facts.shape[1], facts.shape[2])
    part = "" if fraction == 1 else f"{fraction:g} of "
    words = f"trained here on {part}{source}, {len(images)} labelled public records"
    blank = BackboneSpec(name, "trained", "", words, source, size, mean, mean, channels, bf16)
    depends: dict[str, Any] = {
        "version": VERSION, "net": name, "source": source, "revision": revision, "fraction": fraction,
        "records": len(images), "classes": classes, "settings": repr(settings), "size": size,
        "shape": list(facts.shape), "device": context.device.type, "bf16": bf16,
    }  # fmt: skip

    def make() -> Arrays:
        streams = Streams(0, f"source/{source}/")
        with seeded(streams.torch("weights")):
            net = build(name, classes, channels, pixels)
        steps = settings.total_steps(len(images))
        with context.stage("source", depends, steps, f"backbone on {source}") as (checkpoint, stage):
            fit(
                _Prepared(net, blank), cast(Tensor, images), labels, settings, streams.torch("order"),
                device=context.device, bf16=bf16, stage=stage, checkpoint=checkpoint,
            )  # fmt: skip
        wanted = set(build(name, 0, channels, pixels).state_dict())
        return {key: value.cpu().numpy() for key, value in net.state_dict().items() if key in wanted}

    arrays = context.cache.get("source", depends, make)
    net = build(name, 0, channels, pixels)
    net.load_state_dict({key: torch.from_numpy(value.copy()) for key, value in arrays.items()})
    return FrozenBackbone(replace(blank, sha256=state_digest(net)), net)
