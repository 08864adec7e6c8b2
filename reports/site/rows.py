"""The rows of the site: board rows and printed numbers as texts, links and sort values. It computes no new numbers."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from urllib.parse import quote

from markupsafe import Markup

from bench.core.types import PrivacyUnit
from bench.results.attack_record import AttackRecord, R, above
from bench.results.record import Record, Status
from bench.results.text import epsilon_text
from reports.attacks import headline
from reports.claims import Claim
from reports.leaderboard import BoardRow, Source, cells_of
from reports.order import BUDGETS, Band, dataset_order
from reports.reported.numbers import Reported, Verdict
from reports.reported.page import NAMES
from reports.site.svg import ONLY_REPORTED, Look, Point, axis_of, looks, row_picture, scatter

GOALS = ("inversion", "membership", "robustness")

_PLAIN = re.compile(r"[a-z0-9][a-z0-9._+-]{0,149}")


def page_name(name: str) -> str:
    """Return a safe file stem for `name`, unique without case too: itself where safe, else its letters and a digest."""
    if _PLAIN.fullmatch(name) and not name.endswith("."):
        return name
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    start = re.sub(r"[^a-z0-9]+", "-", letters).strip("-")[:60]
    # Plain names have no "~": no collision.
    return f"{start or 'x'}~{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def record_href(key: str, part: str = "") -> str:
    """Return the address of a record's page, relative to the site."""
    return f"records/{quote(page_name(key))}.html{part}"


def method_href(name: str) -> str:
    """Return the address of a method's page, relative to the site."""
    return f"methods/{quote(page_name(name))}.html"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of a row: its text, link, sort value and remark; `more` is a second line in small print."""

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
    rank: int | None = None
    name: str
    """The registered method, or the system if it is none of ours."""
    method: str
    method_href: str
    asked: str = "–"
    basis: str = ""
    preset: str = ""
    picture: Markup
    claimed: Figure
    proven: Figure = Figure("–")
    replaced: Figure = Figure("–")
    """Proven for replace neighbours, which ranks the row."""
    audited: Figure = Figure("–")
    claim: Claim = Claim.NONE
    claim_text: str = ""
    claim_reason: str = ""
    accuracy: Figure
    seeds: tuple[Figure, ...] = ()
    drop: Figure = Figure("–")
    public: str
    public_words: str
    attacks: tuple[Figure, ...] = (Figure("–"),) * len(GOALS)
    cost: Figure = Figure("–")
    remarks: tuple[tuple[str, str], ...]
    """(short, whole) texts."""
    verdict: str = ""
    verdict_class: str = ""
    where: str = ""
    """Where a number is printed; empty for ours."""
    data: tuple[tuple[str, str], ...]
    point: Point
    band: Band
    """The budget that the row competes in; a printed epsilon counts as proven only where the paper shows it."""

    @property
    def order(self) -> tuple[tuple[bool, float], bool, bool, float, str]:
        """By band; in the unbounded one what is proven first, then ours; then by accuracy."""
        unproven = math.isinf(self.point.proven)
        return self.band.order, unproven, unproven and not self.ours, -self.point.accuracy, self.method


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows of one data set and privacy unit."""

    id: str
    dataset: str
    unit: str
    rows: tuple[RowView, ...]
    ours: int
    attacked: bool
    deltas: str
    adjacencies: str
    plot: Markup
    key: tuple[tuple[str, Look], ...]
    others: bool
    """Whether some systems have no look of their own."""


def by_student(found: Iterable[R]) -> dict[str, list[R]]:
    """Return audits or attacks by their student's key, sorted by their own keys."""
    groups: dict[str, list[R]] = defaultdict(list)
    for one in sorted(found, key=lambda one: one.key):
        groups[one.student].append(one)
    return groups


def rankings(source: Source) -> list[Ranking]:
    """Return all rankings: those with rows of ours first, then by data set and unit."""
    records = {record.key: record for record in source.records}
    audited, attacks = {audit.student for audit in source.audits}, by_student(source.attacks)
    lines: dict[tuple[str, str], list[RowView]] = defaultdict(list)
    own = source.board.tables()
    for key, rows in own.items():
        lines[key] = [own_row(row, [records[key] for key in row.keys], audited, attacks) for row in rows]
    numbers: dict[str, int] = defaultdict(int)
    for found in source.reported:
        if found.measure != "accuracy" or not 0 <= found.value <= 100:
            continue
        # A system without privacy fits every unit; it is listed with unit record.
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
    points = [replace(row.point, look=known.get(row.name, ONLY_REPORTED)) for row in rows]
    names = sorted({row.name for row in rows})
    axis = axis_of(epsilon for point in points for epsilon in (point.claimed, point.proven))
    return Ranking(
        id=page_name(f"{dataset}-{unit}"),
        dataset=dataset,
        unit=unit,
        rows=tuple(rows),
        ours=len(sources),
        attacked=any(figure.text != "–" for row in rows for figure in row.attacks),
        deltas=", ".join(f"{delta:g}" for delta in sorted({row.delta for row in sources})),
        adjacencies=", ".join(sorted({row.adjacency for row in sources})),
        plot=scatter(points, axis, f"{dataset}, unit {unit}: accuracy against epsilon"),
        key=tuple((name, known[name]) for name in names if name in known),
        others=not known.keys() >= set(names),
    )


def glance(every: Iterable[Ranking]) -> list[tuple[Ranking, list[RowView | None]]]:
    """Return each ranking with rows of ours, with its best row within each of :data:`BUDGETS` and without privacy."""
    lines: list[tuple[Ranking, list[RowView | None]]] = []
    for ranking in every:
        # An audited epsilon above the proven one shows a bug: leave the row out.
        ours = [row for row in ranking.rows if row.ours and not above(row.audited.sort, row.proven.sort)]
        within = [[row for row in ours if row.point.proven <= budget] for budget in BUDGETS]
        without = [row for row in ours if math.isinf(row.point.claimed)]
        if ranking.ours:
            lines.append((ranking, [_best(rows) for rows in (*within, without)]))
    return lines


def _best(rows: Sequence[RowView]) -> RowView | None:
    return min(rows, key=lambda row: (-row.point.accuracy, row.point.proven, row.id), default=None)


def small_print(row: RowView) -> str:
    """Return the facts needed to compare a best row with others."""
    proven = [] if math.isinf(row.point.proven) else [f"proven {row.replaced.text}"]
    seeds = "1 seed" if len(row.seeds) == 1 else f"{len(row.seeds)} seeds"
    return ", ".join([*proven, seeds, "no public data" if row.public == "none" else f"public: {row.public}"])


def own_row(
    row: BoardRow, group: Sequence[Record], audited_keys: Set[str], attacked: Mapping[str, Sequence[AttackRecord]]
) -> RowView:
    """Return the view of a row of the board, made from the records `group`."""
    texts = cells_of(row)
    claimed_from = _holder(group, row.claimed, "claimed")
    proven_from = _holder(group, row.proven, "proven")
    audited_from = row.pair.student if row.pair else next((k for k in row.keys if k in audited_keys), row.keys[0])
    said = f"claimed {texts['claimed']}, proven {texts['proven']}, audited {texts['audited']}"
    said += f": the claim {texts['claim']}" if row.claim is Claim.HOLDS else f": {texts['claim']}" * bool(row.claim)
    picture = row_picture(said, claimed=row.claimed, proven=row.proven, audited=row.audited, covered=not row.claim.bad)
    attacks = tuple(attack_figure(goal, row.keys, attacked) for goal in GOALS)
    key = row.keys[0]
    figures = {
        "asked": math.inf if row.asked is None else row.asked, "claimed": row.claimed, "proven": row.proven,
        "replaced": row.replace_one, "audited": row.audited, "accuracy": row.accuracy, "sd": row.spread,
        "drop": row.drop, "cost": row.cost,
        **{goal: figure.sort for goal, figure in zip(GOALS, attacks, strict=True)},
    }  # fmt: skip
    public = group[0].public_kinds
    return RowView(
        id=f"row-{page_name(key)}",
        ours=True,
        name=row.method,
        method=row.method,
        method_href=method_href(row.method),
        asked="–" if row.asked is None else f"{row.asked:g}",
        basis=row.basis,
        preset=row.preset,
        picture=picture,
        claimed=Figure(texts["claimed"], record_href(claimed_from, "#epsilons"), row.claimed),
        proven=Figure(texts["proven"], record_href(proven_from, "#epsilons"), row.proven, row.proven_by),
        replaced=Figure(texts["proven, replace-one"], record_href(proven_from, "#epsilons"), row.replace_one),
        audited=Figure(
            texts["audited"], record_href(audited_from, "#audits") if row.audit else "", row.audited, row.audited_by,
            powerless=row.audit is not None and row.audit.silent,
        ),
        claim=row.claim,
        claim_text=texts["claim"],
        claim_reason=row.claim_reason,
        rank=row.place,
        accuracy=Figure(texts["accuracy"], "", row.accuracy),
        seeds=tuple(Figure(str(seed), record_href(k)) for seed, k in zip(row.seeds, row.keys, strict=True)),
        drop=Figure(texts["drop"], record_href(row.baseline[0]) if row.baseline else "", row.drop),
        public=" + ".join(public),
        public_words=row.public_data,
        attacks=attacks,
        cost=Figure(texts["time"], record_href(key, "#provenance"), row.cost),
        remarks=tuple((_short(remark, group[0]), remark) for remark in row.remarks),
        data=_data(row.method, figures, public, row.preset, row.basis, "ours"),
        point=Point(
            row=f"row-{page_name(key)}", href=record_href(key),
            said=f"{row.method}, asked {texts['target epsilon (basis)']}: {texts['accuracy']}%; {said}",
            accuracy=row.accuracy, spread=row.spread, claimed=row.claimed,
            proven=row.replace_one, reported=False, uncovered=row.claim.bad,
        ),
        band=row.band,
    )  # fmt: skip


def reported_row(found: Reported, place: str) -> RowView:
    """Return the view of a number that a paper prints; it is never ranked."""
    epsilon = math.inf if found.epsilon is None and found.verdict is Verdict.NONE else found.epsilon
    uncovered = found.refuted
    paper = NAMES.get(found.paper, found.paper)
    where = (
        f"{paper} Tab.\u00a0{found.table}" if re.fullmatch(r"[0-9IVXA-Z.]+", found.table) else f"{paper}, {found.table}"
    )
    claimed_text = epsilon_text(epsilon)
    said = f"reported in {where}: claimed {claimed_text}, {found.verdicts}"
    # A printed epsilon counts as proven only if the paper shows it and nothing is known against the code.
    proven = epsilon if found.holds and epsilon is not None else math.inf
    name = found.method or found.system
    label = found.system + (f", {found.setting}" if found.setting else "")
    public = found.public_kinds
    figures = {"asked": epsilon, "claimed": epsilon, "accuracy": found.value}
    row_id = f"reported-{page_name(place)}"
    href = method_href(found.method) + "#reported" if found.method else ""
    return RowView(
        id=row_id,
        ours=False,
        name=name,
        method=label,
        method_href=href,
        picture=row_picture(said, claimed=epsilon, proven=None, audited=None, hollow=True, covered=not uncovered),
        claimed=Figure(claimed_text, "", epsilon),
        claim=Claim.FAILS if uncovered else Claim.HOLDS if found.holds else Claim.NONE,
        accuracy=Figure(f"{found.value:.2f}", "", found.value),
        public=" + ".join(public),
        public_words=found.public_data,
        remarks=(("why", verdict_words(found)),),
        verdict=found.verdicts,
        verdict_class="unsound" if found.refuted else "sound" if found.holds else "unclear",
        where=where,
        data=_data(name, figures, public, "", "", "reported"),
        point=Point(
            row=row_id, said=f"{label}, {said}: {found.value:.2f}%", href=href or f"#{row_id}", accuracy=found.value,
            spread=None, claimed=math.inf if epsilon is None else epsilon, proven=proven,
            reported=True, uncovered=uncovered,
        ),
        band=Band.of(proven, 0.0 if epsilon is None else epsilon),
    )  # fmt: skip


def verdict_words(found: Reported) -> str:
    """Return the reasons for a printed number's verdict, with their places, and its note."""
    return found.reasons() + (f"; {found.note}" if found.note else "")


def attack_figure(goal: str, keys: Iterable[str], attacks: Mapping[str, Sequence[AttackRecord]]) -> Figure:
    """Return the result of the strongest attack with this goal on the students `keys`, noting attacks without power."""
    done = [a for key in keys for a in attacks.get(key, ()) if a.goal == goal and a.status is Status.DONE]
    strong = [(found, attack) for attack in done if not attack.no_power and (found := headline(attack)) is not None]
    # Robustness is an accuracy: the strongest attack has the lowest.
    sign = -1 if goal == "robustness" else 1
    strong = [pair for pair in strong if not math.isnan(pair[0][0].value)]
    strong.sort(key=lambda pair: (-sign * pair[0][0].value, pair[1].key))
    if strong:
        (estimate, text), attack = strong[0]
        value, _, rest = text.partition(" ")
        weak = len(done) - len(strong)
        note = f"{attack.attack}, the strongest of {len(strong)}" + (f"; {weak} more without power" if weak else "")
        href = record_href(attack.student, "#attacks")
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


def _short(remark: str, record: Record) -> str:
    if record.privacy is not None and record.privacy.bypasses and remark == "; ".join(record.privacy.bypasses):
        return "uses private data outside any mechanism"
    if remark.startswith("BUG"):
        return remark
    return re.split(r": | \(| from the paper's", remark, maxsplit=1)[0]


def _data(
    method: str, figures: Mapping[str, float | None], public: Sequence[str], preset: str, basis: str, source: str
) -> tuple[tuple[str, str], ...]:
    numbers = ((name, _number(value)) for name, value in figures.items() if value is not None)
    words = (("method", method), ("public", " ".join(public)), ("preset", preset), ("basis", basis), ("source", source))
    return (*words, *numbers)


def _number(value: float) -> str:
    return "Infinity" if math.isinf(value) else f"{value:.6g}"
