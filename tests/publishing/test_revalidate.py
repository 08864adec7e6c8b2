"""`bench publish --all`: what leaves a board, what stays with a remark, and what a stopped command repeats."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bench.core.progress import Progress
from bench.evaluation.check import noninterference
from bench.publishing.outcomes import Outcomes
from bench.publishing.publish import Fate, Item, Publication, rebuild, write
from bench.publishing.revalidate import MOVED, revalidate
from bench.results.record import Record
from bench.results.replays import read_replays
from bench.storage.interrupts import Stopped
from helpers.commands import bench
from helpers.paths import BOARD
from helpers.publishing import ATTACK, AUDIT, GNMAX, PATE, all_of, all_pass_the_check, publish

OF_PATE = {f"records/{PATE}.json", f"audits/{AUDIT}.json", f"attacks/{ATTACK}.json"}


@pytest.fixture
def board(into: Path) -> Path:
    """A board of three committed records; only one of them has an audit and an attack."""
    for name in OF_PATE:
        (into / name).parent.mkdir(exist_ok=True)
        shutil.copy(BOARD / name, into / name)
    rebuild(into)
    return into


def edit(board: Path, key: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = board / "records" / f"{key}.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values, indent=1) + "\n")


def validated(board: Path, replay: Callable[[Record], Item]) -> Publication:
    """Validate with `replay` for the replays."""
    with (
        all_pass_the_check(),
        mock.patch("bench.publishing.revalidate.replayed", lambda record, *given: replay(record)),
    ):
        return revalidate(board, Outcomes(board), Progress())


def passes(record: Record) -> Item:
    return Item("replay", record.key, Fate.PASSED, "equal releases")


def test_rows_that_only_lack_audits_stay_and_are_listed_with_the_command(board: Path) -> None:
    before = all_of(board)
    done = publish("--all", "--into", board, "--json")
    assert done.exit_code == 0, done.output
    items = {item["file"].split("/")[-1]: item for item in json.loads(done.stdout)["items"]}
    assert {item["fate"] for item in items.values()} == {"flagged"}
    assert f"no seed of its row is audited. Audit one: python -m bench audit {GNMAX}" in items[f"{GNMAX}.json"]["why"]
    assert "no audit of its row runs a pair at the row's own size" in items[f"{PATE}.json"]["why"]
    assert len(items) == 2
    assert all_of(board) == before


def test_a_record_that_contradicts_its_ledger_moves_with_all_that_belongs_to_it(board: Path) -> None:
    edit(board, PATE, lambda values: values["privacy"]["proven"].update(epsilon=0.5))
    before = all_of(board)
    dry = publish("--all", "--into", board, "--dry-run")
    assert (dry.exit_code, all_of(board)) == (1, before)
    assert "1 record would move" in dry.output
    done = publish("--all", "--into", board)
    assert done.exit_code == 1, done.output
    for name in OF_PATE:
        assert not (board / name).exists()
        assert (board / "ablations" / name).read_bytes() == before[name]
    ((key, why),) = list(csv.reader((board / MOVED).open()))[1:]
    assert key == PATE
    assert "0.5" in why
    assert PATE not in (board / "leaderboard.csv").read_text()
    after = all_of(board)
    assert publish("--all", "--into", board).exit_code == 0
    assert all_of(board) == after


def test_each_replay_is_kept_at_once_and_not_repeated(board: Path) -> None:
    tried: list[str] = []

    def stopped(record: Record) -> Item:
        tried.append(record.key)
        if len(tried) == 2:
            raise Stopped(15)
        return passes(record)

    with pytest.raises(Stopped):
        validated(board, stopped)
    assert [one.key for one in read_replays(board)] == tried[:1]
    validated(board, stopped)
    assert sorted(tried) == sorted([PATE, GNMAX, tried[1]])
    assert {one.key for one in read_replays(board)} == {PATE, GNMAX}
    validated(board, stopped)
    assert len(tried) == 3
    replays = json.loads((board / "replays.json").read_text())
    for one in replays:
        if one["key"] == PATE:
            one["source_sha256"] = "0" * 64  # the method's file was edited since
    (board / "replays.json").write_text(json.dumps(replays))
    validated(board, stopped)
    assert tried[3:] == [PATE]


def test_a_replay_of_an_edited_method_counts_no_longer_and_one_of_an_absent_plugin_stays(board: Path) -> None:
    validated(board, passes)
    replays = {one["key"]: one for one in json.loads((board / "replays.json").read_text())}
    replays[PATE]["source_sha256"] = "0" * 64
    replays[GNMAX]["method"] = "not-installed"
    (board / "replays.json").write_text(json.dumps(list(replays.values())))
    with all_pass_the_check():
        revalidate(board, Outcomes(board), Progress(), minutes=0)
    assert [one.key for one in read_replays(board)] == [GNMAX]


def test_a_published_run_s_replay_joins_those_on_the_board(board: Path) -> None:
    validated(board, passes)
    (old,) = [one for one in read_replays(board) if one.key == PATE]
    new = old.model_copy(update={"date": "2030-01-01"})
    write(Publication(replays=[new]), board)
    assert {one.key: one.date for one in read_replays(board)}[PATE] == "2030-01-01"
    assert len(read_replays(board)) == 2


@pytest.mark.parametrize("artefacts", [0, 3])
def test_a_replay_need_not_reproduce_what_used_artefacts_of_unknown_origin(
    board: Path, artefacts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Artefacts made on another processor change the student: no reason to move a method's rows."""
    edit(board, PATE, lambda values: values["provenance"].update(artefacts_found=artefacts))
    asked: dict[str, object] = {}

    def replayed(record: Record, stated: object, failed: Fate) -> Item:
        asked[record.key] = stated
        return passes(record)

    monkeypatch.setattr("bench.publishing.revalidate.stated_here", lambda record: "stated")
    monkeypatch.setattr("bench.publishing.revalidate.replayed", replayed)
    with all_pass_the_check():
        revalidate(board, Outcomes(board), Progress())
    assert asked[PATE] == (None if artefacts else "stated")


def test_a_failed_replay_moves_the_method_s_rows_on_that_data_and_an_impossible_one_none(board: Path) -> None:
    def rejects(fate: Fate) -> Callable[[Record], Item]:
        return lambda record: (
            Item("replay", record.key, fate, "the releases differ") if record.key == PATE else passes(record)
        )

    impossible = validated(board, rejects(Fate.FLAGGED))
    assert impossible.files == {}
    assert impossible.unchecked == {"a replay of their method on their data set; the same command continues": 1}
    failed = validated(board, rejects(Fate.REFUSED))
    assert set(failed.gone) == OF_PATE
    (moved,) = [item for item in failed.items if item.fate is Fate.MOVED]
    assert moved.why == f"the replay of {PATE}: the releases differ"


def test_a_rejected_method_loses_its_rows(board: Path) -> None:
    rejected = noninterference.Check("pate", noninterference.CheckVerdict.REJECTED, "it reads the private images")
    passed = noninterference.Check("", noninterference.CheckVerdict.PASSED, "")
    with (
        mock.patch(
            "bench.evaluation.check.noninterference.check_method",
            lambda kind, **options: rejected if kind.name == "pate" else passed,
        ),
        mock.patch("bench.publishing.revalidate.replayed", lambda record, *given: passes(record)),
    ):
        found = revalidate(board, Outcomes(board), Progress())
    assert set(found.gone) == OF_PATE
    assert [one.key for one in read_replays(board)] == [GNMAX]


def test_nothing_more_starts_after_the_minutes(board: Path) -> None:
    with all_pass_the_check():
        found = revalidate(board, Outcomes(board), Progress(), minutes=0)
    assert {item.kind for item in found.items} == {"record"}


def test_the_row_and_the_page_name_the_replay(board: Path) -> None:
    validated(board, passes)
    rebuild(board)
    rows = {row["method"]: row["replayed"] for row in csv.DictReader((board / "leaderboard.csv").open())}
    assert rows == {"pate": PATE, "pate-gnmax": GNMAX, "nonprivate": ""}
    (page,) = (board / "site" / "records").glob(f"*{PATE[-12:]}*.html")
    assert "One run on other private data" in page.read_text()


def test_a_damaged_replay_file_is_one_line(board: Path) -> None:
    (board / "replays.json").write_text("[{]")
    done = publish("--all", "--into", board)
    assert done.exit_code != 0
    assert "replays.json cannot be read" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name the run directories to publish, or give --all"),
        (("runs", "--all"), "one of the two"),
        (("--all", "--replace"), "give neither --rerun nor --replace"),
        (("runs", "--minutes", "3"), "--minutes belongs to --all"),
    ],
)
def test_contradicting_options_are_refused(words: tuple[str, ...], said: str) -> None:
    done = bench("publish", *words)
    assert done.returncode != 0
    assert said in " ".join(done.stderr.replace("│", " ").split())
