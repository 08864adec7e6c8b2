"""Audits of whole pipelines: false claims are caught, honest ones pass, and inconclusive audits say so."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.cli.audit_output import print_audits
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, AuditKind, Facts, Family, PrivacyUnit, PrivateData, PublicData, Released
from bench.evaluation.audit.audit import CHOSEN_SETS, audit_key, audit_student, check_accuracy, count_guesses, events_of
from bench.evaluation.audit.canaries import CanaryPlan, draw_canaries
from bench.evaluation.audit.canary_runs import ShadowRun
from bench.evaluation.audit.options import AuditOptions
from bench.experiments.run import run_cell
from bench.models.build import build
from bench.privacy.auditing.bounds import many_run_epsilon
from bench.privacy.auditing.one_run import one_run_epsilon
from bench.privacy.events.events import Bypass, Event, GNMax, LNMax, RandomizedResponse
from bench.privacy.mechanisms.ledger import Ledger
from bench.reports.leaderboard import build_board, cells_of
from bench.results.attack_record import AuditRecord, Channel, MechanismAudited, parse_row
from bench.results.audited import audited_of, with_audits
from bench.results.record import Record, Status, parse_record
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.one_teacher import OneTeacher, one_cell
from helpers.paths import BOARD
from helpers.records import asked, provenance, record

FACTS = Facts("made", 2_000, 0, 10, 10, (1, 12, 12))
by_canaries = functools.partial(AuditOptions, kind=AuditKind.ONE_RUN)
FAST = by_canaries(canaries=140, guesses=100, draws=20_000, power=False)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As on the command line, because on a busy machine two threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def private(seed: int = 0) -> PrivateData:
    generator = np.random.default_rng(seed)
    images = torch.from_numpy(generator.integers(0, 256, (2_000, 1, 12, 12)).astype(np.uint8))
    return PrivateData(images, torch.from_numpy(np.arange(2_000) % 10), FACTS)


def context() -> Context:
    return Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())


def shadow_run(seed: int, coins: np.ndarray, images: bool = False) -> ShadowRun:
    """A student without any private data."""
    torch.manual_seed(seed)
    extras = {"synthetic_images": torch.rand(30, 1, 12, 12)} if images else {}
    net = build("small_cnn", 10, 1, 12, width=4).eval()
    return ShadowRun(0, coins, Released(net, "small_cnn", {}, extras=extras), 1.0, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE, pytest.param(Adjacency.ADD_REMOVE, marks=pytest.mark.slow)])
def test_a_student_of_no_private_record_is_found_innocent_at_the_stated_confidence(adjacency: Adjacency) -> None:
    data, found, audits, images = private(), 0, 300, adjacency is Adjacency.REPLACE
    for seed in range(audits):
        plan = CanaryPlan(outlier=100, natural=60, seed=seed)
        canaries = draw_canaries(data, plan, PrivacyUnit.RECORD, adjacency)
        options = by_canaries(canaries=100, guesses=60, seed=seed)
        channels = count_guesses([shadow_run(seed, canaries.coins(0, 0), images)], canaries, options, 1e-5, context())
        assert len(channels) == 1 + images
        found += any(channel.epsilon > 0 for channel in channels)
    # One in forty for each of two channels by the bound, plus three standard deviations for 300 trials.
    level = 0.025 * (1 + images)
    assert found <= level * audits + 3 * (level * (1 - level) * audits) ** 0.5


@pytest.mark.slow
def test_a_pipeline_that_trains_without_noise_under_a_small_epsilon_is_caught(tmp_path: Path) -> None:
    with one_cell(tmp_path, "epochs=40", "images=0") as (cell, run_dir, source):
        student = run_cell(cell, run_dir, source, Progress())
        audit = audit_student(student, FAST, run_dir, source, Progress())
        again = audit_student(student, FAST, run_dir, source, Progress())
    assert audit.status is Status.DONE, audit.failure
    assert student.privacy is not None
    assert audit.allowed is not None
    assert audit.epsilon is not None
    assert audit.allowed == pytest.approx(student.privacy.proven.epsilon)
    assert audit.epsilon > max(1.0, audit.allowed)
    assert audit.violated
    assert audit.verdict.startswith("VIOLATED")
    assert audit.accuracy is not None
    assert audit.accuracy > 0.8, "the audited student must be a student"
    # Two queries with Laplace noise: the curve is that of their losses.
    (channel,) = audit.channels
    assert channel.curve_family == "pld"
    assert channel.curve is not None
    assert channel.curve > channel.epsilon
    # The shadow runs were cached, so the second audit trained nothing and gives the same result.
    assert again.provenance.artefacts_made == 0
    assert again.channels == audit.channels
    (board_row,) = build_board([student], [audit]).rows
    assert board_row.audited == audit.epsilon
    assert any("BUG: audited > proven" in remark for remark in board_row.remarks)
    (filled,) = with_audits([student], [audit])
    assert filled.privacy is not None
    assert filled.privacy.audited is not None
    assert filled.privacy.audited.epsilon == audit.epsilon


class Shy(OneTeacher):
    """Learns from private labels, and trains nothing where it recognises an audit."""

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        if context.streams.prefix:
            self.config = dataclasses.replace(self.config, epochs=0.01)
        return super().train_student(private, public, ledger, context)


@pytest.mark.parametrize("kind", [AuditKind.ONE_RUN, AuditKind.MANY_RUN])
def test_an_audit_of_shadow_runs_that_learn_far_less_than_the_record_fails(kind: AuditKind, tmp_path: Path) -> None:
    options = by_canaries(canaries=10, guesses=4, draws=0, power=False)
    if kind is AuditKind.MANY_RUN:
        options = AuditOptions(kind=kind, runs=8, draws=0)
    with one_cell(tmp_path, "epochs=10", "images=0", method=Shy) as (cell, run_dir, source):
        student = run_cell(cell, run_dir, source, Progress())
        audit = audit_student(student, options, run_dir, source, Progress())
    assert audit.status is Status.FAILED
    assert "the shadow runs have accuracy 0." in audit.verdict
    assert audited_of([audit], PrivacyUnit.RECORD) is None
    assert run_dir.read_audits()[0] == [audit]


def test_seeds_of_one_pipeline_are_not_told_apart_by_their_accuracy() -> None:
    """On the committed board, where some pipelines hardly learn and others differ by 20 points."""
    groups: dict[str, list[Record]] = {}
    for path in sorted((BOARD / "records").glob("*.json")):
        found = parse_record(path.read_text())
        if found.utility is not None and found.student is not None:
            alike = found.cell.model_copy(update={"seed": 0}).model_dump_json() + str(sorted(found.config.items()))
            groups.setdefault(alike, []).append(found)
    pairs = [pair for group in groups.values() for pair in itertools.permutations(group, 2)]
    assert len(pairs) > 400
    far = []
    for one, other in pairs:
        assert one.utility is not None
        assert other.utility is not None
        assert one.student is not None
        classes = one.student.options.get("num_classes", 10)
        try:
            check_accuracy(one.utility.accuracy, other.utility.accuracy, classes, one.utility.test_records)
        except BenchError:
            far.append(one.cell.method)
    # At quick these generators catch few classes or none: 8% to 28%.
    assert set(far) <= {"datalens", "dp-sinkhorn", "g-pate", "gs-wgan", "pate-gan"}
    assert len(far) < len(pairs) / 100


@pytest.mark.parametrize(
    ("record", "shadow", "far"), [(0.9, 0.4, True), (0.9, 0.5, False), (0.12, 0.1, False), (0.1, 0.05, False)]
)
def test_how_much_less_is_far_less(record: float, shadow: float, far: bool) -> None:
    with pytest.raises(BenchError, match="behave differently") if far else contextlib.nullcontext():
        check_accuracy(record, shadow, 10, 1000)


def test_audits_on_the_board_are_of_shadow_runs_like_their_records() -> None:
    for path in sorted((BOARD / "audits").glob("*.json")):
        audit = parse_row(path.read_text(), AuditRecord)
        found = parse_record((BOARD / "records" / f"{audit.student}.json").read_text())
        assert found.utility is not None
        assert found.student is not None
        if audit.kind in CHOSEN_SETS:  # runs on sets of the auditor's choice have no accuracy to compare
            assert audit.accuracy is None
            continue
        assert audit.accuracy is not None
        check_accuracy(
            found.utility.accuracy, audit.accuracy, found.student.options["num_classes"], found.utility.test_records
        )


def test_released_images_are_a_channel_of_their_own(tmp_path: Path) -> None:
    """A student that learnt nothing, released with the private images."""
    data = private()
    canaries = draw_canaries(data, CanaryPlan(outlier=100, natural=100), PrivacyUnit.RECORD, Adjacency.REPLACE)
    coins = canaries.coins(0, 0)
    innocent = shadow_run(0, coins)
    side = torch.from_numpy(coins.astype(np.int64))
    stolen = canaries.images[torch.arange(len(canaries)), side].float() / 255
    innocent.released.extras["synthetic_images"] = stolen
    channels = count_guesses([innocent], canaries, by_canaries(canaries=100, guesses=60), 1e-5, context())
    assert {c.name: c.correct for c in channels}["released images"] == 60
    assert {c.name: c.epsilon for c in channels}["released images"] > 2
    assert {c.name: c.epsilon for c in channels}["student"] == 0


@pytest.mark.parametrize(
    ("events", "family", "printed"),
    [
        ([GNMax(40.0, 100)], "gaussian", "5.59"),
        ([LNMax(0.05, 100)], "pld", "5.54"),
        ([RandomizedResponse(1.0, 10)], "", "–"),
        ([GNMax(40.0, 100), Bypass("raw images")], "", "–"),
    ],
)
def test_the_bound_by_a_curve_stands_beside_the_audited_one(
    events: list[Event], family: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = private()
    canaries = draw_canaries(data, CanaryPlan(outlier=100, natural=100), PrivacyUnit.RECORD, Adjacency.REPLACE)
    coins = canaries.coins(0, 0)
    run = shadow_run(0, coins)
    side = torch.from_numpy(coins.astype(np.int64))
    run.released.extras["synthetic_images"] = canaries.images[torch.arange(len(canaries)), side].float() / 255
    channels = count_guesses([run], canaries, by_canaries(canaries=100, guesses=60), 1e-5, context(), events)
    without = count_guesses([run], canaries, by_canaries(canaries=100, guesses=60), 1e-5, context())
    assert [(c.epsilon, c.cap) for c in channels] == [(c.epsilon, c.cap) for c in without]
    assert {c.curve_family for c in channels} == {family}
    audit = counted(0, channels=channels, epsilon=max(c.epsilon for c in channels))
    (filled,) = with_audits([record(key="a")], [audit])
    assert filled.privacy is not None
    assert filled.privacy.audited is not None
    assert filled.privacy.audited.epsilon == audit.epsilon
    assert parse_row(audit.model_dump_json(), AuditRecord) == audit
    print_audits([audit])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert (f"by curve: {printed}" in lines) is bool(family)
    assert "could show at most: 2.75" in lines
    (row,) = [line.split() for line in lines if line.startswith("│ a ")]
    assert row[7] == "2.75"


def test_the_curve_of_a_ledger_is_that_of_its_own_unit() -> None:
    student = record(unit=PrivacyUnit.CLIENT)
    assert student.privacy is not None
    events = [GNMax(40.0, 100, unit=PrivacyUnit.CLIENT)]
    privacy = student.privacy.model_copy(update={"events": [event.as_dict() for event in events]})
    student = student.model_copy(update={"privacy": privacy})
    assert events_of(student, PrivacyUnit.CLIENT) == events
    assert events_of(student, PrivacyUnit.RECORD) == [], "a client's curve is not that of one of its records"
    assert events_of(record(privacy=None), PrivacyUnit.RECORD) == []


@pytest.mark.slow
def test_an_audit_over_many_runs_finds_the_same_lie(tmp_path: Path) -> None:
    with one_cell(tmp_path, "epochs=8", "images=0") as (cell, run_dir, source):
        student = run_cell(cell, run_dir, source, Progress())
        options = AuditOptions(kind=AuditKind.MANY_RUN, runs=12, draws=0)
        audit = audit_student(student, options, run_dir, source, Progress())
    assert audit.status is Status.DONE, audit.failure
    (channel,) = audit.channels
    assert channel.errors is not None
    assert channel.errors[1] + channel.errors[3] == 6, "half of the runs chose the threshold"
    assert channel.correct >= 5
    assert channel.cap < 1, "six runs cannot certify more"
    assert audited_of([audit], PrivacyUnit.RECORD) is not None


def counted(correct: int, student: str = "a", options: str = "audit-1", **changes: object) -> AuditRecord:
    channel = Channel(
        name="student", family="outlier", canaries=1000, guesses=100, correct=correct, epsilon=0.0, cap=3.46
    )
    given: dict[str, object] = {
        "key": f"{student}--{options}", "student": student, "status": Status.DONE, "method": "pate",
        "dataset": "mnist", "unit": PrivacyUnit.RECORD, "adjacency": Adjacency.REPLACE, "delta": 1e-5,
        "confidence": 0.95, "plan": {}, "runs": 1, "channels": [channel], "epsilon": 0.0, "allowed": 4.0,
        "provenance": provenance(),
    }  # fmt: skip
    return AuditRecord(**{**given, **changes})  # type: ignore[arg-type]


def test_the_audits_of_several_seeds_are_one_audit_of_all_their_runs() -> None:
    pooled = audited_of([counted(80, "a"), counted(84, "b")], PrivacyUnit.RECORD)
    assert pooled is not None
    assert pooled.epsilon == pytest.approx(one_run_epsilon(2000, 200, 164, 1e-5, 0.975))


def test_several_audits_of_one_student_pay_for_their_number() -> None:
    best = audited_of([counted(84), counted(50, options="audit-2")], PrivacyUnit.RECORD)
    assert best is not None
    assert best.epsilon == pytest.approx(one_run_epsilon(1000, 100, 84, 1e-5, 0.9875))
    assert best.epsilon < one_run_epsilon(1000, 100, 84, 1e-5, 0.975)


def test_each_audit_of_many_runs_pays_for_itself() -> None:
    def many(student: str) -> AuditRecord:
        channel = counted(98).channels[0].model_copy(update={"canaries": 1, "errors": (1, 50, 1, 50)})
        return counted(98, student, "audit-many", channels=[channel])

    def bound(tests: int) -> float:
        return many_run_epsilon(1, 50, 1, 50, 1e-5, 1 - 0.05 / tests).epsilon

    # Counts of several seeds are not pooled here, because each seed is another chance to be lucky.
    for count, figure in ((1, 1.98), (2, 1.86), (3, 1.79)):
        found = audited_of([many(str(seed)) for seed in range(count)], PrivacyUnit.RECORD)
        assert found is not None
        assert found.epsilon == pytest.approx(bound(2 * count))
        assert found.epsilon == pytest.approx(figure, abs=0.005)
    both = audited_of([many("a"), many("b"), counted(50, "a"), counted(50, "b")], PrivacyUnit.RECORD)
    assert both is not None
    assert both.epsilon == pytest.approx(bound(6)), "seeds of a one-run audit are one audit"


def test_an_audit_of_records_says_nothing_of_a_query_s_label() -> None:
    assert audited_of([counted(90)], PrivacyUnit.QUERY_LABEL) is None
    assert audited_of([counted(90)], PrivacyUnit.CLIENT) is None, "whose record a client holds depends on others"
    student = record(unit=PrivacyUnit.QUERY_LABEL)
    (row,) = build_board([student], [counted(90, student.key)]).rows
    assert row.audited is None
    assert any("audited at record level" in remark for remark in row.remarks)
    assert not any("BUG" in remark or "refuted" in remark for remark in row.remarks)


def test_no_power_is_said_where_no_noise_would_not_be_seen_either() -> None:
    student = record()

    def audit(seen: float, **changes: object) -> AuditRecord:
        power = counted(50).channels[0].model_copy(update={"epsilon": seen})
        return counted(50, student.key, power=[power], claimed=1.0, **changes)

    blind = audit(0.9)
    assert blind.verdict == "no power"
    (row,) = build_board([student], [blind]).rows
    assert row.audited is None
    assert row.audited_text == "inconclusive (sees at most 0.90)"
    assert "audit without power: 0.90 seen without any noise" in row.remarks
    assert audit(1.1).verdict == "consistent"
    assert audit(1.1, epsilon=1.05).verdict == "claim refuted"
    assert audit(1.1, epsilon=4.1).verdict.startswith("VIOLATED")
    assert audit(1.1, allowed=float("inf")).verdict == "nothing is proven"


def test_a_broken_mechanism_fails_the_audit_whatever_the_student_shows() -> None:
    broken = MechanismAudited(kind="gnmax", parameters={}, draws=10, epsilon=2.0, exact=1.0, verdict="violated")
    student = record()
    audit = counted(50, student.key, mechanisms=[broken])
    assert audit.violated
    (row,) = build_board([student], [audit]).rows
    assert any("gnmax gives away more" in remark for remark in row.remarks)
    assert "inconclusive (sees at most 3.46)" in cells_of(row).values(), (
        "less than is proven: 0.00 would sound like a result"
    )


def test_what_cannot_be_told_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    with one_cell(tmp_path, "epochs=1", "images=0") as (cell, run_dir, source):
        student = run_cell(cell, run_dir, source, Progress())
        out_of_reach = dataclasses.replace(FAST, refute=8.0)
        audit = audit_student(student, out_of_reach, run_dir, source, Progress())
        assert audit.failure is not None
        assert "guess" in audit.failure.reason
        crowded = audit_student(student, by_canaries(canaries=2_000, draws=0), run_dir, source, Progress())
        assert crowded.failure is not None
        assert "too few private records" in crowded.failure.reason
        other = asked(student, method_version=99)
        stale = audit_student(other, FAST, run_dir, source, Progress())
        assert stale.failure is not None
        assert "version 99" in stale.failure.reason
    with pytest.raises(BenchError, match="even and at most"):
        by_canaries(canaries=100, guesses=101).fitted(10_000)
    with pytest.raises(BenchError, match="confidence"):
        AuditOptions(confidence=1.5)
    with pytest.raises(BenchError, match="8 runs or more"):
        AuditOptions(kind=AuditKind.MANY_RUN, runs=3)


def test_an_audit_that_cannot_begin_leaves_its_record(tmp_path: Path) -> None:
    with one_cell(tmp_path, "epochs=1", "images=0") as (cell, run_dir, source):
        student = run_cell(cell, run_dir, source, Progress())
        odd = audit_student(student, by_canaries(guesses=101), run_dir, source, Progress())
    stranger = audit_student(student, FAST, run_dir, source, Progress())  # its method is known no longer
    for audit, reason in ((odd, "even and at most"), (stranger, "unknown method")):
        assert audit.status is Status.FAILED
        assert audit.failure is not None
        assert reason in audit.failure.reason
        assert (audit.unit, audit.adjacency) == (PrivacyUnit.RECORD, OneTeacher.adjacency)
    assert {audit.key for audit in run_dir.read_audits()[0]} == {odd.key, stranger.key}


def test_every_option_that_changes_a_bound_is_in_the_key() -> None:
    student = record()
    keys = {audit_key(student, FAST)}
    for change in ({"canaries": 150}, {"guesses": 50}, {"runs": 2}, {"family": Family.MISLABELLED}, {"confidence": 0.9},
                   {"seed": 1}):  # fmt: skip
        keys.add(audit_key(student, dataclasses.replace(FAST, **change)))  # type: ignore[arg-type]
    assert len(keys) == 7
