"""Tables of attacks: the student's figure, its controls, and the difference that counts. Pure functions of records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from bench.core.rows import Estimated
from bench.results.attack_record import AttackRecord, Role, Scores
from bench.results.record import Record, Status
from bench.results.text import md

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]

INVERSION_METRIC = "committee top-1"
"""The share of reconstructions that all three evaluators take for the class they were meant to show."""
MEMBER_GAP = "ssim member gap above counterfactual"
"""How much nearer (SSIM) reconstructions are to the nearest member than to the nearest non-member, beyond what they are
for a target that saw neither: members and test records differ by chance."""


def tables(records: Iterable[Record], attacks: Sequence[AttackRecord]) -> list[Table]:
    """Return title, columns and rows of one table for each goal that `attacks` have."""
    by_key = {record.key: record for record in records}
    found: list[Table] = []
    for goal, columns, row in (
        ("inversion", INVERSION_COLUMNS, inversion_row),
        ("membership", MEMBERSHIP_COLUMNS, membership_row),
        ("robustness", ROBUSTNESS_COLUMNS, robustness_row),
    ):
        rows = [
            row(by_key.get(attack.student), attack)
            for attack in attacks
            if attack.goal == goal and attack.status is Status.DONE
        ]
        if rows:
            found.append((TITLES[goal], columns, rows))
    return found


def powerless(attacks: Sequence[AttackRecord]) -> list[str]:
    """Return a line for each reason why cells have no power, with the attacks and data sets that it speaks of."""
    reasons: dict[str, list[str]] = {}
    for attack in attacks:
        if attack.no_power:
            reasons.setdefault(attack.no_power, []).append(f"{attack.attack} on {attack.dataset}")
    return [f"no power ({', '.join(dict.fromkeys(where))}): {why}" for why, where in sorted(reasons.items())]


def attacks_page(records: Iterable[Record], attacks: Sequence[AttackRecord]) -> str:
    """Return the tables of `attacks` as Markdown, students in the order of data set, method, epsilon and seed."""
    every = list(records)
    by_key = {record.key: record for record in every}

    def order(attack: AttackRecord) -> tuple[str, str, float, int, str]:
        record = by_key.get(attack.student)
        if record is None:
            return (attack.dataset, attack.student, 0.0, 0, attack.attack)
        epsilon = math.inf if record.epsilon is None else record.epsilon
        return (record.dataset, record.method, -epsilon, record.seed, attack.attack)

    parts = ["# Attacks\n"]
    for title, columns, rows in tables(every, sorted(attacks, key=order)):
        parts.append(f"## {title[0].upper()}{title[1:]}\n")
        parts.append("| " + " | ".join(columns) + " |")
        parts.append("|" + "---|" * len(columns))
        parts.extend("| " + " | ".join(md(text) for text in row) + " |" for row in rows)
        parts.append("")
    parts.extend(f"- {md(line)}" for line in powerless(attacks))
    parts.append("")
    failed = [attack for attack in attacks if attack.failure is not None]
    if failed:
        parts.append("## Failed\n")
        parts.extend(f"- `{a.key}`: {md(a.failure.reason if a.failure else '')}" for a in failed)
        parts.append("")
    return "\n".join(parts)


TITLES = {
    "inversion": "model inversion: reconstructions that all three evaluators name, in %, 95% intervals over classes",
    "membership": "membership: AUC and true-positive rate on the family that is given away most without privacy",
    "robustness": "adversarial robustness (no privacy): accuracy in % at the smallest and the largest perturbation",
}
INVERSION_COLUMNS = (
    "student", "attack", "accuracy", "student's", "non-private", "matched", "counterfactual", "prior",
    "above counterfactual", "member gap above it", "verdict",
)  # fmt: skip
MEMBERSHIP_COLUMNS = (
    "student", "attack", "family", "AUC", "without privacy", "TPR at 0.1%", "TPR at 1%", "verdict",
)  # fmt: skip
ROBUSTNESS_COLUMNS = ("student", "clean", "smallest", "largest", "remarks")


def who(record: Record | None, attack: AttackRecord) -> str:
    """Return a student in words."""
    if record is None:
        return attack.student
    budget = "no privacy" if record.epsilon is None else f"eps {record.epsilon:g} {record.basis.value}"
    return f"{record.dataset} {record.method} {budget} s{record.seed}"


def inversion_row(record: Record | None, attack: AttackRecord) -> tuple[str, ...]:
    """Return the row of an inversion attack; the headline is the difference to the counterfactual target."""

    def of(role: Role, metric: str = INVERSION_METRIC, *, scale: float = 100) -> str:
        scores = attack.targets.get(role.value)
        estimate = scores.metrics.get(metric) if scores else None
        if role is not Role.STUDENT:  # the controls' intervals are in the record: here they would fold the table
            return "–" if estimate is None else f"{scale * estimate.value:.1f}"
        return percent(estimate, scale)

    student = attack.targets[Role.STUDENT.value]
    return (
        who(record, attack),
        attack.attack,
        "–" if student.accuracy is None else f"{100 * student.accuracy:.1f}",
        of(Role.STUDENT),
        of(Role.NON_PRIVATE),
        of(Role.MATCHED),
        of(Role.COUNTERFACTUAL),
        of(Role.PRIOR),
        of(Role.STUDENT, f"{INVERSION_METRIC} above counterfactual"),
        of(Role.STUDENT, MEMBER_GAP, scale=1),
        "no power" if attack.no_power else "",
    )


def membership_row(record: Record | None, attack: AttackRecord) -> tuple[str, ...]:
    """Return the row of a membership attack on its headline family."""
    family = str(attack.details.get("headline", ""))
    student, baseline = attack.targets[Role.STUDENT.value], attack.targets.get(Role.NON_PRIVATE.value)

    def of(scores: Scores | None, name: str, scale: float = 1) -> str:
        return percent(scores.metrics.get(f"{family} {name}") if scores else None, scale)

    return (
        who(record, attack),
        attack.attack,
        family,
        of(student, "auc"),
        of(baseline, "auc"),
        of(student, "tpr@0.001", 100),
        of(student, "tpr@0.01", 100),
        "no power" if attack.no_power else "",
    )


def robustness_row(record: Record | None, attack: AttackRecord) -> tuple[str, ...]:
    """Return the row of a robustness sweep: the strongest attack at its ends."""
    swept = _swept(attack)
    clean = attack.targets[Role.STUDENT.value].metrics.get("clean")

    def at(place: int) -> str:
        if not swept:
            return "–"
        size, estimate = swept[place]
        return f"{percent(estimate)} at {size:.4g}"

    return (who(record, attack), percent(clean), at(0), at(-1), "; ".join(attack.notes))


def _swept(attack: AttackRecord) -> list[tuple[float, Estimated]]:
    """Return the accuracy under AutoAttack by the size of the change, sizes rising, without size 0."""
    found = (
        (float(name.rsplit("@", 1)[1]), estimate)
        for name, estimate in attack.targets[Role.STUDENT.value].metrics.items()
        if name.startswith("autoattack@")
    )
    return sorted((pair for pair in found if pair[0] > 0), key=lambda pair: pair[0])


def headline(attack: AttackRecord) -> tuple[Estimated, str] | None:
    """Return the one number of an attack and its text, None where it has none.

    Inversion: how many more reconstructions (in %) the committee names than for a target that saw other records.
    Membership: the AUC on the headline family. Robustness: accuracy in % at the smallest change.
    """
    student = attack.targets.get(Role.STUDENT.value)
    if student is None:
        return None
    if attack.goal == "robustness":
        swept = _swept(attack)
        return (swept[0][1], f"{percent(swept[0][1])} at {swept[0][0]:.4g}") if swept else None
    if attack.goal == "inversion":
        found = student.metrics.get(f"{INVERSION_METRIC} above counterfactual")
        return None if found is None else (found, percent(found))
    found = student.metrics.get(f"{attack.details.get('headline', '')} auc")
    return None if found is None else (found, percent(found, 1))


def percent(estimate: Estimated | None, scale: float = 100) -> str:
    """Return an estimate with its interval, times `scale`."""
    if estimate is None:
        return "–"
    digits = 1 if scale == 100 else 3
    text = f"{scale * estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{scale * estimate.low:.{digits}f}, {scale * estimate.high:.{digits}f}]"
