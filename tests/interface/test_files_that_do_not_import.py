"""A method's file that is not Python, or lacks an import, gives one line with the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.interface.registry import METHODS

HOOKLESS = """from bench.interface import Method, register_method

@register_method("m")
class M(Method):
    def presets(facts): ...
    def calibrate(self, budget): ...
    def claimed(self, delta): ...
    def charges(self): ...
    def train_student(self, private, public, ledger, context): ...
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\ndef f(:\n", r"mine\.py, line 2: .*Correct the file"),
        ("import no_such_thing\n", "No module named"),
        ("from bench.interface import setting\n\nx = setting(3)\n", r"mine\.py, line 3: TypeError: .*Correct the file"),
        (HOOKLESS, r"write class M\(Method\[MyConfig\]\)"),
    ],
)
def test_the_place_is_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(BenchError, match=says):
        METHODS.get(str(tmp_path / "mine.py"))
