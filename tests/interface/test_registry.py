"""Names, collisions, plug-ins from files and from other packages."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from bench.core.errors import BenchError, UnknownNameError
from bench.interface import registry
from bench.interface.registry import METHODS, Registry

pytestmark = pytest.mark.usefixtures("registries_restored")

PLUGIN = """
from bench.interface.registry import register_method
from bench.methods.nonprivate import NonPrivate

@register_method("{name}")
class Mine(NonPrivate):
    '''A method of one's own.'''
"""


def write(path: Path, name: str = "mine") -> Path:
    path.write_text(textwrap.dedent(PLUGIN.format(name=name)))
    return path


def test_method_from_a_file(tmp_path: Path) -> None:
    method = METHODS.get(str(write(tmp_path / "mine.py")))
    assert method.name == "mine"
    assert "mine" in METHODS


def test_file_of_this_project_and_file_given_twice(tmp_path: Path) -> None:
    import bench.methods.pate.pate as module

    assert METHODS.get(str(module.__file__)) is METHODS.get("pate")
    path = str(write(tmp_path / "again.py", "again"))
    assert METHODS.get(path) is METHODS.get(path)


def test_file_that_is_not_there_or_registers_nothing(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no such file"):
        METHODS.get(str(tmp_path / "none.py"))
    (tmp_path / "empty.py").write_text("x = 1")
    with pytest.raises(BenchError, match="exactly one"):
        METHODS.get(str(tmp_path / "empty.py"))


def test_taken_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"taken by bench\.methods"):
        METHODS.get(str(write(tmp_path / "other.py", "pate")))


class Entry:
    def __init__(self, name: str, load: object) -> None:
        self.name, self.value, self.load = name, f"{name}:thing", load


def test_broken_plugin_is_listed_and_stops_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Registry[type] = Registry("thing", None, "bench.things")

    def good() -> None:
        made.register("good", int)

    def bad() -> None:
        made.register("half", float)
        raise ImportError("no module named nowhere\nsecond line")

    def stops() -> None:
        raise KeyboardInterrupt

    entries = [Entry("bad", bad), Entry("good", good), Entry("gone", lambda: sys.exit(0)), Entry("stops", stops)]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    assert made.names() == ["good"]
    assert made.broken["bad (bad:thing)"] == "ImportError: no module named nowhere"
    assert made.broken["gone (gone:thing)"].startswith("BenchError: gone (gone:thing) calls sys.exit(0)")
    assert "stops (stops:thing) raises KeyboardInterrupt" in made.broken["stops (stops:thing)"]
    with pytest.raises(UnknownNameError, match="nowhere"):
        made.get("half")
