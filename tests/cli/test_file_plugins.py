"""A method in a file of the user's: what the commands say of it, and of its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results.run_dir import RunDir
from helpers.commands import bench

PLUGIN = """
'''Mine: a method of a user.'''
from bench.interface import Claim, register_method
from methods.nonprivate import NonPrivate


@register_method("mine")
class Mine(NonPrivate):
    STATEMENT

    def train_student(self, *given):
        raise AssertionError("it has begun to train")
"""


def plugin(folder: Path, statement: str) -> Path:
    path = folder / "mine.py"
    path.write_text(PLUGIN.replace("STATEMENT", statement))
    return path


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("claimed = classmethod(lambda *_: 1.0)", "mine.claimed() returns float, not a Claim"),
        ("claimed = classmethod(lambda *_: Claim(float('nan'), 1e-5, 'mine'))", "epsilon is a number from 0 to inf"),
        ("claimed = classmethod(lambda *_: Claim(1.0, 1e-5, None))", "source and note are texts"),
        ("charges = classmethod(lambda *_: [1.0])", "mine.charges() returns [1.0]"),
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
