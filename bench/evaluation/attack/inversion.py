"""An inversion attack on a student and its controls, scored by evaluators and drawn next to the nearest records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import torch

from bench.core.config import as_dict, changes_from_paper
from bench.core.disclosure import PRIVATE_FIGURES
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Access, Basis, Facts, Knowledge, Reconstructions, Released
from bench.data.datasets import get_dataset
from bench.data.index_hash import ranks
from bench.data.own_arrays import is_features
from bench.data.text import is_text
from bench.evaluation.attack.data_roles import OTHER_PEOPLE, AttackData
from bench.evaluation.attack.evaluators import Committee, gate
from bench.evaluation.attack.face_judge import FaceJudge, face_judge
from bench.evaluation.attack.figures import Column, comparison_grid
from bench.evaluation.attack.inversion_figure import ROWS, column_of, draw, turned
from bench.evaluation.attack.inversion_scores import Observed, Scored, margin, score, summarise
from bench.evaluation.attack.inversion_tuning import Tuned, settings_to_try, tune
from bench.evaluation.attack.noise_verdicts import named_on_noise
from bench.evaluation.attack.reconstruct import committee_on, reconstruct
from bench.evaluation.attack.reference_models import make_control
from bench.evaluation.attack.workplace import Workplace, configured
from bench.experiments.plan import Cell
from bench.experiments.release import load_student
from bench.experiments.run import cache_base
from bench.interface.attack import InversionAttack
from bench.interface.registry import ATTACKS
from bench.results.attack_record import Role, Scores
from bench.results.record import Record
from bench.storage.cache import Cache
from bench.training.context import Context, unnoted
from bench.training.features import trained_part
from bench.training.loop import accuracy

MOST = 40  # largest number of students on an image grid
OBSERVED = 100  # largest number of members, and of non-members, with observed answers


def check_images(attack: str, facts: Facts) -> None:
    """Raise :class:`BenchError` for sentences and rows of features: these attacks follow gradients to pixels."""
    held = "rows of features" if is_features(facts.shape) else ""
    if is_text(facts.shape):
        held = "sentences, through which no gradient flows"
    if held:
        raise BenchError(f"{attack} reconstructs images, and {facts.dataset} holds {held}. Use a membership attack.")


def inversion(
    record: Record, cell: Cell, attack: InversionAttack, key: str, place: Workplace, context: Context
) -> dict[str, Any]:
    """Return the parts of the record of `attack` on the student of `record`."""
    data = place.data_of(cell.dataset)
    facts = data.material.private.facts
    check_images(attack.name, facts)
    if attack.knows is Knowledge.AUXILIARY:
        attack.own_images(data.auxiliary)
    if place.options.tune:
        settings_to_try(attack, data, place.options)  # before evaluators are trained
    committee = committee_of(data, context)
    judge = _judge_of(cell, data, context)
    noise = named_on_noise(committee, facts, judge)
    student = load_student(record, facts, place.run_dir)
    if attack.access in (Access.GENERATOR, Access.SYNTHETIC) and "synthetic_images" not in student.extras:
        raise BenchError(f"{attack.name} needs released images or a generator, and {record.method} released none.")
    observed = observed_of(data, place.options.seed) if attack.knowledge is Knowledge.AUXILIARY else None
    tuned = tune(cell, attack, data, place, context) if place.options.tune else None
    attack = tuned.attack if tuned else attack
    targets_of = {Role.STUDENT: student}
    for role in list(Role)[1:]:
        control = make_control(
            role, student, record.utility.accuracy if record.utility else 0.0, data.material, data.disjoint,
            place.options.preset.value, place.options.seed, context,
        )  # fmt: skip
        if control is not None:
            targets_of[role] = control
    made = _reconstruct_all(attack, targets_of, data, observed, context, place.pool())
    scored: dict[Role, Scored] = {}
    targets: dict[str, Scores] = {}
    with context.progress.stage(f"{attack.name}: scores", len(made)) as stage:
        for role, (found, queries) in made.items():
            scored[role] = score(found, committee, data.members, data.nonmembers, observed, judge, noise)
            net = targets_of[role].student
            trained, tested = trained_part(net, data.material.test_images, context, "test")
            good = accuracy(trained, tested, data.material.test_labels, device=context.device)
            metrics = summarise(scored[role], committee)
            targets[role.value] = Scores(metrics=metrics, accuracy=round(good, 6), queries=queries)
            stage.advance()
    for against in (Role.COUNTERFACTUAL, Role.PRIOR, Role.NON_PRIVATE, Role.MATCHED):
        if against in scored:
            metrics = targets[Role.STUDENT.value].metrics
            metrics[f"committee top-1 above {against}"] = margin(scored[Role.STUDENT], scored[against])
            # Members and test records differ by chance, so only the excess over another target's gap counts.
            beyond = margin(scored[Role.STUDENT], scored[against], "ssim gap")
            metrics[f"ssim member gap above {against}"] = beyond
    picture = f"attacks/{key}.png"
    names, shown = get_dataset(cell.dataset).class_names, list(made)
    if not facts.disclosure.pictures:
        # Figures are shared, but reconstructions from non-private nets are as sensitive as the records.
        names, shown = tuple(f"class {i}" for i in range(facts.classes)), [Role.STUDENT, Role.PRIOR]
        context.note(PRIVATE_FIGURES)
    references = (data.members, data.nonmembers) if facts.disclosure.pictures else None
    drawn = {role: made[role][0] for role in shown}
    draw(place.run_dir.path / picture, drawn, scored, references, names, title=f"{attack.name} on {record.key}")
    nonprivate, prior = (targets[role].metrics["committee top-1"] for role in (Role.NON_PRIVATE, Role.PRIOR))
    return {
        "targets": targets,
        "no_power": gate(nonprivate, prior, facts.classes, committee.false_positives),
        **_settings(attack, data, tuned),
        "evaluators": {kind: round(a, 4) for kind, a in zip(committee.kinds, committee.accuracies, strict=True)},
        "pictures": [picture],
        "details": {
            "images_per_class": len(made[Role.STUDENT][0].labels) // facts.classes,
            "committee": str(committee),
            "judged_on": scored[Role.STUDENT].judged_on,
            "named_on_noise": noise.told(committee.kinds),
            **({} if judge is None else {"embedding_accuracy": judge.accuracy(data.members)}),
            **({} if tuned is None else {"tuning": tuned.told}),
        },
    }


def _settings(attack: InversionAttack, data: AttackData, tuned: Tuned | None) -> dict[str, Any]:
    """Return the record's entries on the attacker's knowledge and on the settings that it chose."""
    used = data.auxiliary.source if data.auxiliary and attack.knows is Knowledge.AUXILIARY else "none"
    if tuned is None:
        return {"auxiliary": used, "knowledge": attack.knows.value}
    return {
        "auxiliary": f"{used}; chose its settings on students of {tuned.told['people']}, with labels",
        "knowledge": Knowledge.AUXILIARY.value,
        "config": as_dict(attack.config),
        "reduced": [*map(str, changes_from_paper(type(attack), attack.config, attack.facts))],
    }


def _judge_of(cell: Cell, data: AttackData, context: Context) -> FaceJudge | None:
    """Return the embedding's judge for a data set of faces; None for others, and, with a note, without its weights."""
    if cell.dataset not in OTHER_PEOPLE:
        return None
    try:
        return face_judge(*data.evaluators, cell.facts.classes, context.device)
    except BenchError as error:
        context.note(f"the face embedding judged nothing: {error}")
        return None


def committee_of(data: AttackData, context: Context) -> Committee:
    """Return the evaluators of a data set; they saw no private and no auxiliary image."""
    known = None if data.auxiliary is None else data.auxiliary.images
    return committee_on(
        data.evaluators, data.held_out, data.material.private.facts, context,
        private=data.members[0], auxiliary=known, tiny=data.tiny,
    )  # fmt: skip


def _reconstruct_all(
    attack: InversionAttack,
    targets: Mapping[Role, Released],
    data: AttackData,
    observed: Observed | None,
    context: Context,
    pool: ProcessPoolExecutor | None,
) -> dict[Role, tuple[Reconstructions, int]]:
    # Run the first target here, since it may train a shared generator; the others run in `pool`.
    auxiliary = data.auxiliary if attack.knows is Knowledge.AUXILIARY else None
    made: dict[Role, tuple[Reconstructions, int]] = {}
    with context.progress.stage(f"{attack.name}: targets", len(targets)) as stage:
        for place, (role, released) in enumerate(targets.items()):
            if place == 1 and pool is not None:
                apart = dataclasses.replace(context, progress=Progress(), note=unnoted, cache=context.cache.silent())
                rest = {
                    pool.submit(reconstruct, attack, other, auxiliary, observed, apart): name
                    for name, other in list(targets.items())[1:]
                }
                for done in as_completed(rest):
                    made[rest[done]] = done.result()
                    stage.advance()
                break
            with context.progress.stage(role.value, 1):
                made[role] = reconstruct(attack, released, auxiliary, observed, context)
            stage.advance()
    return {role: made[role] for role in targets}


def observed_of(data: AttackData, seed: int) -> Observed:
    """Return images for observed answers: equally many members and non-members, chosen by index."""
    parts = []
    for number, (images, labels) in enumerate((data.members, data.nonmembers)):
        count = min(OBSERVED, len(data.members[0]), len(data.nonmembers[0]))
        chosen = torch.from_numpy(ranks(f"observed {seed} {number}", len(images), "observed")[:count].copy())
        parts.append((images[chosen], labels[chosen], torch.full((count,), number == 0)))
    return Observed(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def comparable(records: Sequence[Record], name: str) -> dict[str, list[Record]]:
    """Return the students to compare in one picture after the attack `name`, by data set.

    Empty for attacks other than inversion, and for data whose records no picture may show.
    """
    by_dataset: dict[str, list[Record]] = {}
    if issubclass(ATTACKS.get(name), InversionAttack):
        for record in sorted(records, key=_rank):
            if record.disclosure.pictures:
                by_dataset.setdefault(record.dataset, []).append(record)
    return {dataset: students[:MOST] for dataset, students in by_dataset.items() if len(students) > 1}


def comparison_file(dataset: str, name: str) -> str:
    """Return the path of :func:`compare`'s picture in a run directory."""
    return f"attacks/compare-{dataset}-{name}.png"


def _rank(record: Record) -> tuple[bool, str, float, int]:
    # Non-private first, then each method by descending epsilon.
    return (record.epsilon is not None, record.method, -(record.epsilon or math.inf), record.seed)


def compare(dataset: str, name: str, students: Sequence[Record], place: Workplace) -> None:
    """Write the image grid of an inversion attack on `students` of a data set."""
    data = place.data_of(dataset)
    facts = data.material.private.facts
    options = place.options
    knows = ATTACKS.get(name).knowledge is Knowledge.AUXILIARY
    observed = observed_of(data, options.seed) if knows else None
    shown: list[tuple[str, Reconstructions, list[bool]]] = []
    controls: list[tuple[str, Reconstructions, list[bool]]] = []
    for record in students:
        cell, attack, _ = configured(record, name, place)
        assert isinstance(attack, InversionAttack)
        cache = Cache(place.run_dir.cache_path, cache_base(cell), place.progress.say)
        context = Context(
            torch.device(place.resources.device), Streams(options.seed, f"attack/{name}/"), cache, place.progress
        )
        committee = committee_of(data, context)
        student = load_student(record, facts, place.run_dir)
        targets = [(_title(record), student, shown)]
        if not controls:
            for role in (Role.COUNTERFACTUAL, Role.PRIOR):
                net = make_control(
                    role, student, 0.0, data.material, data.disjoint, options.preset.value, options.seed, context
                )
                if net is not None:
                    targets.append((role.value, net, controls))
        if options.tune:
            attack = tune(cell, attack, data, place, context).attack
        auxiliary = data.auxiliary if attack.knows is Knowledge.AUXILIARY else None
        for title, released, into in targets:
            made, _ = reconstruct(attack, released, auxiliary, observed, context)
            good = committee.predict(made.images.clamp(0, 1)).hits(made.labels)
            if made.reached is not None:
                good &= made.reached
            into.append((title, made, good.tolist()))
    classes = list(dict.fromkeys(shown[0][1].labels.tolist()))[:ROWS]
    images, labels = data.members
    members = torch.stack([images[labels == label][0].float() / 255 for label in classes])
    rows = [Column("a member", members, [""] * len(classes), [None] * len(classes))]
    rows += [column_of(title, made, good, classes, 0, apart=False) for title, made, good in [*shown, *controls]]
    comparison_grid(
        place.run_dir.path / comparison_file(dataset, name),
        [row.title for row in rows], turned(rows, [get_dataset(dataset).class_names[label] for label in classes]), [],
        title=f"{name} on students of {dataset}",
        note="first row: a private record; below: the first try on each student and on the controls; "
        "yes: all three evaluators name it",
    )  # fmt: skip


def _title(record: Record) -> str:
    if record.epsilon is None:
        return f"{record.method}, s{record.seed}"
    basis, epsilon = record.cell.basis, record.epsilon
    if basis is Basis.CLAIMED and record.privacy is not None:
        epsilon = record.privacy.claimed.epsilon  # may be below the target
    return f"{record.method}, {basis} {epsilon:.3g}, s{record.seed}"
