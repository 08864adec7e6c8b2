"""A run directory of its own for each test of commands on students."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import commands
from helpers.launches import nothing_is_left_over


@pytest.fixture(scope="module", autouse=True)
def registered_here_only() -> Iterator[None]:
    """Tests elsewhere expect that nobody has registered the method of a file."""
    with commands.registries_restored():
        yield


@pytest.fixture
def out(students: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the run directory of the module's fixture `students`."""
    copy = tmp_path / "runs"
    shutil.copytree(students, copy)
    yield copy
    nothing_is_left_over(copy)
