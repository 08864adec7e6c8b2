"""The rows of the site: board rows and printed numbers as texts, links and sort values. Computes no numbers."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby
from urllib.parse import quote

from markupsafe import Markup

from bench.core.types import ROBUSTNESS, PrivacyUnit
from bench.reports.attacks import headline, strongest
from bench.reports.board_row import BoardRow
from bench.reports.leaderboard import Source, cells_of
from bench.reports.order import BUDGETS, MARKS, Band, dataset_order
from bench.reports.ranks import resolution
from bench.reports.reported.numbers import Reported, Verdict
from bench.reports.reported.page import NAMES
from bench.reports.reported.systems import PAPERS
from bench.reports.site.addresses import code_href, code_of, method_href, page_name, paper_href, record_href
from bench.reports.site.svg import CARD, LARGE, ONLY_REPORTED, Look, Point, looks, scatter
from bench.results.attack_record import AttackRecord, above
from bench.results.audited import by_student
from bench.results.record import Record, Status
from bench.results.text import epsilon_text

GOALS = ("inversion", "membership", "robustness")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in a row: its text, link, sort value and remark; `more` is a second line in small print."""

    text: str
    href: str = ""
    sort: float | None = None
    note: str = ""
    powerless: bool = False
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """A line of a ranking: a row of the board or a printed number. Addresses are relative to the site."""

    id: str
    ours: bool
    name: str
    """The registered method, or the system if it is none of ours."""
    method: str
    method_href: str
    place: str = "–"
    """Rank within the group; rows that no test tells apart share it, and unranked rows have none."""
    unranked: str = ""
    """Why the row has no rank."""
    cautions: tuple[str, ...] = ()
    """What a reader should know before citing the row."""
    group: str
    """The heading above the row."""
    order: tuple[int, bool, float, str]
    """Sort key: groups ascend; within a group, ranked rows come first, then the others by accuracy."""
    asked: Figure = Figure("–")
    basis: str = ""
    preset: str = ""
    claim: str = ""
    """The mark of the claim, or the verdict on a printed one, in words; "" if nothing is claimed."""
    why: str = ""
    """The reason of :attr:`claim`."""
    fails: bool = False
    """Whether the claim fails."""
    claimed: Figure
    proven: Figure = Figure("–")
    """For the method's adjacency."""
    replaced: Figure = Figure("–")
    """Proven for replace neighbours; determines the rank."""
    audited: Figure = Figure("–")
    risk: Figure = Figure("–")
    """Largest probability of naming one unit's value among 100 candidates, by the proven curve."""
    accuracy: Figure
    seeds: tuple[Figure, ...] = ()
    ran: int = 0
    """Number of seeds, with those whose generator collapsed."""
    whole: Figure = Figure("–")
    """Accuracy on the whole official test set."""
    drop: Figure = Figure("–")
    public: tuple[str, ...]
    public_words: str
    attacks: tuple[Figure, ...] = (Figure("–"),) * len(GOALS)
    cost: Figure = Figure("–")
    remarks: tuple[str, ...] = ()
    where: str = ""
    """Where a number is printed; "" for our rows."""
    paper: Figure = Figure("–")
    code: Figure = Figure("–")
    point: Point
    keys: tuple[str, ...] = ()
    """Keys of the row's records."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows of one data set and privacy unit."""

    id: str
    dataset: str
    unit: str
    rows: tuple[RowView, ...]
    ours: int
    deltas: str
    adjacencies: str
    points: tuple[Point, ...]
    """Our rows in the plots."""
    plot: Markup
    card: Markup
    """The small plot of our rows; "" without any."""
    key: tuple[tuple[str, Look], ...]
    """The methods that the plots name: the best :data:`NAMED`."""
    resolutions: Mapping[str, str]
    """By heading, the smallest lead that its ranks resolve."""

    @property
    def href(self) -> str:
        """Address of its page, relative to the site."""
        return f"datasets/{quote(self.id)}.html"

    @property
    def title(self) -> str:
        """The data set, and the unit if it is not one training record."""
        return self.dataset if self.unit == PrivacyUnit.RECORD.value else f"{self.dataset}, {self.unit}"


def rankings(source: Source) -> list[Ranking]:
    """Return all rankings: those with our rows first, then by data set and unit."""
    audited, attacks = {audit.student for audit in source.audits}, by_student(source.attacks)
    lines: dict[tuple[str, str], list[RowView]] = defaultdict(list)
    own = source.board.tables()
    for key, rows in own.items():
        lines[key] += [own_row(row, audited, attacks) for row in rows]
    numbers: dict[str, int] = defaultdict(int)
    for found in source.reported:
        if found.measure != "accuracy" or not 0 <= found.value <= 100:
            continue
        # A system without privacy fits every unit; list it under the unit record.
        unit = PrivacyUnit.RECORD.value if found.unit == "none" else found.unit
        start = f"{found.paper}-{found.table}-{found.row}-{found.column}"
        numbers[start] += 1
        lines[found.dataset, unit].append(reported_row(found, f"{start}-{numbers[start]}"))
    known = looks(row.method for row in source.board.rows)
    result = [
        _ranking(dataset, unit, sorted(rows, key=lambda row: row.order), own.get((dataset, unit), ()), known)
        for (dataset, unit), rows in lines.items()
    ]
    return sorted(
        result, key=lambda r: (not r.ours, dataset_order(r.dataset), r.unit != PrivacyUnit.RECORD.value, r.unit)
    )


def _ranking(
    dataset: str, unit: str, rows: Sequence[RowView], sources: Sequence[BoardRow], known: Mapping[str, Look]
) -> Ranking:
    named = best_methods(sources)
    points = [replace(row.point, look=known.get(row.name, ONLY_REPORTED), rest=row.name not in named) for row in rows]
    ours = tuple(point for point in points if not point.reported)
    bands = groupby(sources, lambda row: GROUPS[group_of(row.replace_one, row.claimed, True)])
    title = f"{dataset}, unit {unit}: accuracy against proven epsilon"
    return Ranking(
        id=page_name(f"{dataset}-{unit}"),
        dataset=dataset,
        unit=unit,
        rows=tuple(rows),
        ours=len(sources),
        deltas=", ".join(f"{delta:g}" for delta in sorted({row.delta for row in sources})),
        adjacencies=", ".join(sorted({row.adjacency for row in sources})),
        points=ours,
        plot=scatter([replace(point, href=_beside(point.href)) for point in points], title, LARGE),
        card=scatter(ours, title, CARD) if ours else Markup(),
        key=tuple((name, known[name]) for name in named),
        resolutions={heading: said for heading, band in bands if (said := resolution(band))},
    )


def _beside(href: str) -> str:
    """Return an address relative to the site as one relative to the page of a data set."""
    return href if href.startswith("#") else f"../{href}"


NAMED = 8
"""Methods that a plot draws in their colours; a reader cannot tell more apart."""


def best_methods(rows: Iterable[BoardRow]) -> list[str]:
    """Return the :data:`NAMED` best methods: by rank in any band, then by accuracy with a finite proof."""

    def order(row: BoardRow) -> tuple[float, bool, float]:
        return math.inf if row.place is None else row.place, math.isinf(row.replace_one), -row.accuracy

    return list(dict.fromkeys(row.method for row in sorted(rows, key=order)))[:NAMED]


GROUPS = (
    *(f"proven epsilon up to {budget:g}" for budget in BUDGETS),
    f"proven epsilon above {BUDGETS[-1]:g}",
    "no finite epsilon is proven",
    "printed in papers, epsilon not proven",
    "without privacy",
)
"""Headings of a ranking in order: the bands of :mod:`bench.reports.order`, with the unbounded one split in three."""


def group_of(proven: float, claimed: float | None, ours: bool) -> int:
    """Return the index of a row's heading in :data:`GROUPS`."""
    band = Band.of(proven, claimed)
    if not band.private:
        return len(GROUPS) - 1
    if band.limit in BUDGETS:
        return BUDGETS.index(band.limit)
    return len(BUDGETS) + (0 if math.isfinite(proven) else 1 if ours else 2)


def own_row(row: BoardRow, audited_keys: Set[str], attacked: Mapping[str, Sequence[AttackRecord]]) -> RowView:
    """Return the view of a board row."""
    texts = cells_of(row)
    claimed_from = _holder(row.records, row.claimed, "claimed")
    proven_from = _holder(row.records, row.proven, "proven")
    audited_from = row.pair.student if row.pair else next((k for k in row.keys if k in audited_keys), row.keys[0])
    # An audited epsilon above the proven one reveals a bug, so the row is never best.
    ranked = not above(row.audited, row.proven)
    key, citation = row.keys[0], row.records[0].citation
    heading = group_of(row.replace_one, row.claimed, True)
    said = f"proven {texts['proven, replace-one']}, claimed {texts['claimed']}" + f" ({row.claim})" * bool(row.claim)
    said += f", audited {texts['audited']}"
    return RowView(
        id=f"row-{page_name(key)}",
        ours=True,
        name=row.method,
        method=row.method,
        method_href=method_href(row.method),
        place=row.rank,
        unranked=row.unranked,
        cautions=tuple(MARKS[mark] for mark in row.marks),
        group=GROUPS[heading],
        order=(heading, row.place is None, -row.accuracy, row.method),
        asked=Figure("–" if row.asked is None else f"{row.asked:g}", "", row.asked),
        basis=texts["target epsilon (basis)"].partition(" (")[2].rstrip(")"),
        preset=row.preset,
        claim=texts["claim"] if row.claim else "",
        why=row.claim_reason,
        fails=row.claim.bad,
        claimed=Figure(texts["claimed"], record_href(claimed_from, "#epsilons"), row.claimed),
        proven=Figure(texts["proven"], record_href(proven_from, "#epsilons"), row.proven, row.proven_by),
        replaced=Figure(texts["proven, replace-one"], record_href(proven_from, "#epsilons"), row.replace_one),
        audited=Figure(
            row.audited_against, record_href(audited_from, "#audits") if row.audit else "", row.audited, row.audited_by,
            powerless=row.audit is not None and row.audit.silent,
        ),
        risk=Figure(texts["1 in 100"], record_href(proven_from, "#epsilons"), row.risk.reconstruction[1]),
        accuracy=Figure(f"{row.accuracy:.2f}", record_href(key), row.accuracy),
        seeds=tuple(Figure(str(seed), record_href(k)) for seed, k in zip(row.seeds, row.keys, strict=True)),
        ran=len(row.seeds) + row.collapsed,
        whole=Figure(texts["whole test set"]),
        drop=Figure(texts["drop"], record_href(row.baseline.keys[0]) if row.baseline else "", row.drop),
        public=tuple(row.records[0].public_kinds),
        public_words=row.public_data,
        attacks=tuple(attack_figure(goal, row.keys, attacked) for goal in GOALS),
        cost=Figure(texts["time"], record_href(key, "#provenance"), row.cost),
        remarks=row.remarks,
        paper=Figure(citation, paper_href(citation)) if citation else Figure("–"),
        code=Figure(code[0], code_href(row.method)) if (code := code_of(row.method)) else Figure("–"),
        keys=row.keys,
        point=Point(
            row=f"row-{page_name(key)}", href=record_href(key),
            said=f"{row.method}, asked {texts['target epsilon (basis)']}: {texts['accuracy']}%; {said}",
            accuracy=row.accuracy, low=row.low, high=row.high, claimed=row.claimed, proven=row.replace_one,
            reported=False, fails=row.claim.bad, ranked=ranked,
        ),
    )  # fmt: skip


def reported_row(found: Reported, place: str) -> RowView:
    """Return the view of a number printed in a paper; it is never ranked."""
    epsilon = math.inf if found.epsilon is None and found.verdict is Verdict.NONE else found.epsilon
    paper = NAMES.get(found.paper, found.paper)
    where = (
        f"{paper} Tab.\u00a0{found.table}" if re.fullmatch(r"[0-9IVXA-Z.]+", found.table) else f"{paper}, {found.table}"
    )
    claimed = epsilon_text(epsilon)
    # A printed epsilon counts as proven only if the paper proves it and the code has no known flaw.
    proven = epsilon if found.holds and epsilon is not None else math.inf
    label = found.system + (f", {found.setting}" if found.setting else "")
    row_id = f"reported-{page_name(place)}"
    href = method_href(found.method) + "#reported" if found.method else ""
    heading = group_of(proven, 0.0 if epsilon is None else epsilon, False)
    return RowView(
        id=row_id,
        ours=False,
        name=found.method or found.system,
        method=label,
        method_href=href,
        group=GROUPS[heading],
        order=(heading, True, -found.value, label),
        asked=Figure(claimed, "", epsilon),
        claim="" if found.verdict is Verdict.NONE else found.verdicts,
        why=verdict_words(found),
        fails=found.refuted,
        claimed=Figure(claimed, "", epsilon),
        replaced=Figure(epsilon_text(proven, "up"), "", proven) if math.isfinite(proven) else Figure("–"),
        accuracy=Figure(f"{found.value:.2f}", "", found.value),
        public=tuple(found.public_kinds),
        public_words=found.public_data,
        where=where,
        paper=Figure(PAPERS.get(found.paper, paper), paper_href(PAPERS.get(found.paper, ""))),
        point=Point(
            row=row_id, said=f"{label}, reported in {where}: {found.value:.2f}%; claimed {claimed}, {found.verdicts}",
            href=href or f"#{row_id}", accuracy=found.value, low=found.value, high=found.value,
            claimed=math.inf if epsilon is None else epsilon, proven=proven, reported=True, fails=found.refuted,
            ranked=False,
        ),
    )  # fmt: skip


def verdict_words(found: Reported) -> str:
    """Return the reasons for the verdict on a printed number, with their sources, and its note."""
    return found.reasons() + (f"; {found.note}" if found.note else "")


def attack_figure(goal: str, keys: Iterable[str], attacks: Mapping[str, Sequence[AttackRecord]]) -> Figure:
    """Return the result of the strongest attack with this goal on the students `keys`; note attacks without power."""
    done = [a for key in keys for a in attacks.get(key, ()) if a.goal == goal and a.status is Status.DONE]
    if (best := strongest(done, goal)) is not None and (main := headline(best[1])) is not None:
        attack, (estimate, text) = best[1], main
        value, _, rest = text.partition(" ")
        powerless = sum(bool(one.no_power) or headline(one) is None for one in done)
        note = f"{attack.attack}, the strongest of {len(done) - powerless}"
        note += f"; {powerless} more without power" * bool(powerless)
        href = record_href(attack.student, f"#{ROBUSTNESS if goal == ROBUSTNESS else 'attacks'}")
        name = "" if attack.attack == goal else attack.attack
        return Figure(value, href, estimate.value, note, more=f"{rest} {name}".strip())
    if done:
        why = "; ".join(dict.fromkeys(attack.no_power for attack in done if attack.no_power))
        return Figure("no power", record_href(done[0].student, "#attacks"), None, why or "no headline", powerless=True)
    return Figure("–")


def _holder(group: Sequence[Record], epsilon: float, name: str) -> str:
    for record in group:
        if record.privacy is not None and getattr(record.privacy, name).epsilon == epsilon:
            return record.key
    return group[0].key


def interval(row: RowView) -> str:
    """Return the 95% interval of a row's accuracy as text, or "" without one."""
    return f"{row.point.low:.1f}–{row.point.high:.1f}" if row.point.high > row.point.low else ""
