"""``bench new`` writes methods that run as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cli.main import app
from bench.cli.new import Kind
from bench.core.errors import BenchError
from bench.core.types import Basis, Budget, Facts
from bench.evaluation.check.noninterference import CheckVerdict, check_method
from bench.interface.registry import METHODS
from bench.privacy.accounting.accountants import proven
from helpers.paths import ROOT

pytestmark = pytest.mark.usefixtures("registries_restored")


def written(file: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["new", str(file), *words])
    if isinstance(done.exception, BenchError):
        raise done.exception
    return done.output


def test_the_default_is_the_method_of_contributing(tmp_path: Path) -> None:
    assert "run -m" in written(tmp_path / "my_method.py")
    text = (tmp_path / "my_method.py").read_text()
    names = {"my-method": "centroid-pate", "MyMethodConfig": "CentroidConfig", "MyMethod": "CentroidPATE"}
    for mine, printed in names.items():
        text = text.replace(mine, printed)
    assert f"```python\n{text}```" in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("kind", [Kind.DP_SGD, pytest.param(Kind.PATE, marks=pytest.mark.slow)])
def test_a_written_method_passes_the_check(kind: Kind, tmp_path: Path) -> None:
    written(tmp_path / "my_own-2.py", "--from", kind)
    method = METHODS.get(str(tmp_path / "my_own-2.py"))
    assert (method.name, method.__name__) == ("my-own-2", "MyOwn2")
    facts = Facts("digits", 1_000, 400, 397, 10, (1, 8, 8))
    bound = method(method(method.Config(), facts).calibrate(Budget(3.0, 1e-5, Basis.PROVEN)), facts)
    charges = bound.charges()
    assert charges is not None
    assert 1 < proven(charges, 1e-5).epsilon <= 3
    check = check_method(method, seconds=0.0)
    assert check.verdict is CheckVerdict.PASSED, check.reason


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Mine.py", "does not name"),
        ("mine", "does not name"),
        ("pate.py", "is taken"),
        ("class.py", "is taken"),
    ],
)
def test_a_bad_name_is_refused(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=says):
        written(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(BenchError, match="exists"):
        written(tmp_path / "mine.py")
    assert (tmp_path / "mine.py").read_text() == "x = 1\n"
