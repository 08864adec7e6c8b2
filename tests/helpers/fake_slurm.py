"""Fake Slurm commands: scripts that print what a test sets, and log their calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr")


class FakeSlurm:
    """Commands in a folder at the front of PATH; `says` changes the answer of one, by default empty."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        for name in COMMANDS:
            self.says(name, "")
            body = f'#!/bin/sh\necho "{name} $*" >> {folder}/calls\n'
            if name == "sbatch":  # a new number each time
                body += f"echo . >> {folder}/jobs\n"
                body += f"[ -s {folder}/{name}.out ] || echo Submitted batch job $(wc -l < {folder}/jobs)\n"
            (folder / name).write_text(f"{body}cat {folder}/{name}.out\nexit $(cat {folder}/{name}.status)\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def says(self, name: str, text: str, status: int = 0) -> None:
        """Set what the command `name` prints and its exit status; on failure a real one prints it as an error."""
        (self.folder / f"{name}.out").write_text(text)
        (self.folder / f"{name}.status").write_text(str(status))

    @property
    def calls(self) -> list[str]:
        """Every call so far."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []
