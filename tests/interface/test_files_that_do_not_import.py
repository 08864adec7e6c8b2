"""A method's file that is not Python, or lacks an import, gives one line with the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.interface.registry import METHODS


@pytest.mark.parametrize(
    ("text", "says"),
    [("x = 1\ndef f(:\n", r"mine\.py, line 2: .*Correct the file"), ("import no_such_thing\n", "No module named"),
     ("from bench.interface import setting\n\nx = setting(3)\n", r"mine\.py, line 3: TypeError: .*Correct the file"),
     ("from bench.interface import Method, register_method\n\n@register_method('m')\nclass M(Method):\n"
      "    def presets(facts): ...\n    def calibrate(self, budget): ...\n    def claimed(self, delta): ...\n    def charges(self): ...\n"
      "    def train_student(self, private, public, ledger, context): ...\n", r"write class M\(Method\[MyConfig\]\)")],
)  # fmt: skip
def test_the_place_is_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(BenchError, match=says):
        METHODS.get(str(tmp_path / "mine.py"))
