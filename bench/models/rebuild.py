"""Build students, and rebuild them from untrusted releases: name and options are checked first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import timm
import torch
from pydantic import ConfigDict, Field, ValidationError
from torch import Generator, Tensor, nn

from bench.core.errors import BenchError, first_problem
from bench.core.rows import Row
from bench.core.seeds import seeded
from bench.core.types import Facts
from bench.models.build import build
from bench.models.frozen_backbone import BackboneSpec, HeadKind
from bench.models.registration import check_model, model_options

Side = Annotated[int, Field(ge=1, le=4096)]
Units = Annotated[int, Field(ge=0, le=65536)]
Layers = Annotated[tuple[Units, ...], Field(max_length=16)]
Deviation = Annotated[float, Field(ge=0, le=10)]
Factor = Annotated[float, Field(ge=-1e6, le=1e6)]


class _Timm(Row):
    """Options that a release may set on timm's nets, whose other arguments open files and fetch weights."""

    model_config = ConfigDict(strict=True)

    num_classes: Annotated[int, Field(ge=1, le=32768)]
    in_chans: Annotated[int, Field(ge=1, le=64)]
    img_size: Side | tuple[Side, Side] = 1


class _Own(_Timm):
    """Options that a release may set on any other net."""

    width: Units = 0
    filters: Units = 0
    hidden: Units = 0
    count: Units = 0
    depth: Units = 0
    vocabulary: Annotated[int, Field(ge=0, le=1 << 22)] = 0
    dense: Layers = ()
    widths: Layers = ()
    input_noise: Deviation = 0
    noise: Deviation = 0
    scale: Factor = 0
    inverse_temperature: Factor = 0
    offset: Factor = 0
    standardised: bool = False
    head: HeadKind = "dense"
    backbone: BackboneSpec | None = None


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise :class:`BenchError` unless a release may use the net `name` with these `options`."""
    check_model(name)
    kind = _Timm if timm.models.model_entrypoint(name).__module__.startswith("timm.") else _Own
    try:
        backbone = getattr(kind.model_validate_json(json.dumps(options)), "backbone", None)
    except (ValidationError, ValueError, TypeError) as error:
        said = str(error)
        if isinstance(error, ValidationError):
            where, said = first_problem(error)
            said = f"{where[:80]}: {said}"
        raise BenchError(
            f"{name} in a release is not built with such options ({said}). Accepted: {', '.join(kind.model_fields)}. "
            "Register another variant of a net under a name of its own."
        ) from error
    if backbone is not None:
        check_model(backbone.name)
        if not (0 <= backbone.size <= 4096 and 1 <= backbone.in_chans <= 64):
            raise BenchError(f"{name} in a release takes no backbone on {backbone.in_chans} x {backbone.size} pixels.")


def make_student(name: str, facts: Facts, generator: Generator, **chosen: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Return the timm model `name` for data of `facts`, weights drawn from `generator`, and its timm options.

    `chosen` are further options of the model.

    Raises :class:`BenchError` if timm does not know the model, if it cannot take such images, or if no release may use
    it with these options.
    """
    channels, height, width = facts.shape
    size = height if height == width else (height, width)
    options = model_options(name, facts.classes, channels, size, **chosen)
    check_options(name, options)  # before training, not after it
    with seeded(generator):
        return build(name, facts.classes, channels, size, **chosen), options


def check_fits(name: str, options: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Raise :class:`BenchError` as :func:`check_options` does, or if the `weights` do not fit the net.

    A net with a frozen backbone from public weights is not built, as it would load them.
    """
    check_options(name, options)
    options = json.loads(json.dumps(options))  # as they are read
    spec = options.get("backbone")
    if spec is None or spec["origin"] in ("random", "trained"):
        with _fitting(name), torch.device("meta"):  # allocates nothing, whatever the size
            _compare(timm.create_model(name, **options), weights)


def rebuild(name: str, options: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """Return the net of a release with its `weights`, in evaluation mode; raise as :func:`check_fits` does."""
    check_fits(name, options, weights)
    with _fitting(name):
        net: nn.Module = timm.create_model(name, **options)
        _compare(net, weights)
    net.load_state_dict(dict(weights))
    return net.eval()


@contextmanager
def _fitting(name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise BenchError(f"{name} with the options of the release cannot take its weights: {error}.") from error


def _compare(net: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless names and shapes agree."""
    wanted, found = ({(k, tuple(v.shape)) for k, v in state.items()} for state in (net.state_dict(), weights))
    if wanted != found:
        name, shape = min(wanted ^ found)
        raise ValueError(f"{name[:80]} {list(shape)} is {'missing' if (name, shape) in wanted else 'too much'}")
