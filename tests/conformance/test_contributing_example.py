"""The method in CONTRIBUTING runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from bench.core.config import Preset
from bench.core.types import Basis, Budget, Facts
from bench.evaluation.check.noninterference import CheckVerdict, check_method
from bench.interface.registry import METHODS
from bench.privacy.accounting.accountants import proven
from helpers.ledgers import seeded_ledger
from helpers.paths import ROOT


@pytest.mark.usefixtures("registries_restored")
def test_the_printed_method_passes_the_check(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    (tmp_path / "centroid.py").write_text(code)
    method = METHODS.get(str(tmp_path / "centroid.py"))
    check = check_method(method)
    assert check.verdict is CheckVerdict.PASSED, check.reason
    facts = Facts("digits", 1_000, 400, 397, 10, (1, 8, 8))
    for basis in Basis:
        config = method(method.Config(), facts).calibrate(Budget(10.0, 1e-5, basis))
        book = seeded_ledger(method.unit, method.adjacency, np.random.default_rng(0))
        book.noisy_max(np.tile([config.teachers, 0], (config.queries, 1)), teachers=config.teachers, gamma=config.gamma)
        spent = method(config, facts).claimed(1e-5) if basis is Basis.CLAIMED else proven(book.events, 1e-5)
        assert 8 < spent.epsilon <= 10
    assert Preset.QUICK.value in method.presets.__func__(method, None)
