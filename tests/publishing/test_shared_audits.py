"""Audits that rows share: only for the same experiment, with the owner named, and refused for another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.core.types import AuditKind
from bench.publishing.publish import Fate, examine
from bench.publishing.shared_audits import planned_audits, shared
from bench.publishing.verify import demand_audits
from bench.results.attack_record import AuditRecord, PairBound, parse_row
from bench.results.audited import audited_of
from bench.results.full_size import ADDED, has_full_size, lacks_full_size, with_full_size, without_full_size
from bench.results.record import Record, Status, parse_record
from helpers.commands import bench
from helpers.pairs import full_size, pair_audit, release, transcript
from helpers.paths import BOARD
from helpers.records import provenance

OWNER = "mnist-pate-eps10-quick-s0-68885667e3d8"
AUDIT = f"{OWNER}--audit-f7ab16790409.json"
ALIKE = "fmnist-pate-eps10-quick-s0-b490ee501356"  # the same settings on other records of the same number
OTHERS = (
    "fmnist-pate-eps1-quick-s0-aef74855d644",  # other noise
    "cifar10-pate-eps5.8-quick-s0-f4053a151e63",  # images of another shape, other numbers of records
    "mnist-trpate-eps10-quick-s0-15bd95f55544",  # another method with the same events
)


def record_of(key: str) -> Record:
    return parse_record((BOARD / "records" / f"{key}.json").read_bytes())


@pytest.fixture(scope="module")
def audit() -> AuditRecord:
    return without_full_size(parse_row((BOARD / "audits" / AUDIT).read_bytes(), AuditRecord))


def test_rows_that_differ_in_their_data_alone_share_an_audit_and_say_whose(audit: AuditRecord) -> None:
    owner, alike = record_of(OWNER), record_of(ALIKE)
    found = shared(audit, owner, alike)
    assert found is not None
    assert (found.key, found.student, found.dataset) == (f"{ALIKE}--{audit.key[-18:]}", ALIKE, "fmnist")
    assert (found.shared, found.pairs, found.epsilon) == (audit.key, audit.pairs, audit.epsilon)
    assert alike.privacy is not None
    row = audited_of([found], alike.privacy.unit)
    assert row is not None
    assert row.epsilon == audit.epsilon
    assert f"audited by the audit of {OWNER}" in row.audit


def test_no_other_row_gets_it(audit: AuditRecord) -> None:
    owner = record_of(OWNER)
    assert [shared(audit, owner, record_of(key)) for key in OTHERS] == [None, None, None]


def test_an_audit_that_found_a_fault_or_has_only_its_owners_data_is_not_shared(audit: AuditRecord) -> None:
    owner, alike = record_of(OWNER), record_of(ALIKE)
    for change in ({"bypassed": "weights differ"}, {"epsilon": 99.0}, {"shared": "x--y"}, {"pairs": [full_size()]}):
        assert shared(audit.model_copy(update=change), owner, alike) is None
    pairs_of_another_program = [pair.model_copy(update={"pair": "another pair"}) for pair in audit.pairs]
    assert shared(audit.model_copy(update={"pairs": pairs_of_another_program}), owner, alike) is None
    with_full_size = audit.model_copy(update={"pairs": [*audit.pairs, full_size(99.0)], "allowed": 100.0})
    found = shared(with_full_size, owner, alike)
    assert found is not None
    assert found.pairs == audit.pairs
    assert found.epsilon == audit.epsilon


def test_a_pair_at_full_size_is_added_to_a_published_audit_and_to_a_shared_one(tmp_path: Path) -> None:
    run, board = (a_run(tmp_path / name, OWNER, ALIKE) for name in ("run", "board"))
    for folder in (run, board):
        assert bench("audit", "--share", "-o", folder, "-q").returncode == 0
    for path in (run / "audits").iterdir():
        found = parse_row(path.read_bytes(), AuditRecord)
        path.write_text(with_full_size(found, [full_size()], "", [], provenance()).to_json())
    added = examine([run], board)
    completed = [item for item in added.items if item.fate is Fate.COMPLETED]
    assert [item.why for item in completed] == ["it is already there; it got its pair at full size"] * 2
    assert added.refused == []
    assert set(added.files) == {f"audits/{path.name}" for path in (run / "audits").iterdir()}
    changed = with_full_size(found, [full_size()], "", [], provenance()).model_copy(update={"confidence": 0.9})
    path.write_text(changed.to_json())
    assert f"audits/{path.name}" not in examine([run], board).files


@pytest.mark.parametrize(
    ("given", "bound", "kept"),
    [
        (pair_audit(transcript(exact=False)), full_size(exact=False), False),
        (pair_audit(transcript(exact=False)), full_size(), True),
        (pair_audit(transcript(exact=False), notes=["no pair at full size: slow"]), full_size(exact=False), True),
        (pair_audit(transcript(), release()), full_size(exact=False), True),
        (
            pair_audit(transcript(exact=False), notes=["no pair at full size: the same audit"], shared="b--audit-1"),
            full_size(exact=False),
            False,
        ),
    ],
)
def test_a_bound_is_added_only_where_the_audit_left_error_for_it(
    given: AuditRecord, bound: PairBound, kept: bool
) -> None:
    added = with_full_size(given, [bound], "", [], provenance())
    assert added.pairs == [*given.pairs, *[bound] * kept]
    assert has_full_size(added)
    assert ("leaves no error probability" in added.notes[-1]) is not kept
    assert with_full_size(added, [bound], "", [], provenance()).pairs == added.pairs
    slow = with_full_size(given, [], "", ["no pair at full size: slow"], provenance())  # a first try must free no error
    assert with_full_size(slow, [bound], "", [], provenance()).pairs == added.pairs
    differs = with_full_size(given, [], "on the row's own data, one record of 9: weights differ", [], provenance())
    assert differs.violated


def test_which_audits_lack_a_pair_at_full_size() -> None:
    lacking = [pair_audit(transcript()), pair_audit(transcript(), notes=["no pair at full size: slow"])]
    others = [
        pair_audit(transcript(), full_size()), pair_audit(transcript(), notes=[ADDED]),
        pair_audit(bypassed="on the row's own data, one record of 9: weights differ"),
        pair_audit(allowed=None), pair_audit(kind=AuditKind.ONE_RUN), pair_audit(status=Status.FAILED),
    ]  # fmt: skip
    assert [lacks_full_size(audit) for audit in (*lacking, *others)] == [True] * 2 + [False] * 6


def test_the_plan_names_rows_without_an_audit_and_whose_they_can_share(audit: AuditRecord) -> None:
    records = [record_of(key) for key in (OWNER, ALIKE, *OTHERS)]
    plan = {planned.record.key: planned for planned in planned_audits(records, [audit])}
    assert set(plan) == {record.key for record in records} - {OWNER}
    of = {key: planned.audit.shared if planned.audit else None for key, planned in plan.items()}
    assert of.pop(records[1].key) == audit.key
    assert set(of.values()) == {None}
    assert plan[records[3].key].minutes == pytest.approx(audit.provenance.wall_seconds / 60)
    assert plan[records[4].key].reached is None
    guessed = audit.model_copy(update={"kind": AuditKind.CANDIDATES, "pairs": []})
    assert OWNER in {planned.record.key for planned in planned_audits(records, [guessed])}, "guesses bound no epsilon"


def a_run(folder: Path, *keys: str) -> Path:
    for name in ("records", "audits"):
        (folder / name).mkdir(parents=True)
    given = without_full_size(parse_row((BOARD / "audits" / AUDIT).read_bytes(), AuditRecord))
    (folder / "audits" / AUDIT).write_text(given.to_json())
    for key in keys:
        shutil.copy(BOARD / "records" / f"{key}.json", folder / "records")
    (folder / "run.json").write_text('{"layout": 1, "schema": 3}')
    return folder


def test_the_command_shares_and_publish_compares_with_the_owner(tmp_path: Path) -> None:
    run, board = (a_run(tmp_path / name, OWNER, ALIKE) for name in ("run", "board"))
    plan = bench("audit", "--plan", "-o", run, "-q")
    assert plan.returncode == 0, plan.stderr
    assert f"shares that of {OWNER}" in plan.stdout
    assert "1 row can share an audit" in plan.stdout
    assert "1 audit has no pair at the row's own size" in plan.stdout
    made = bench("audit", "--share", "-o", run, "-q")
    assert made.returncode == 0, made.stderr
    (path,) = (run / "audits").glob(f"{ALIKE}--*.json")
    assert [item.why for item in examine([run], board).refused] == []
    salted = {**json.loads((run / "records" / f"{ALIKE}.json").read_bytes()), "noise_salt": "ab" * 32}
    (run / "records" / f"{ALIKE}.json").write_text(json.dumps(salted))
    added = examine([run], a_run(tmp_path / "without", OWNER))
    demand_audits(added)
    assert "no audit of its row runs a pair at the row's own size" in added.refused[0].why
    shutil.copy(BOARD / "records" / f"{ALIKE}.json", run / "records")
    found = parse_row(path.read_bytes(), AuditRecord)
    best = found.pairs[0].model_copy(update={"epsilon": 0.5})
    path.write_text(found.model_copy(update={"pairs": [best], "epsilon": 0.5}).to_json())
    assert "its figures are not those of" in examine([run], board).refused[0].why
    (board / "audits" / AUDIT).unlink()
    (run / "audits" / AUDIT).unlink()
    assert "is not on the board" in examine([run], board).refused[0].why
    both = bench("audit", "--share", "--plan", "-o", run)
    assert both.returncode == 2
    assert both.stderr.endswith(
        "error: --plan, --share and --full-size each replace the audit: give only one of them.\n"
    )
