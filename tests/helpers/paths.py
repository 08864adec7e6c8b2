"""Where the repository, its board and the reference texts lie."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
BOARD = ROOT / "leaderboards"
FIXTURES = TESTS / "fixtures"
CHEATS = TESTS / "cheats"
SHARED = ROOT.parent / "shared"
GRID_METHOD = TESTS / "helpers" / "grid_method.py"
