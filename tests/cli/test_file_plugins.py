"""A method in a user's file: how the commands describe it and report its mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.paths import GRID_METHOD

PLUGIN = """
'''Mine: a method of a user.'''
from bench.interface import Adjacency, Claim, Gaussian, register_method
from bench.methods.nonprivate import NonPrivate


@register_method("mine")
class Mine(NonPrivate):
    STATEMENT

    def train_student(self, *given):
        raise AssertionError("it has begun to train")
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with one student of a method in a file, next to that file."""
    folder = tmp_path_factory.mktemp("plugin")
    done = bench("run", "-m", GRID_METHOD, "-d", "digits", "-p", "tiny", "-e", "1", "-o", folder / "runs", "-q")
    assert done.returncode == 0, done.stderr
    return folder / "runs"


@pytest.mark.parametrize("command", ["audit", "attack"])
@pytest.mark.parametrize("words", [(), ("-m", "grid-test")])
def test_students_whose_file_is_not_given_are_an_error(command: str, words: tuple[str, ...], ran: Path) -> None:
    done = bench(command, *words, "-o", ran, "-q")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the method grid-test is not registered. Give its file: --methods PATH/grid_method.py." in done.stderr


@pytest.mark.parametrize("words", [(GRID_METHOD,), ("-m", GRID_METHOD), ("digits-grid", GRID_METHOD)])
def test_a_file_is_audited_wherever_it_stands(words: tuple[str | Path, ...], ran: Path) -> None:
    done = bench("audit", *words, "-o", ran, "--minutes", "0.01", "--draws", "0", "--json", "-q")
    assert [audit["student"][:11] for audit in json.loads(done.stdout)["audits"]] == ["digits-grid"], done.stderr


def test_an_audit_of_a_file_without_a_student_says_so(ran: Path, tmp_path: Path) -> None:
    done = bench("audit", plugin(tmp_path, ""), "-o", ran, "-q")
    assert done.returncode == 2
    assert "unknown method among the students 'mine'" in done.stderr


def test_show_tells_what_the_records_say_of_a_method_in_a_file(ran: Path) -> None:
    done = bench("show", "grid-test", "-o", ran)
    assert done.returncode == 0
    shown = " ".join(done.stdout.split())  # folded
    assert "grid-test: a method of the plug-in grid_method.py." in shown
    assert "python -m bench show PATH/grid_method.py" in shown
    assert "seconds" in shown
    assert "give the file's path" in bench("show", "grid-tes", "-o", ran).stderr
    assert "A method whose cells take a moment" in bench("show", GRID_METHOD).stdout


def plugin(folder: Path, statement: str) -> Path:
    path = folder / "mine.py"
    path.write_text(PLUGIN.replace("STATEMENT", statement))
    return path


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("claimed = classmethod(lambda *_: 1.0)", "mine.claimed() returns float, not a Claim"),
        ("claimed = classmethod(lambda *_: Claim(float('nan'), 1e-5, 'mine'))", "epsilon is a number from 0 to inf"),
        ("claimed = classmethod(lambda *_: Claim(1.0, 1e-5, None))", "source and note are texts"),
        ("charges = classmethod(lambda *_: [1.0])", "mine.charges() returns [1.0]"),
        (
            "charges = classmethod(lambda *_: [Gaussian(1.0, adjacency=Adjacency.ADD_REMOVE)])",
            "mine.charges() returns Gaussian for neighbours by add-remove",
        ),
        ("public_kinds = classmethod(lambda *_: 'none')", "mine.public_kinds() returns 'none'"),
        ("public_words = classmethod(lambda *_: None)", "mine.public_words() returns None"),
    ],
)
def test_a_statement_of_the_wrong_type_is_found_before_any_training(statement: str, says: str, tmp_path: Path) -> None:
    path = plugin(tmp_path, statement)
    checked = bench("check", path, "-q")
    assert checked.returncode == 2
    assert says in checked.stderr
    assert checked.stderr.startswith("error: mine: mine.")
    cells = ["-m", path, "-d", "digits", "-p", "tiny", "-o", tmp_path / "runs"]
    if "charges" not in statement:
        planned = bench("run", *cells, "--dry-run", "-q")
        assert planned.returncode == 2
        assert says in planned.stderr
    if "public" in statement:  # not even a failed record could hold it
        assert bench("run", *cells, "-q").returncode == 2
        return
    assert bench("run", *cells, "-q").returncode == 1
    (failed,) = RunDir(tmp_path / "runs").read_records().found
    assert failed.failure is not None
    assert says in failed.failure.reason
