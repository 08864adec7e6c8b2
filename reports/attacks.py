"""Attack results as tables, computed from records: the student, its controls and their difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from bench.core.grouping import grouped
from bench.core.rows import Estimated
from bench.core.types import NO_PRIVACY, ROBUSTNESS, Family
from bench.results.attack_record import AttackRecord, Role
from bench.results.record import Record, Status
from bench.results.text import markdown_list, markdown_table, md

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
Column = Callable[[AttackRecord], str]
COPIES = "copies"
"""Metric and table of attacks that look for copies among released images."""

INVERSION_METRIC = "committee top-1"
"""Share of reconstructions that all three evaluators assign to the target class."""
ABOVE_COUNTERFACTUAL = f"{INVERSION_METRIC} above counterfactual"
MEMBER_GAP = "ssim member gap above counterfactual"
"""How much closer (SSIM) reconstructions are to members than to non-members, minus the counterfactual's gap."""


def tables(records: Iterable[Record], attacks: Sequence[AttackRecord]) -> list[Table]:
    """Return title, columns and rows of one table per attack goal; omit columns that are empty for all attacks."""
    by_key = {record.key: record for record in records}
    found: list[Table] = []
    for goal, (title, columns) in TABLES.items():
        done = [attack for attack in attacks if _table(attack) == goal and attack.status is Status.DONE]
        texts = {"student": [who(by_key.get(a.student), a) for a in done]}
        texts |= {name: [text(a) for a in done] for name, text in columns.items()}
        shown = {name: column for name, column in texts.items() if {*column} - {"", "–"}}
        if done:
            found.append((title, tuple(shown), list(zip(*shown.values(), strict=True))))
    return found


def _table(attack: AttackRecord) -> str:
    student = attack.targets.get(Role.STUDENT.value)
    return COPIES if student is not None and COPIES in student.metrics else attack.goal


ABOVE = "ABOVE THE PROVEN BOUND"


def exceeded(attack: AttackRecord) -> list[str]:
    """Return a text for each measure of the student on one canary whose lower limit exceeds its bound."""
    metrics = attack.targets[Role.STUDENT.value].metrics if attack.bounds else {}
    found = []
    for name, estimate in metrics.items():
        family, _, measure = name.partition(" ")
        bound = attack.bounds.get(measure, math.inf)
        if family != Family.DUPLICATED and estimate.low is not None and estimate.low > bound:
            found.append(f"{name} is at least {estimate.low:.4f}, and the proven curve allows {bound:.4f}")
    return found


def findings(attacks: Sequence[AttackRecord]) -> list[str]:
    """Return a line for each measure above its bound, then one for each reason for missing power."""
    above = [f"{ABOVE}: {attack.key}: {words}" for attack in attacks for words in exceeded(attack)]
    reasons = grouped((a.no_power, f"{a.attack} on {a.dataset}") for a in attacks if a.no_power)
    return above + [f"no power ({', '.join(dict.fromkeys(where))}): {why}" for why, where in sorted(reasons.items())]


def attacks_page(records: Iterable[Record], attacks: Sequence[AttackRecord]) -> str:
    """Return `attacks` as Markdown, students by data set, method, descending epsilon and seed."""
    every = list(records)
    by_key = {record.key: record for record in every}

    def order(attack: AttackRecord) -> tuple[str, str, float, int, str]:
        record = by_key.get(attack.student)
        if record is None:
            return (attack.dataset, attack.student, 0.0, 0, attack.attack)
        epsilon = math.inf if record.epsilon is None else record.epsilon
        return (record.dataset, record.method, -epsilon, record.seed, attack.attack)

    def section(tables: Iterable[Table]) -> None:
        for title, columns, rows in tables:
            parts.append(f"## {md(title[0].upper() + title[1:])}\n")
            parts.append(markdown_table(columns, rows))

    ordered = sorted(attacks, key=order)
    parts = ["# Attacks on privacy\n"]
    section(tables(every, [attack for attack in ordered if attack.goal != ROBUSTNESS]))
    parts.extend(f"- {md(line)}" for line in findings(attacks))
    parts.append("")
    if apart := tables(every, [attack for attack in ordered if attack.goal == ROBUSTNESS]):
        parts += ["# Robustness, which is not privacy\n", f"{NO_PRIVACY}\n"]
        section(apart)
    failed = [f"`{md(attack.key)}`: {md(attack.failure.reason)}" for attack in attacks if attack.failure is not None]
    return "\n".join([*parts, *([markdown_list("## Failed", failed)] if failed else [])])


def who(record: Record | None, attack: AttackRecord) -> str:
    """Return a short name of the student."""
    if record is None:
        return attack.student
    budget = "no privacy" if record.epsilon is None else f"eps {record.epsilon:g} {record.basis.value}"
    return f"{record.dataset} {record.method} {budget} s{record.seed}"


def score(attack: AttackRecord, role: Role, metric: str, scale: float = 100, *, interval: bool = True) -> str:
    """Return a metric of one target, times `scale`, as text."""
    scores = attack.targets.get(role.value)
    estimate = scores.metrics.get(metric) if scores else None
    if interval or estimate is None:
        return percent(estimate, scale)
    return f"{scale * estimate.value:.1f}"


def _images(attack: AttackRecord) -> str:
    count = attack.details.get("images", 0)
    return f"{count:,}" if isinstance(count, int) else "–"


def _control(role: Role) -> Column:
    # Omit the intervals, which would make the terminal wrap the table; the record has them.
    return lambda attack: score(attack, role, INVERSION_METRIC, interval=False)


def _of_family(role: Role, metric: str, scale: float = 1) -> Column:
    return lambda attack: score(attack, role, f"{_family(attack)} {metric}", scale)


def _of_bound(metric: str, scale: float = 1) -> Column:
    def text(attack: AttackRecord) -> str:
        found, bound = _of_family(Role.STUDENT, metric, scale)(attack), attack.bounds.get(metric)
        if bound is None:
            return found
        digits = 1 if scale == 100 else 3  # rounded up, with the measure's digits
        return f"{found} / {math.ceil(round(10**digits * scale * bound, 6)) / 10**digits:.{digits}f}"

    return text


def _family(attack: AttackRecord) -> str:
    return str(attack.details.get("headline", ""))


def _power(attack: AttackRecord) -> str:
    return ABOVE if exceeded(attack) else "no power" if attack.no_power else ""


def accuracy_text(attack: AttackRecord, role: str = Role.STUDENT.value) -> str:
    """Return the accuracy of one target in %."""
    accuracy = attack.targets[role].accuracy
    return "–" if accuracy is None else f"{100 * accuracy:.1f}"


def _at(place: int) -> Column:
    def text(attack: AttackRecord) -> str:
        swept = _swept(attack)
        return f"{percent(swept[place][1])} at {swept[place][0]:.4g}" if swept else "–"

    return text


TABLES: dict[str, tuple[str, dict[str, Column]]] = {
    "inversion": (
        "model inversion: reconstructions that all three evaluators recognise, in %, 95% intervals over classes",
        {
            "attack": lambda attack: attack.attack,
            "accuracy": accuracy_text,
            "student's": lambda attack: score(attack, Role.STUDENT, INVERSION_METRIC),
            "non-private": _control(Role.NON_PRIVATE),
            "matched": _control(Role.MATCHED),
            "counterfactual": _control(Role.COUNTERFACTUAL),
            "prior": _control(Role.PRIOR),
            "above counterfactual": lambda attack: score(attack, Role.STUDENT, ABOVE_COUNTERFACTUAL),
            "member gap above it": lambda attack: score(attack, Role.STUDENT, MEMBER_GAP, 1),
            "verdict": _power,
        },
    ),
    "membership": (
        "membership: AUC and true-positive rate (%) on the canary family that leaks most without privacy / what the "
        "proven curve allows",
        {
            "attack": lambda attack: attack.attack,
            "family": _family,
            "AUC": _of_bound("auc"),
            "without privacy": _of_family(Role.NON_PRIVATE, "auc"),
            "TPR at 0.1%": _of_bound("tpr@0.001", 100),
            "TPR at 1%": _of_bound("tpr@0.01", 100),
            "verdict": _power,
        },
    ),
    "release": (
        "released images: AUC for distinguishing private training records from others",
        {
            "attack": lambda attack: attack.attack,
            "images": _images,
            "AUC": lambda attack: score(attack, Role.STUDENT, "records auc", 1),
            "of a release of records": lambda attack: score(attack, Role.NON_PRIVATE, "records auc", 1),
            "of other records": lambda attack: score(attack, Role.COUNTERFACTUAL, "records auc", 1),
            "TPR at 1%": lambda attack: score(attack, Role.STUDENT, "records tpr@0.01"),
            "verdict": _power,
        },
    ),
    COPIES: (
        "released images: how many copy a private record, in %, and KID to private records (0: as good as records)",
        {
            "attack": lambda attack: attack.attack,
            "images": _images,
            "copies": lambda attack: score(attack, Role.STUDENT, COPIES),
            "above chance": lambda attack: score(attack, Role.STUDENT, f"{COPIES} above chance"),
            "nearest is private": lambda attack: score(attack, Role.STUDENT, "nearest is private"),
            "of other records": lambda attack: score(attack, Role.COUNTERFACTUAL, "nearest is private"),
            "KID": lambda attack: score(attack, Role.STUDENT, "kid", 1),
            "KID of other records": lambda attack: score(attack, Role.COUNTERFACTUAL, "kid", 1),
            "KID of an untrained generator": lambda attack: score(attack, Role.PRIOR, "kid", 1),
            "verdict": _power,
        },
    ),
    ROBUSTNESS: (
        "adversarial robustness (not privacy): accuracy in % at the smallest and the largest perturbation",
        {
            "clean": lambda attack: score(attack, Role.STUDENT, "clean"),
            "smallest": _at(0),
            "largest": _at(-1),
            "remarks": lambda attack: "; ".join(attack.notes),
        },
    ),
}
"""For each goal, or :data:`COPIES`: the title of its table, and the columns after the student."""


def _swept(attack: AttackRecord) -> list[tuple[float, Estimated]]:
    found = (
        (float(name.rsplit("@", 1)[1]), estimate)
        for name, estimate in attack.targets[Role.STUDENT.value].metrics.items()
        if name.startswith("autoattack@")
    )
    return sorted((pair for pair in found if pair[0] > 0), key=lambda pair: pair[0])


def headline(attack: AttackRecord) -> tuple[Estimated, str] | None:
    """Return the main number of an attack and its text, or None if it has none."""
    if Role.STUDENT.value not in attack.targets:
        return None
    if attack.goal == ROBUSTNESS:  # accuracy under the smallest perturbation
        swept = _swept(attack)
        return (swept[0][1], _at(0)(attack)) if swept else None
    metric, scale = (ABOVE_COUNTERFACTUAL, 100) if attack.goal == "inversion" else (f"{_family(attack)} auc", 1)
    found = attack.targets[Role.STUDENT.value].metrics.get(metric)
    return None if found is None else (found, percent(found, scale))


def strongest(attacks: Iterable[AttackRecord], goal: str) -> tuple[Estimated, AttackRecord] | None:
    """Return the headline of the strongest finished attack with this goal, and the attack; None if none had power."""
    done = [a for a in attacks if a.goal == goal and a.status is Status.DONE and not a.no_power]
    found = [(main[0], a) for a in done if (main := headline(a)) is not None and not math.isnan(main[0].value)]
    # Robustness is an accuracy: the strongest attack has the lowest.
    sign = 1 if goal == ROBUSTNESS else -1
    return min(found, key=lambda pair: (sign * pair[0].value, pair[1].key), default=None)


def percent(estimate: Estimated | None, scale: float = 100) -> str:
    """Return an estimate with its interval, times `scale`."""
    if estimate is None:
        return "–"
    digits = 1 if scale == 100 else 3
    text = f"{scale * estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{scale * estimate.low:.{digits}f}, {scale * estimate.high:.{digits}f}]"
