"""Publishing: refusals and their reasons, all-or-nothing writes, and recovery from a stopped command."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import bench.publishing.publish
import bench.results.record
from bench.core.errors import BenchError
from bench.publishing.publish import Fate, examine, opened, rebuild, write
from bench.publishing.reproduce import command_of
from bench.results.record import parse_record
from helpers.paths import FIXTURES
from helpers.publishing import (
    ATTACK,
    AUDIT,
    GNMAX,
    PATE,
    SALT,
    Values,
    all_of,
    publish,
    put,
    refusals,
    values_of,
    with_rows,
)
from helpers.records import failed


def test_a_record_is_added_with_its_command_and_the_board_made_again(run: Path, into: Path) -> None:
    with_rows(run)
    done = publish(run, "--into", into)
    assert done.exit_code == 0, done.output
    assert "added" in done.output
    record = parse_record((into / "records" / f"{PATE}.json").read_text())
    command, _ = command_of(record)
    assert command == f"python -m bench run --methods pate --datasets mnist --eps 10 --seeds 0 --noise-salt {SALT}"
    assert "| pate | 10 (claimed)" in (into / "leaderboard.md").read_text()
    before = all_of(into)
    rebuild(into)
    assert all_of(into) == before
    again = publish(run, "--into", into)
    assert again.exit_code == 0
    assert "it is already there" in again.output
    assert all_of(into) == before


def test_dry_run_writes_nothing(run: Path, into: Path) -> None:
    with_rows(run)
    before = all_of(into)
    done = publish(run, "--into", into, "--dry-run", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["items"][0]["fate"] == "added"
    assert all_of(into) == before


def test_pipes_links_and_huge_files_are_refused(run: Path, into: Path) -> None:
    records = run / "records"
    os.mkfifo(records / "pipe.json")
    (records / "link.json").symlink_to("/dev/zero")
    with open(records / "huge.json", "wb") as file:
        file.truncate(1 << 30)
    lines = refusals(run, into)
    assert [line.partition(":")[0] for line in lines] == [f"runs/records/{n}.json" for n in ("huge", "link", "pipe")]
    assert "larger than" in lines[0]
    assert all("not a regular file" in line for line in lines[1:])


def test_a_record_that_is_refused_is_not_shown_as_added(run: Path, into: Path) -> None:
    done = publish(run, "--into", into, "--dry-run")
    assert done.exit_code == 1
    assert "no seed of its row is audited" in " ".join(done.output.split())
    assert "added" not in done.output


def test_all_problems_are_listed_and_one_bad_record_keeps_the_good_ones_out(run: Path, into: Path) -> None:
    bad = values_of(PATE.replace("s0-68885667e3d8", "s1-29ab235ae57a"))
    bad["queries"]["answered"] = -1
    bad["provenance"]["git_dirty"] = True
    with_rows(run)
    put(run, bad)
    (run / "records" / "torn.json").write_text("{")
    before = all_of(into)
    done = publish(run, "--into", into)
    assert done.exit_code == 1
    for says in ("negative", "modified", "damaged (no JSON", "nothing was written: 3 problems"):
        assert says in done.output
    assert all_of(into) == before


def test_own_user_and_machine_are_not_published(run: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.publishing.validate.getpass.getuser", lambda: "zaphod")
    monkeypatch.setattr("bench.publishing.validate.socket.gethostname", lambda: "magrathea.example")
    values = values_of(PATE)
    values["notes"] = ["made by zaphod", "on magrathea"]
    put(run, values)
    lines = refusals(run, into)
    assert sum("notes holds" in line for line in lines) == 2


def test_failed_cells_are_skipped_and_counted(run: Path, into: Path) -> None:
    put(run, json.loads(failed(key="mnist-pate-failed").to_json()))
    found = examine([run], into)
    assert [(item.fate, item.why) for item in found.items] == [(Fate.ADDED, ""), (Fate.SKIPPED, "the cell failed")]


def test_a_generator_that_collapsed_is_published_with_its_images_and_without_figures(run: Path, into: Path) -> None:
    values, picture = values_of(PATE), b"\x89PNG\r\n\x1a\n pixels"
    bare = {
        **values, "status": "failed", "privacy": None, "utility": None, "student": None,
        "failure": {"kind": "collapsed", "reason": "the generator collapsed"},
        "image_grid": {"file": f"released/{PATE}.png", "sha256": hashlib.sha256(picture).hexdigest()},
    }  # fmt: skip
    (run / "released").mkdir(exist_ok=True)
    (run / "released" / f"{PATE}.png").write_bytes(picture)
    put(run, {**bare, "privacy": values["privacy"]})
    assert any("states figures" in line for line in refusals(run, into))
    put(run, {**bare, "image_grid": None})
    assert [item.why for item in examine([run], into).items if item.kind == "record"] == ["the cell failed"]
    put(run, bare)
    write(examine([run], into), into)
    rebuild(into)
    assert parse_record((into / "records" / f"{PATE}.json").read_text()).collapsed
    page = (into / "leaderboard.md").read_text()
    assert f"`{PATE}`: the generator collapsed [Its images](released/{PATE}.png)" in page


def test_the_same_cell_twice(run: Path, into: Path, tmp_path: Path) -> None:
    write(examine([run], into), into)
    published = (into / "records" / f"{PATE}.json").read_bytes()
    later = values_of(PATE)
    later["provenance"]["started"] = "2030-01-01T00:00:00+00:00"
    put(tmp_path / "later", later)
    found = examine([tmp_path / "later"], into)
    assert [(i.fate, i.why) for i in found.items] == [
        (Fate.SKIPPED, "the same cell with the same result: the published one is kept")
    ]

    other = values_of(PATE)
    other["utility"]["accuracy"] = 0.99
    put(tmp_path / "other", other)
    assert "with another utility" in refusals(tmp_path / "other", into)[0]

    put(tmp_path / "again", {**other, "noise_salt": "5" * 64})
    found = examine([tmp_path / "again"], into)
    assert (found.items[0].fate, found.files) == (Fate.SKIPPED, {})
    assert "with other noise" in found.items[0].why

    other["provenance"]["platform"] = "Darwin arm64"
    put(tmp_path / "elsewhere", other)
    found = examine([tmp_path / "elsewhere"], into)
    assert found.items[0].fate is Fate.SKIPPED
    assert "from another machine" in found.items[0].why
    assert not found.files
    assert (into / "records" / f"{PATE}.json").read_bytes() == published

    write(examine([tmp_path / "other"], into, replace=True), into)
    assert parse_record((into / "records" / f"{PATE}.json").read_text()).utility.accuracy == 0.99  # type: ignore[union-attr]


def test_another_run_of_an_ablation_is_refused_at_once(run: Path, into: Path) -> None:
    """Pages read both folders, and take one result of a cell."""
    put(into / "ablations", {**values_of(PATE), "noise_salt": "5" * 64})
    assert "holds another run of this cell" in refusals(run, into)[0]
    put(into / "ablations", values_of(PATE))
    assert f"records/{PATE}.json" in examine([run], into).files


def test_two_run_directories_with_one_cell_give_it_once(run: Path, into: Path, tmp_path: Path) -> None:
    put(tmp_path / "second", values_of(PATE))
    found = examine([run, tmp_path / "second"], into)
    assert [item.fate for item in found.items] == [Fate.ADDED, Fate.SKIPPED]


def test_a_published_record_gets_the_settings_that_it_lacks(run: Path, into: Path) -> None:
    values = values_of(PATE)
    put(into, {**values, "cell": {**values["cell"], "overrides": None}})
    found = examine([run], into)
    assert [item.fate for item in found.items] == [Fate.COMPLETED]
    write(found, into)
    assert parse_record((into / "records" / f"{PATE}.json").read_text()).cell.overrides == {}


def test_the_same_student_and_ledger_are_the_same_run_whatever_the_accountants_say(into: Path, tmp_path: Path) -> None:
    values = values_of(PATE)
    put(into, values)
    accountants = [{**one, "epsilon": one["epsilon"] * (1 + 1e-12)} for one in values["privacy"]["accountants"]]
    put(tmp_path / "again", {**values, "privacy": {**values["privacy"], "accountants": accountants}})
    found = examine([tmp_path / "again"], into)
    assert found.items[0].fate is Fate.SKIPPED
    assert "another version's accounting" in found.items[0].why
    assert not found.files


def test_a_record_that_does_not_tell_its_settings_gets_them(into: Path, tmp_path: Path) -> None:
    values = values_of(PATE)
    put(tmp_path / "run", {**values, "cell": {**values["cell"], "overrides": None}})
    write(examine([tmp_path / "run"], into), into)
    assert parse_record((into / "records" / f"{PATE}.json").read_text()).cell.overrides == {}


def test_image_grids_are_taken_by_their_digest(run: Path, into: Path) -> None:
    values = values_of(PATE)
    picture = b"\x89PNG\r\n\x1a\n and so on"
    values["image_grid"] = {"file": f"released/{PATE}.png", "sha256": hashlib.sha256(picture).hexdigest()}
    put(run, values)
    assert "image grid is not there" in refusals(run, into)[0]
    (run / "released").mkdir()
    (run / "released" / f"{PATE}.png").write_bytes(picture + b"!")
    assert "differs from the one that it names" in refusals(run, into)[0]
    (run / "released" / f"{PATE}.png").write_bytes(picture)
    write(examine([run], into), into)
    assert (into / "released" / f"{PATE}.png").read_bytes() == picture
    (into / "released" / f"{PATE}.png").unlink()
    found = examine([run], into)
    assert found.items[0].why.endswith("it got its image grid")


def test_pictures_go_with_their_attacks(run: Path, into: Path) -> None:
    with_rows(run)
    write(examine([run], into), into)
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "PNG")
    picture = f"attacks/{ATTACK}.png"
    (run / picture).write_bytes(file.getvalue() + b"more")
    found = examine([run], into)
    assert [(item.fate, item.why) for item in found.items if item.kind == "picture"] == [
        (Fate.SKIPPED, "a damaged PNG file")
    ]
    (run / picture).write_bytes(file.getvalue())
    found = examine([run], into)
    assert any(item.why.endswith("it got its picture") for item in found.items)
    write(found, into)
    assert (into / picture).read_bytes() == file.getvalue()
    assert not examine([run], into).files
    values = values_of(PATE)
    values["student"]["sha256"] = "0" * 64
    put(run.parent / "new", values)
    assert picture in examine([run.parent / "new"], into, replace=True).gone


def test_audits_and_attacks_go_with_their_student(run: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_rows(run)
    write(examine([run], into), into)
    rebuild(into)
    assert (into / "audits" / f"{AUDIT}.json").exists()
    assert "label-gap" in (into / "attacks.md").read_text()
    assert not examine([run], into).files
    # Another student takes their place, so files about the old one are removed.
    values = values_of(PATE)
    values["student"]["sha256"] = "0" * 64
    put(run.parent / "new", values)
    found = examine([run.parent / "new"], into, replace=True)
    assert sorted(found.gone) == [f"attacks/{ATTACK}.json", f"audits/{AUDIT}.json"]

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    # Even if stopped in the middle, no file about the old student stays next to the new one.
    with monkeypatch.context() as stopped:
        stopped.setattr("bench.storage.files.os.replace", kill)
        with pytest.raises(KeyboardInterrupt):
            write(found, into)
    assert not (into / "audits" / f"{AUDIT}.json").exists()
    assert not list(into.rglob("*.tmp"))
    write(examine([run.parent / "new"], into, replace=True), into)
    assert parse_record((into / "records" / f"{PATE}.json").read_text()).student.sha256 == "0" * 64  # type: ignore[union-attr]
    assert not (into / "audits" / f"{AUDIT}.json").exists()


def test_a_record_of_an_older_schema_is_upgraded(into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture has an invented schema 0, in which `accuracy` was next to `status`."""

    def upgrade(values: Values) -> Values:
        utility = {"accuracy": values.pop("accuracy"), "test_records": 1_000}
        return {**values, "schema_version": 1, "utility": utility, "noise_salt": SALT}

    older = FIXTURES / "older" / "record-schema-0.json"
    key = json.loads(older.read_text())["key"]
    (tmp_path / "old" / "records").mkdir(parents=True)
    shutil.copy(older, tmp_path / "old" / "records" / f"{key}.json")
    assert "schema version 0" in refusals(tmp_path / "old", into)[0]
    monkeypatch.setitem(bench.results.record.UPGRADES, 0, upgrade)
    found = examine([tmp_path / "old"], into)
    assert [item.why for item in found.refused] == []
    write(found, into)
    written = json.loads((into / "records" / f"{key}.json").read_text())
    assert written["schema_version"] == 3
    assert written["utility"]["accuracy"] == 0.964


@pytest.mark.parametrize("missing", ["run", "records", "board"])
def test_nothing_to_publish_is_said(run: Path, into: Path, missing: str) -> None:
    if missing == "run":
        shutil.rmtree(run)
    elif missing == "records":
        (run / "records" / f"{PATE}.json").unlink()
    else:
        into = into / "nowhere"
    done = publish(run, "--into", into)
    says = {"run": "no such run directory", "records": "holds no records", "board": "is not a board"}
    assert isinstance(done.exception, BenchError)
    assert says[missing] in str(done.exception)


def test_one_command_at_a_time(into: Path) -> None:
    with opened(into), pytest.raises(BenchError, match="another command is publishing"), opened(into):
        pass


def test_a_full_disk_leaves_the_board_as_it_was(run: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_rows(run)
    before, found, calls = all_of(into), examine([run], into), 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bench.storage.files.os.fsync", full)
    with pytest.raises(BenchError, match="the disk is full"):
        write(found, into)
    assert calls == 3
    assert all_of(into) == before


def test_a_command_stopped_before_the_pages_is_mended_by_the_next(
    run: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rows(run)
    pages = {name: data for name, data in all_of(into).items() if "/" not in name}

    def stopped(folder: Path) -> list[Path]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bench.publishing.publish, "rebuild", stopped)
        publish(run, "--into", into)
    now = all_of(into)
    assert {name: now[name] for name in pages} == pages
    assert f"records/{PATE}.json" in now
    (into / "records" / ".left.json.0.tmp").write_text("of a killed command")
    assert publish(run, "--into", into).exit_code == 0
    assert "| pate | 10 (claimed)" in (into / "leaderboard.md").read_text()
    assert not list((into / "records").glob(".*.tmp"))


def test_pages_are_not_made_over_a_damaged_record(into: Path) -> None:
    before = all_of(into)
    (into / "records" / f"{GNMAX}.json").write_text("{")
    with pytest.raises(BenchError, match="Restore it by git"):
        rebuild(into)
    assert {n: d for n, d in all_of(into).items() if "/" not in n} == {n: d for n, d in before.items() if "/" not in n}


def test_infinite_epsilons_are_no_mistake(into: Path, tmp_path: Path) -> None:
    put(tmp_path / "runs", values_of("mnist-nonprivate-epsinf-quick-s1-86d811d9979d"))
    found = examine([tmp_path / "runs"], into)
    assert [item.fate for item in found.items] == [Fate.ADDED]
    record = parse_record(next(iter(found.files.values())).decode())
    assert record.privacy is not None
    assert math.isinf(record.privacy.proven.epsilon)


def test_the_site_is_made_again(run: Path, into: Path) -> None:
    write(examine([run], into), into)
    pages = rebuild(into)
    assert pages[-1] == into / "site" / "index.html"
    assert any(PATE in path.name or PATE in str(path) for path in (into / "site").rglob("*"))
