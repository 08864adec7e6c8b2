"""A plug-in's source is part of its cells' keys, so results of other source are never reused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.interface.registry import METHODS, import_file
from bench.reports.leaderboard import build_board
from bench.results.record import Record
from bench.results.run_dir import RunDir
from helpers.commands import Done, bench
from helpers.plugins import WORSE, source


def run(file: Path, out: Path) -> Done:
    done = bench("run", "-m", file, "-d", "digits", "-e", 10, "-p", "tiny", "-o", out, "--workers", 1)
    assert done.returncode == 0, done.stderr
    return done


def records(out: Path) -> list[Record]:
    return sorted(RunDir(out).read_records().found, key=lambda record: record.provenance.started)


def accuracies(out: Path) -> list[float]:
    return [record.utility.accuracy for record in records(out) if record.utility]


def test_an_edit_of_equal_length_in_the_same_second_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, name = tmp_path / "mine.py", "bench_plugin_of_equal_length"
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "bytecode"))
    monkeypatch.setitem(sys.modules, name, sys)  # what is put there goes at the end
    for value in "12":
        file.write_text(f"value = {value}\n")
        os.utime(file, (1e9, 1e9))
        import_file(name, file)
        assert sys.modules[name].__dict__["value"] == int(value)


def test_an_edited_file_is_run_again(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "runs"
    file.write_text(source())
    run(file, out)
    assert "done already" in run(file, out).stderr
    file.write_text(source(WORSE))
    assert "done already" not in run(file, out).stderr
    good, bad = sorted(accuracies(out), reverse=True)
    assert good > 0.6
    assert bad < 0.2
    assert len({record.cell.plugin.source_sha256 for record in records(out) if record.cell.plugin}) == 2
    assert len({record.key for record in records(out)}) == 2
    told = {row.accuracy > 50: row.remarks[0] for row in build_board(records(out)).rows}
    assert told[True].startswith("an earlier version of its file (SHA-256 ")
    assert not told[False].startswith("an earlier version")


def test_two_files_of_one_name(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    for folder, edits in (("a", ()), ("b", (WORSE,))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(source(*edits))
        run(tmp_path / folder / "mine.py", out)
    assert len(set(accuracies(out))) == 2
    both = ",".join(str(tmp_path / folder / "mine.py") for folder in "ab")
    done = bench("run", "-m", both, "-d", "digits", "-p", "tiny", "-o", out)
    assert done.returncode == 2
    assert "is taken by NoisyMeans in" in done.stderr


def test_an_edited_helper_runs_again_without_its_old_artefact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that another file makes is cached under a name that does not change."""
    monkeypatch.syspath_prepend(tmp_path)
    file, out = tmp_path / "mine.py", tmp_path / "runs"
    cached = (
        "sign = float(context.cache.get('sign', {}, lambda: {'x': torch.tensor([SIGN]).numpy()})['x'][0])\n"
        "        weight = sign * torch.from_numpy(told).float()"
    )
    text = source(("weight = torch.from_numpy(told).float()", cached))
    file.write_text(f"from sign_of_mine import SIGN\n{text}")
    for sign in (1.0, -1.0):
        monkeypatch.delitem(sys.modules, "sign_of_mine", raising=False)
        (tmp_path / "sign_of_mine.py").write_text(f"SIGN = {sign}\n")
        run(file, out)
    good, bad = sorted(accuracies(out), reverse=True)
    assert good > 0.6
    assert bad < 0.2


def test_a_record_of_another_source_is_neither_audited_nor_attacked(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "runs"
    file.write_text(source())
    run(file, out)
    file.write_text(source(WORSE))
    assert bench("audit", "-o", out, "-m", file, "-q").returncode == 1
    (audit,) = RunDir(out).read_audits()[0]
    assert audit.failure is not None
    assert "another source of the plug-in noisy-means made it" in audit.failure.reason
    run(file, out)
    done = bench("audit", "-o", out, "-m", file, "--plan")
    assert done.returncode == 0, done.stderr
    assert "whose methods have changed since they were made" in done.stderr
    assert f"KEY -o {out} --methods {file}" in done.stdout.replace("\n", "")


@pytest.mark.usefixtures("registries_restored")
def test_a_second_file_of_one_method_is_named(tmp_path: Path) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(source())
    METHODS.get(str(tmp_path / "one.py"))
    with pytest.raises(BenchError, match=r"taken by NoisyMeans in .*one\.py"):
        METHODS.get(str(tmp_path / "two.py"))
