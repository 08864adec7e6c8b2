"""A user's trained classifier, head included, as the teacher: weights from a registry package or a file.

The data root keeps only a file's path and digest; records name the file by SHA-256.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from bench.core.errors import BenchError, UnknownNameError
from bench.core.fetch_progress import Progress
from bench.core.plain_files import user_path
from bench.core.types import Facts, GivenTeacher
from bench.models.feature_net import Evaluated
from bench.models.frozen_backbone import BackboneSpec, prepared
from bench.models.pretrained import find_weights, native_input
from bench.models.registration import OWN_MODULES, check_model, model_options
from bench.models.weight_packages import PACKAGES
from bench.models.weight_store import (
    PublicWeights,
    State,
    file_sha256,
    is_whole,
    known_weights,
    read_state,
    write_manifest,
)

AT_ONCE = 64  # images per forward pass, since activations of large images fill the memory


class GivenNet(Evaluated):
    """A trained classifier: float images in [0, 1] (n, channels, height, width) to logits (n, classes)."""

    def __init__(self, net: nn.Module, spec: BackboneSpec | None, classes: int) -> None:
        super().__init__()
        self.net: Any = net.eval().requires_grad_(False)
        self.spec, self.num_classes = spec, classes

    def forward_features(self, images: Tensor) -> Tensor:
        """Return timm's features before pooling."""
        return self._in_parts(self.net.forward_features, images)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Return logits, or the last hidden layer, of :meth:`forward_features`."""
        made: Tensor = self.net.forward_head(features, pre_logits=pre_logits)
        return made

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        return self._in_parts(self.net, images).float()

    def _in_parts(self, apply: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        parts = torch.split(images, AT_ONCE)
        return torch.cat([apply(part if self.spec is None else prepared(part, self.spec)) for part in parts])


def pin(given: GivenTeacher, facts: Facts) -> GivenTeacher:
    """Return `given` identified by digest, with the name of its file but not the folder.

    Raise UnknownNameError for an unknown net or package; BenchError if the file is missing, is not safetensors, has
    another digest, does not fit the net, or has a different number of classes than `facts`.
    """
    check_model(given.net)
    _ready(given, facts)
    if given.public:
        if given.net not in PACKAGES:
            hint = "For weights of your own take teacher_weights=file:PATH."
            raise UnknownNameError("teacher with a package of weights", given.net, PACKAGES, hint)
        pinned = PACKAGES[given.net].sha256
        known: Any = timm.get_pretrained_cfg(given.net)
        classes = 1000 if known is None else int(known.num_classes)  # None: Keras' net, for ImageNet
        if classes != facts.classes:
            raise BenchError(_other_classes(given.net, classes, facts))
        if given.sha256 not in ("", pinned):
            raise BenchError(f"the package's weights of {given.net} have SHA-256 {pinned}, not {given.sha256}.")
        return replace(given, sha256=pinned)
    path = user_path(given.weights.removeprefix("file:")).absolute()
    if given.sha256 and not path.is_file():
        return given  # a file name from an earlier plan: load_given finds the file by digest
    if path.suffix != ".safetensors":
        raise BenchError(
            f"{path} is not a safetensors file; other formats may run code when read. Save the model's state dict with "
            "safetensors.torch.save_file; `python -m bench export` does it for students trained here."
        )
    _check_fit(given, facts, read_state(path), path)
    digest = file_sha256(path)
    if given.sha256 not in ("", digest):
        raise BenchError(f"{path} has SHA-256 {digest}, not {given.sha256}.")
    # The same file has the same manifest when it serves as a frozen backbone.
    size, mean, std = 0, (), ()  # type: tuple[int, tuple[float, ...], tuple[float, ...]]
    with contextlib.suppress(BenchError):
        size, mean, std, _ = native_input(given.net)
    write_manifest(PublicWeights(given.net, "file", digest, f"file {path.name}", "", size, mean, std, path))
    return replace(given, weights=f"file:{path.name}", sha256=digest)


def load_given(given: GivenTeacher, facts: Facts, progress: Progress | None = None) -> GivenNet:
    """Load a teacher that :func:`pin` returned, for images of `facts`; fetch its package; BenchError if it is gone."""
    if given.public:
        found = find_weights(given.net, given.weights, given.sha256, progress=progress)
    else:
        same = [held for held in known_weights() if (held.backbone, held.sha256) == (given.net, given.sha256)]
        found = next((held for held in same if is_whole(held)), None)  # type: ignore[assignment]
        if found is None:
            raise BenchError(
                f"the weights of {given.net} with SHA-256 {given.sha256} were moved or changed. Give them "
                "again by --set teacher_weights=file:PATH."
            )
    spec = _ready(given, facts)
    with torch.random.fork_rng(devices=[]):  # overwritten initial weights must not advance the RNG
        net = timm.create_model(given.net, **_options(given, facts))
    net.load_state_dict(read_state(found.path))
    return GivenNet(net, spec, facts.classes)


def _ready(given: GivenTeacher, facts: Facts) -> BackboneSpec | None:
    """Return the preprocessing, or None if the net takes the data's images unchanged."""
    own = timm.models.model_entrypoint(given.net).__module__.startswith(OWN_MODULES)
    if given.size == 0 or (own and given.net not in PACKAGES):
        if given.size:
            raise BenchError(
                f"{given.net} is a net of this benchmark and takes the data's images as they are: omit teacher_size."
            )
        return None
    if given.net in PACKAGES:
        size, mean, std = PACKAGES[given.net].size, PACKAGES[given.net].mean, PACKAGES[given.net].std
    else:
        try:
            size, mean, std, _ = native_input(given.net)
        except BenchError as error:
            raise BenchError(f"{error} For the size of the data, set teacher_size=0.") from error
    size = size if given.size is None else given.size
    if facts.shape[0] not in (1, 3):
        raise BenchError(f"{given.net} takes images, and {facts.dataset} has {facts.shape[0]} channels.")
    return BackboneSpec(given.net, "file", given.sha256, "", "", size, mean, std)


def _options(given: GivenTeacher, facts: Facts) -> dict[str, Any]:
    spec = _ready(given, facts)
    if spec is None:
        return model_options(given.net, facts.classes, facts.shape[0], facts.shape[1:])
    return model_options(given.net, facts.classes, spec.in_chans, spec.size)


def _check_fit(given: GivenTeacher, facts: Facts, state: State, path: Path) -> None:
    with torch.device("meta"):
        net = timm.create_model(given.net, **_options(given, facts))
    wanted, found = ({k: tuple(v.shape) for k, v in held.items()} for held in (net.state_dict(), state))
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if not wrong:
        return
    head = [name for name in wrong if name in wanted and name in found]
    if head == wrong and {wanted[name][0] for name in head} == {facts.classes} and len(head) <= 2:
        raise BenchError(_other_classes(path.name, found[head[0]][0], facts))
    name = wrong[0]
    raise BenchError(
        f"{path} does not fit {given.net} for {facts.classes} classes and images of {facts.shape}: {name} is "
        f"{found.get(name, 'missing')} in the file and {wanted.get(name, 'missing')} in the model. Name its net by "
        "--teacher, and give its weights in timm's names; for a student trained here, what `bench export` wrote."
    )


def _other_classes(name: str, classes: int, facts: Facts) -> str:
    return (
        f"{name} knows {classes} classes, {facts.dataset} has {facts.classes}: labelled test images of the teacher's "
        "own classes are needed."
    )
