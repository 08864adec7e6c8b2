"""A run directory with one record, and a board with two."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.publishing.publish import rebuild
from helpers.paths import BOARD
from helpers.publishing import GNMAX, NONPRIVATE, PATE, put, values_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    put(tmp_path / "runs", values_of(PATE))
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def built_board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once; tests get copies."""
    folder = tmp_path_factory.mktemp("built") / "board"
    (folder / "records").mkdir(parents=True)
    for key in (GNMAX, NONPRIVATE):
        shutil.copy(BOARD / "records" / f"{key}.json", folder / "records")
    rebuild(folder)
    return folder


@pytest.fixture
def into(built_board: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built_board, tmp_path / "board")
