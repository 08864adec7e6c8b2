"""Configs (frozen dataclasses of :func:`setting` fields with the paper's defaults), presets, overrides and grids."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, get_type_hints

from bench.core.errors import BenchError, UnknownNameError, first_problem
from bench.core.lazy_libraries import pydantic
from bench.core.risk_target import RiskTarget
from bench.core.types import Basis, Budget, Facts, TargetAdjacency

if TYPE_CHECKING:
    from bench.core.rows import Change

T = TypeVar("T")


class DataclassInstance(Protocol):
    """An instance of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


class Configured(Protocol):
    """Interface shared by methods and attacks: a name, a config dataclass and presets."""

    name: ClassVar[str]
    Config: ClassVar[type]

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """Return the config changes of ``quick`` and ``tiny`` for data with these `facts`."""


class Preset(StrEnum):
    """Scale of a run: the paper's setting or a reduced one."""

    PAPER = "paper"
    QUICK = "quick"
    TINY = "tiny"


class NoiseKind(StrEnum):
    """Source of mechanism noise."""

    SEEDED = "seeded"
    SECURE = "secure"


class PrecisionKind(StrEnum):
    """Arithmetic of teacher training and inference; see :mod:`bench.core.precision`."""

    FLOAT32 = "float32"
    TF32 = "tf32"
    BF16 = "bf16"


class Reuse(StrEnum):
    """Which existing records count as done."""

    DONE = "done"
    ALL = "all"
    NONE = "none"


_BOUNDS = {
    "gt": ("above", operator.gt),
    "ge": ("at least", operator.ge),
    "lt": ("below", operator.lt),
    "le": ("at most", operator.le),
}


def setting(
    default: T, source: str, *, later: bool = False, gt: float | None = None, ge: float | None = None,
    lt: float | None = None, le: float | None = None,
) -> T:  # fmt: skip
    """Return a config field. Keys and records omit a `later` field (added after records existed) at its default.

    `gt`, `ge`, `lt` and `le` bound a number, or each number of a tuple; a bounded number must be finite. None is
    accepted.
    """
    bounds = {name: bound for name, bound in (("gt", gt), ("ge", ge), ("lt", lt), ("le", le)) if bound is not None}
    return dataclasses.field(default=default, metadata={"source": source, "later": later, "bounds": bounds})


def check_bounds(kind: type[Configured], values: Mapping[str, Any]) -> None:
    """Raise :class:`BenchError` if one of the `values` (by field) violates the bounds of its :func:`setting`.

    A subclass that changes a setting's default keeps its bounds, unless it states others.
    """
    for field in dataclasses.fields(kind.Config):
        stated = [vars(base).get("__dataclass_fields__", {}).get(field.name) for base in kind.Config.__mro__]
        value, found = values.get(field.name), (own.metadata.get("bounds") for own in stated if own is not None)
        bounds: Mapping[str, float] | None = next(filter(None, found), None)
        if value is None or not bounds:
            continue
        numbers = value if isinstance(value, (tuple, list)) else (value,)
        if not all(abs(n) < math.inf and all(_BOUNDS[b][1](n, bound) for b, bound in bounds.items()) for n in numbers):
            words = [
                "positive" if (name, bound) == ("gt", 0) else f"{_BOUNDS[name][0]} {bound}"
                for name, bound in bounds.items()
            ]
            if isinstance(field.default, float) and not {"lt", "le"} & set(bounds):
                words.append("finite")
            raise BenchError(
                f"{kind.name}.{field.name} must be {' and '.join(words)}, not {value}. The paper's value is "
                f"{field.default}."
            )


def source_of(config: type, field: str) -> str:
    """Return the source of the default of `field`, or "" if unknown."""
    return str(config.__dataclass_fields__[field].metadata.get("source", ""))  # type: ignore[attr-defined]


def as_dict(config: DataclassInstance) -> dict[str, Any]:
    """Return the config as JSON values, without `later` fields at their default."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if not all(map(_is_plain, values.values())):
        values = dataclasses.asdict(config)  # slow
    return {
        field.name: list(value) if isinstance(value, tuple) else value
        for field in dataclasses.fields(config)
        for value in [values[field.name]]
        if not (field.metadata.get("later") and getattr(config, field.name) == field.default)
    }


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | None) or (isinstance(value, tuple) and all(map(_is_plain, value)))


@functools.lru_cache(maxsize=512)  # building one takes milliseconds, and a board has thousands of records
def _validator(kind: type) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(kind)


def config_from(kind: type[Configured], values: Mapping[str, Any]) -> Any:
    """Invert :func:`as_dict`; raise :class:`BenchError` if `values` no longer fit the config class."""
    known = {field.name for field in dataclasses.fields(kind.Config)}
    needed = {field.name for field in dataclasses.fields(kind.Config) if not field.metadata.get("later")}
    if not needed <= set(values) <= known:
        odd = ", ".join(sorted((set(values) - known) | (needed - set(values))))
        raise BenchError(f"the settings of {kind.name} have changed since that record was written: {odd}.")
    try:
        config: object = _validator(kind.Config).validate_python(dict(values))
    except pydantic.ValidationError as error:
        raise BenchError(f"a setting of {kind.name} is no longer valid: {first_problem(error)[1]}.") from error
    check_bounds(kind, values)
    return config


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of one ``run``: methods x datasets x epsilons x seeds, in one preset."""

    methods: tuple[str, ...]
    datasets: tuple[str, ...] = ("mnist",)
    epsilons: tuple[float, ...] = (1.0, 10.0)
    seeds: tuple[int, ...] = (0,)
    preset: Preset = Preset.QUICK
    basis: Basis = Basis.CLAIMED
    delta: float | None = None  # None: default_delta() of each data set
    noise: NoiseKind = NoiseKind.SEEDED
    precision: PrecisionKind = PrecisionKind.FLOAT32
    overrides: tuple[str, ...] = ()
    """``FIELD=VALUE`` applies to every method that has the field, ``METHOD.FIELD=VALUE`` to one method."""
    adjacency: TargetAdjacency = TargetAdjacency.REPLACE_ONE
    """Adjacency of a target on the proven basis."""
    risk: RiskTarget | None = None
    """Replaces the epsilons; needs the proven basis."""

    def __post_init__(self) -> None:
        examples = {"methods": "--methods pate", "datasets": "--datasets mnist", "epsilons": "--eps 1,10"}
        for name, example in examples.items():
            if not getattr(self, name):
                raise BenchError(f"no {name} given. Example: {example}.")
        if self.risk is not None and self.basis is not Basis.PROVEN:
            raise BenchError("--risk bounds the proven curve. Leave out --basis, or give --basis proven.")
        for epsilon in self.epsilons:
            Budget(epsilon, 1e-5 if self.delta is None else self.delta)
        if any(seed < 0 for seed in self.seeds):
            raise BenchError("seeds must not be negative. Try --seeds 0,1,2.")


def seed_numbers(text: str) -> tuple[int, ...]:
    """Parse seeds such as ``0,3`` or ``0-4``; raise :class:`BenchError` on anything else."""
    found: dict[int, None] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        first, dash, last = word.partition("-")
        ends = (first, last or first) if dash and first else (word, word)
        try:
            start, end = map(int, ends)
        except ValueError:
            raise BenchError(
                f"--seeds takes comma-separated whole numbers and ranges, such as 0,3 or 0-4, not {word!r}."
            ) from None
        if (dash and first and not last) or end < start or end - start >= MOST_SEEDS:
            raise BenchError(f"--seeds {word} is not a range of at most {MOST_SEEDS:,} seeds. Write 0-4 for 0,1,2,3,4.")
        found |= dict.fromkeys(range(start, end + 1))
    return tuple(found)


MOST_SEEDS = 10_000


def default_delta(private_records: int) -> float:
    """Return the largest power of ten below 1/n, at most 1e-5: 1e-5 for MNIST, 1e-6 for CelebA."""
    return 10.0 ** -max(5, math.floor(math.log10(max(private_records, 1))) + 1)


def build_config(
    method: type[Configured], preset: Preset, facts: Facts, overrides: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Any, list[Change]]:
    """Return the config with `overrides` by field applied, and its changes from the paper's config.

    Raises :class:`BenchError` on an invalid value or an unknown preset or setting.
    """
    presets = method.presets(facts)
    fields = [field.name for field in dataclasses.fields(method.Config)]
    for name in (name for preset in presets.values() for name in preset):
        if name not in fields:
            raise UnknownNameError(f"setting in {method.name}.presets()", name, fields)
    paper = dataclasses.replace(method.Config(), **presets.get(Preset.PAPER.value, {}))
    changes: dict[str, Any] = {}
    if preset is not Preset.PAPER:
        if preset.value not in presets:
            raise BenchError(f"{method.name} has no preset {preset.value!r}; it has paper, {', '.join(presets)}.")
        changes.update(presets[preset.value])
    changes.update(overrides)
    check_bounds(method, changes)
    config = dataclasses.replace(paper, **changes)
    return config, changes_from_paper(method, config, facts)


def changes_from_paper(method: type[Configured], config: DataclassInstance, facts: Facts) -> list[Change]:
    """Return the differences between `config` and the paper's config."""
    from bench.core.rows import Change

    paper = dataclasses.replace(method.Config(), **method.presets(facts).get(Preset.PAPER.value, {}))
    before, after = dataclasses.asdict(paper), dataclasses.asdict(config)
    return [Change.of(name, before[name], after[name]) for name in before if before[name] != after[name]]


class Override(NamedTuple):
    """A field set by the user: its name and text as given, without the method's name, and the typed value."""

    name: str
    text: str
    value: Any


def parse_overrides(method: type[Configured], overrides: Sequence[str]) -> dict[str, Override]:
    """Return the overrides for `method`, by field; those without a method's name apply wherever they fit.

    Raise :class:`BenchError` on malformed text or a wrong type, :class:`UnknownNameError` on an unknown field.
    """
    known = {field.name: field for field in dataclasses.fields(method.Config)}
    found: dict[str, Override] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BenchError(f"cannot read --set {text!r}. Write FIELD=VALUE or METHOD.FIELD=VALUE.")
        owner, dot, given = name.rpartition(".")
        if dot and owner != method.name:
            continue
        field = _alias(given, known)
        if field in known:
            found[field] = Override(given, value, _parse_value(method, field, value))
        elif dot:
            raise UnknownNameError(f"option of {method.name}", field, known)
    return found


def values_of(overrides: Mapping[str, Override]) -> dict[str, Any]:
    """Return the typed values of `overrides`, by field."""
    return {field: given.value for field, given in overrides.items()}


_ALIKE = (
    ("noise_multiplier", "sigma", "noise_scale", "noise"), ("batch_size", "batch"), ("lr", "learning_rate"),
    ("max_grad_norm", "clip", "clipping_norm", "max_norm"), ("epochs", "student_epochs", "steps", "iterations"),
)  # fmt: skip
"""Names that different methods and papers use for the same thing."""


def check_overrides(methods: Sequence[type[Configured]], overrides: Sequence[str]) -> None:
    """Raise :class:`UnknownNameError` if an override fits none of `methods`, BenchError if one is given twice."""
    given = [text.partition("=")[0] for text in overrides]
    for name in given:
        if given.count(name) > 1:
            raise BenchError(f"--set {name} is given {given.count(name)} times. Give it once.")
    fields = {method.name: {field.name for field in dataclasses.fields(method.Config)} for method in methods}
    for text in overrides:
        if "=" not in text:
            raise BenchError(f"cannot read --set {text!r}. Write FIELD=VALUE or METHOD.FIELD=VALUE.")
        owner, dot, field = text.partition("=")[0].rpartition(".")
        if dot and owner not in fields:
            raise UnknownNameError("method in --set", owner, fields)
        known = fields[owner] if dot else set().union(*fields.values())
        if _alias(field, known) not in known:
            meant = next((name for alike in _ALIKE if field in alike for name in alike if name in known), "")
            raise UnknownNameError(f"option of {owner}" if dot else "option in --set", field, known, meant=meant)


def _alias(field: str, known: Collection[str]) -> str:
    """Return ``backbone`` for ``teacher`` if the teachers are heads on one frozen backbone, otherwise `field`."""
    return "backbone" if field == "teacher" and field not in known and "backbone" in known else field


def _parse_value(method: type[Configured], field: str, text: str) -> Any:
    kind = get_type_hints(method.Config)[field]
    try:
        return pydantic.TypeAdapter(kind).validate_python(None if text in ("none", "null") else text)
    except pydantic.ValidationError as error:
        _, problem = first_problem(error)
        default = method.Config.__dataclass_fields__[field].default  # type: ignore[attr-defined]
        raise BenchError(f"--set {method.name}.{field}={text}: {problem}. The paper's value is {default}.") from error


def field_table(method: type[Configured], presets: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Return (name, paper value, quick value, source) for each config field, for ``bench show``."""
    paper = dataclasses.asdict(method.Config())
    quick = presets.get("quick", {})
    return [
        (name, str(value), str(quick[name]) if name in quick else "", source_of(method.Config, name))
        for name, value in paper.items()
    ]


def needed_overrides(
    method: type[Configured], preset: Preset, facts: Facts, overrides: Mapping[str, Override]
) -> dict[str, Override]:
    """Return the smallest subset of `overrides` that gives `method` the same config."""
    config, _ = build_config(method, preset, facts, values_of(overrides))
    needed = dict(overrides)
    for field in overrides:
        without = {name: given for name, given in needed.items() if name != field}
        with contextlib.suppress(BenchError):  # the others depend on it
            if build_config(method, preset, facts, values_of(without))[0] == config:
                needed = without
    return needed
