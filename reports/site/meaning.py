"""The page on what epsilon means: the bounds of the proven curves on attackers, and what attacks achieved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from markupsafe import Markup, escape
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from bench.core.types import Instrument, PrivacyUnit
from bench.privacy.accounting.risk import PRIORS, RATES
from bench.privacy.auditing.bounds import clopper_pearson
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.reports.board_row import BoardRow
from bench.reports.leaderboard import Source
from bench.reports.site.addresses import record_href
from bench.results.attack_record import AttackRecord, AuditRecord, Role
from bench.results.derived import risks_of
from bench.results.record import Record, Status
from bench.results.text import Table, epsilon_text, risk_text

DELTA = 1e-5
"""Delta of the curves, and of the rows that are drawn beside them."""
EPSILONS = (0.1, 1.0, 3.0, 10.0, 30.0)
"""Epsilons of the table."""
LOW, HIGH = -1, 2
"""Decades of the picture's axis."""
COLOURS = (0, 1, 2)
"""Colour of each prior, among the colours for methods."""


def reconstruction_by_gaussian(epsilon: float, prior: float) -> float:
    """Return the largest success of an attacker who guesses with `prior` against (`epsilon`, 1e-5) Gaussian noise."""
    return float(ndtr(ndtri(prior) + _mu(epsilon)))


@lru_cache(maxsize=1024)
def _mu(epsilon: float) -> float:
    return float(brentq(lambda mu: exact_gaussian_epsilon(mu, DELTA) - epsilon, 1e-4, 100.0, xtol=1e-9))


def gaussian_table() -> Table:
    """Return the curves at a few epsilons."""
    rows = tuple((f"{epsilon:g}", *(said_at(epsilon, prior) for prior in PRIORS)) for epsilon in EPSILONS)
    columns = ("epsilon", *(f"one of {1 / prior:,.0f}" for prior in PRIORS))
    first = ("none released", *(risk_text(prior, 0.0) for prior in PRIORS))
    return Table("Largest probability of naming the record, with Gaussian noise", columns, (first, *rows))


def said_at(epsilon: float, prior: float) -> str:
    """Return the bound of :func:`reconstruction_by_gaussian` as text."""
    return risk_text(reconstruction_by_gaussian(epsilon, prior), epsilon)


LEFT, TOP, RIGHT, BOTTOM, HEIGHT = 64.0, 18.0, 700.0, 372.0, 416.0
"""Pixels of a plot: the edges of its axes, both from 0 to 1, and its height."""


def _x(share: float) -> float:
    return LEFT + share * (RIGHT - LEFT)


def _y(share: float) -> float:
    return BOTTOM - share * (BOTTOM - TOP)


def _start(title: str, across: str, up: str, ticks: Iterable[tuple[float, str]]) -> Iterator[str]:
    """Yield the beginning of a plot, with `ticks` (share of the width, label) on the lower axis."""
    yield (
        f'<svg class="scatter" viewBox="0 0 720 {HEIGHT:g}" role="group" aria-label="{escape(title)}">'
        f'<text class="name mid" x="{_x(0.5):.4g}" y="{HEIGHT - 4:g}">{escape(across)}</text>'
        f'<text class="name mid y-name" transform="translate(13 {_y(0.5):.4g}) rotate(-90)">{escape(up)}</text>'
    )
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        yield f'<path class="grid" d="M{LEFT:g} {y:.4g}H{RIGHT:g}"/>'
        yield f'<text class="tick" x="{LEFT - 5:g}" y="{y + 4:.4g}">{10 * tenth}%</text>'
    for share, label in ticks:
        x = _x(share)
        yield f'<path class="grid" d="M{x:.4g} {TOP:g}V{BOTTOM:g}"/>'
        yield f'<text class="tick{" mid" * (share < 1)}" x="{x:.4g}" y="{BOTTOM + 18:g}">{label}</text>'


def _share(epsilon: float) -> float:
    return (math.log10(epsilon) - LOW) / (HIGH - LOW)


def naming_picture(rows: Sequence[BoardRow]) -> Markup:
    """Return the largest probability of naming a record against epsilon: a curve for each prior, and `rows` as points.

    Only rows with finite proofs at :data:`DELTA`; points that would lie on each other are drawn once.
    """
    decades = range(LOW, HIGH + 1)
    parts = list(
        _start(
            "largest probability of naming a record, against proven epsilon", "proven epsilon",
            "probability of naming the record", ((_share(10.0**d), f"{10.0**d:g}") for d in decades),
        )
    )  # fmt: skip
    steps = [10 ** (LOW + (HIGH - LOW) * i / 120) for i in range(121)]
    seen: set[tuple[int, int, int]] = set()
    for number, prior in enumerate(PRIORS):
        colour = f"k{COLOURS[number]}"
        for row in drawn(rows):
            bound = row.risk.reconstruction[number]
            place = round(_x(_share(row.proven))), round(_y(bound)), number
            if place in seen:
                continue
            seen.add(place)
            said = (
                f"{row.method} on {row.dataset}: proven {epsilon_text(row.proven, 'up')}, one {row.unit} of "
                f"{1 / prior:,.0f} at most {risk_text(bound, row.proven)}"
            )
            parts.append(
                f'<a class="pt {colour}" tabindex="-1" href="{escape(record_href(row.keys[0]))}"><title>{escape(said)}'
                f'</title><circle class="m" cx="{place[0]}" cy="{place[1]}" r="3.4"/></a>'
            )
    for number, prior in enumerate(PRIORS):
        curve = [(_x(_share(e)), _y(reconstruction_by_gaussian(e, prior))) for e in steps]
        line = "L".join(f"{x:.4g} {y:.4g}" for x, y in curve)
        parts.append(f'<path class="curve k{COLOURS[number]}" d="M{line}"/>')
        key = TOP + 28 + 30 * number  # in a corner that no curve reaches
        parts.append(f'<path class="curve k{COLOURS[number]}" d="M{LEFT + 14:g} {key - 5:g}h26"/>')
        parts.append(f'<text class="label" x="{LEFT + 48:g}" y="{key:g}">one of {1 / prior:,.0f}</text>')
    return Markup("\n".join([*parts, "</svg>"]))


def drawn(rows: Iterable[BoardRow]) -> list[BoardRow]:
    """Return the rows that :func:`naming_picture` draws."""
    return [row for row in rows if row.delta == DELTA and 10.0**LOW <= row.proven <= 10.0**HIGH]


class Measured(StrEnum):
    """What is measured, in words."""

    ADVANTAGE = "advantage"
    NAMED = "named"
    MEMBER = f"true positive rate at a false positive rate of {100 * RATES[0]:g}%"


LOOKS = {Measured.ADVANTAGE: "k2", Measured.NAMED: "k3", Measured.MEMBER: "k1 hollow"}
"""The classes of each kind's points."""


@dataclass(frozen=True, slots=True)
class Success:
    """Measured success of an attack on one unit and its bound by the proven curve."""

    student: str
    said: str
    kind: Measured
    bound: float
    proven: float
    value: float
    low: float
    """Lower end of the interval."""

    @property
    def exceeds(self) -> bool:
        """Whether the measured success exceeds the bound."""
        return self.low > self.bound


def successes(source: Source) -> list[Success]:
    """Return the measured successes of attacks and audits on one unit of a row, with the row's bounds."""
    shown = {record.key: record for record in source.shown()}
    found = []
    for audit in source.audits:
        if (record := shown.get(audit.student)) is not None:
            found += list(_of_audit(audit, record))
    for attack in source.attacks:
        if (record := shown.get(attack.student)) is not None:
            found += list(_of_attack(attack, record))
    return sorted(found, key=lambda one: (one.bound, one.value, one.student, one.said))


def _of_audit(audit: AuditRecord, record: Record) -> Iterator[Success]:
    privacy = record.privacy
    # The settings of the audited runs must have the row's proof, and the data sets differ in the row's unit.
    if privacy is None or audit.status is not Status.DONE or audit.record_level or audit.unit is not privacy.unit:
        return
    if audit.allowed is None or not (
        audit.allowed == privacy.proven.epsilon or math.isclose(audit.allowed, privacy.proven.epsilon, rel_tol=1e-6)
    ):
        return
    for one in audit.candidates:
        said = f"1 of {one.candidates:,} candidates by {one.instrument}, {record.method} on {record.dataset}"
        share = one.right / one.runs
        yield Success(record.key, said, Measured.NAMED, one.bound, privacy.proven.epsilon, share, one.low)
    for pair in audit.pairs:
        if pair.instrument is not Instrument.RELEASE or pair.errors is None:
            continue
        wrong, without, missed, with_it = pair.errors
        # Two one-sided bounds that hold jointly, and for all that the audit tried.
        level = 1 - (1 - audit.confidence) / pair.tests
        most_wrong = clopper_pearson(wrong, without, level)[1]
        least_right = clopper_pearson(with_it - missed, with_it, level)[0]
        yield Success(
            record.key, f"audit of {record.method} on {record.dataset}, {without + with_it:,} runs",
            Measured.ADVANTAGE, risks_of(privacy)[0].advantage, privacy.proven.epsilon,
            (with_it - missed) / with_it - wrong / without, least_right - most_wrong,
        )  # fmt: skip


def _of_attack(attack: AttackRecord, record: Record) -> Iterator[Success]:
    if attack.goal != "membership" or attack.status is not Status.DONE or record.privacy is None:
        return
    if record.privacy.unit not in (PrivacyUnit.RECORD, PrivacyUnit.LABEL):  # what the attack guesses is another unit
        return
    metrics = attack.targets[Role.STUDENT.value].metrics
    found = metrics.get(f"{attack.details.get('headline')} tpr@{RATES[0]:g}")
    if found is not None and found.low is not None:
        yield Success(
            record.key, f"{attack.attack} on {record.method}, {record.dataset}", Measured.MEMBER,
            risks_of(record.privacy)[0].tpr[0], record.privacy.proven.epsilon, found.value, found.low,
        )  # fmt: skip


def success_picture(found: Sequence[Success]) -> Markup:
    """Return measured success against its bound; the diagonal is the bound, and a bar reaches to the lower limit."""
    parts = list(
        _start(
            "measured success of attacks, against the proven bound", "bound by the proven curve", "measured",
            ((tenth / 10, f"{10 * tenth}%") for tenth in range(0, 11, 2)),
        )
    )  # fmt: skip
    parts.append(
        f'<path class="band" d="M{_x(0):g} {_y(0):g}L{_x(1):g} {_y(1):g}H{_x(0):g}z"/>'
        f'<path class="curve k0" d="M{_x(0):g} {_y(0):g}L{_x(1):g} {_y(1):g}"/>'
        f'<text class="label tick k0" x="{_x(0.62):.4g}" y="{_y(0.72):.4g}">proven limit'
        "</text>"
    )
    for one in found:
        x, y, low = _x(one.bound), _y(max(one.value, 0.0)), _y(max(one.low, 0.0))
        said = f"{one.said}: {one.kind} {100 * one.value:.1f}%, at least {100 * max(one.low, 0.0):.1f}%; allowed: "
        said += "anything" if math.isinf(one.proven) else f"{risk_text(one.bound, one.proven)}"
        kind = "fails " * one.exceeds + LOOKS[one.kind]
        bar = f'<path d="M{x:.4g} {y:.4g}V{low:.4g}"/>' if low - y > 3 else ""
        parts.append(
            f'<a class="pt {kind}" tabindex="-1" href="{escape(record_href(one.student))}"><title>{escape(said)}'
            f'</title>{bar}<circle class="m" cx="{x:.4g}" cy="{y:.4g}" r="3.8"/></a>'
        )
    return Markup("\n".join([*parts, "</svg>"]))
