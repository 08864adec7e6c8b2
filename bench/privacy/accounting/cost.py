"""The cost of a mechanism or of a paper's method for given settings: what is claimed, and what is proven."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from typing import Any

from bench.core.errors import BenchError, UnknownNameError
from bench.core.types import Adjacency, Claim
from bench.privacy.accounting.accountants import Accounted, account, proven, replace_one
from bench.privacy.accounting.described import Described, described, settings_of
from bench.privacy.accounting.mechanism_costs import MECHANISMS
from bench.privacy.accounting.paper_costs import PAPERS
from bench.privacy.accounting.risk import Risk, risk
from bench.privacy.events import events
from bench.privacy.events.base_event import EVENTS, Event

_KINDS: Mapping[str, type[Event]] = {
    kind: event for kind, event in EVENTS.items() if kind not in PAPERS and kind != events.Bypass.kind
}


@dataclass(frozen=True, slots=True)
class PrivacyCost:
    """The cost of a mechanism or method at `delta`."""

    mechanism: str
    """Mechanism and settings, in words."""
    delta: float
    claimed: float | None
    """Epsilon by the paper's own analysis; None for a bare mechanism."""
    proven: float
    """The least epsilon of a sound, data-independent accountant, for neighbours by `adjacency`; may be infinite."""
    adjacency: Adjacency
    replace_one: float
    """The proven epsilon for one replaced record."""
    claim: Claim | None = field(repr=False)
    """The claim with its source, and the reason if it does not hold."""
    accountants: tuple[Accounted, ...] = field(repr=False)
    """Every accountant that applies, with its notes."""
    events: tuple[Event, ...] = field(repr=False)
    """What is accounted."""

    def risk(self, group: int = 1) -> Risk:
        """Bound an attacker on one unit, or on a `group` of units, by the proven curve; takes seconds."""
        return risk(self.events, group)


def epsilon(name: str, /, *, delta: float = 1e-5, **setting: Any) -> PrivacyCost:
    """Return the cost of the paper's method or the mechanism `name` with its `setting`; needs no data.

    Papers: ``pate`` (gamma, and queries or votes), ``pate-2018`` (votes, sigma2; with threshold and sigma1
    Confident-GNMax), ``trpate`` (gamma, queries), ``dgd`` (eps0, queries, eps1), ``dpsd`` (beta, classes, batch,
    iterations, sigma), ``dpsd-label`` (epsilon) and ``dp-sgd`` (sigma, steps or epochs, and sampling_rate or batch and
    records). `votes` is an array of counts (queries, classes). Mechanisms are those of a ledger, with their fields:
    ``bench.epsilon("gaussian", noise_multiplier=4.0, count=100)``. They also take the options of ``bench epsilon``:
    ``bench.epsilon("gnmax", sigma=40.0, target_epsilon=1.0)``, and `sigma` for the noise multiplier of ``gaussian``.
    ``dp-sgd`` takes `target_epsilon` too, instead of `sigma`, and then has no claim.

    Raises :class:`BenchError` on an unknown name, a missing or unknown setting, or one out of range.

    Examples:
        >>> cost = bench.epsilon("dp-sgd", sigma=1.1, batch=256, records=60_000, steps=7_000)
        >>> cost.claimed, cost.proven
    """
    return cost_of(_described(name, setting, delta), delta)


def cost_of(asked: Described, delta: float) -> PrivacyCost:
    """Return the cost of the events that `asked` describes."""
    listed, claim = asked.events, asked.claim
    rows = account(listed, delta) if claim is not None else asked.accounted(delta)
    return PrivacyCost(
        mechanism=asked.title or listed[0].describe(),
        delta=delta,
        claimed=None if claim is None else claim.epsilon,
        proven=proven(listed, delta).epsilon,
        adjacency=listed[0].adjacency,
        replace_one=replace_one(listed, delta).epsilon,
        claim=claim,
        accountants=tuple(rows),
        events=tuple(listed),
    )


def _described(name: str, setting: Mapping[str, Any], delta: float) -> Described:
    """Return the description from the function `name`, with further event fields from `setting`."""
    solved = "target_epsilon" in setting and name in MECHANISMS  # a target is not a paper's setting
    make, kind = MECHANISMS[name] if solved else PAPERS.get(name) or MECHANISMS.get(name), _KINDS.get(name)
    fields = {} if kind is None else {n: p.default for n, p in signature(kind).parameters.items()}
    if make is None and kind is None:
        raise UnknownNameError("paper or mechanism", name, {**PAPERS, **MECHANISMS, **_KINDS})
    if make is None:
        _check(name, fields, setting, fields)
        return described(lambda **given: Described([Event.from_dict({"kind": name, **given})]), delta, setting)
    declared = settings_of(make)
    first = {option.second: word for word, (_, option, _) in declared.items()}
    given: dict[str, Any] = {}
    for word, value in setting.items():
        known = word if word in declared else first.get(word, word)
        if known in given:
            raise BenchError(f"{word} of {name} is given twice: {known} is another name of it.")
        given[known] = value
    _check(name, {word: default for word, (_, _, default) in declared.items()}, given, {*declared, *fields})
    asked = described(make, delta, {word: value for word, value in given.items() if word in declared})
    if not given.keys() - declared.keys():
        return asked
    own = {word: value for word, value in given.items() if word not in declared}
    return replace(asked, events=[Event.from_dict({**event.as_dict(), **own}) for event in asked.events])


def _check(name: str, defaults: Mapping[str, Any], given: Mapping[str, Any], known: Collection[str]) -> None:
    for word in given:
        if word not in known:
            raise UnknownNameError(f"setting of {name}", word, known)
    if missing := [word for word, default in defaults.items() if default is Parameter.empty and word not in given]:
        raise BenchError(f"{name} also needs {' and '.join(missing)}.")
