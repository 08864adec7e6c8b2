"""Names, collisions, plug-ins from files and from other packages."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.cli.listing import MNIST_FACTS
from bench.core.config import Preset, build_config
from bench.core.errors import BenchError, UnknownNameError
from bench.core.types import Basis, Budget
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


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('    adjacency = "add-remove"', "adjacency is 'add-remove'. Accepted: .*Adjacency.ADD_REMOVE"),
        ("    unit = None", "unit is None. Accepted: PrivacyUnit.RECORD"),
        (
            "    @abc.abstractmethod\n    def claimed(self, delta): ...",
            "Mine lacks claimed; see bench.interface.Method",
        ),
    ],
)
def test_a_class_that_is_no_whole_method_is_refused(body: str, says: str, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py")
    path.write_text("import abc\n" + path.read_text() + body + "\n")
    with pytest.raises(BenchError, match=f"^mine: {says}"):
        METHODS.get(str(path))


def test_what_a_hook_returns_is_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py")
    hooks = "    def calibrate(self, budget):\n        return {}\n    def train_student(self, *_):\n        return 1\n"
    path.write_text(
        path.read_text()
        + hooks
        + "    @classmethod\n    def presets(cls, facts):\n        return {'tiny': {'epocs': 1}}\n"
    )
    method = METHODS.get(str(path))
    made = method(method.Config(), MNIST_FACTS)
    with pytest.raises(BenchError, match=r"mine.calibrate\(\) returns dict, not NonPrivateConfig"):
        made.calibrate_checked(Budget(1.0, 1e-5, Basis.CLAIMED))
    nothing: Any = None
    with pytest.raises(BenchError, match=r"mine.train_student\(\) returns int, not Released"):
        made.train_checked(nothing, nothing, nothing, nothing)
    with pytest.raises(UnknownNameError, match=r"setting in mine.presets\(\) 'epocs'"):
        build_config(method, Preset.TINY, MNIST_FACTS)


class Entry:
    def __init__(self, name: str, load: object) -> None:
        self.name, self.value, self.load = name, f"{name}:thing", load


def test_broken_plugin_is_listed_and_stops_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bench.things", SimpleNamespace(INDEX={}))
    made: Registry[type] = Registry("thing", "bench.things", "bench.things")

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


def test_a_method_whose_file_is_not_listed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    index = {name: entry for name, entry in METHODS.index().items() if name != "rr"}
    monkeypatch.setattr("bench.methods.INDEX", index)
    for members in (METHODS.members, sys.modules):
        monkeypatch.delitem(members, {id(sys.modules): "bench.methods.label.rr"}.get(id(members), "rr"), raising=False)
    with pytest.raises(UnknownNameError, match=r"label/rr\.py registers it: add its entry to INDEX in .*methods"):
        Registry("method", "bench.methods", "bench.no_such_group").get("rr")
