"""A launcher of another package, installed as pip would."""

from __future__ import annotations

import os
from pathlib import Path

from helpers.paths import ROOT

EXAMPLE = ROOT / "examples" / "dask"


def install(folder: Path, name: str, function: str) -> Path:
    """Write what pip would of a package whose entry point `name` is the launcher `function`; return `folder`."""
    about = folder / f"bench_{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: bench-{name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[bench.launchers]\n{name} = {function}\n")
    return folder


def with_path(*folders: Path) -> dict[str, str]:
    """Return the environment of a process that imports from `folders` too."""
    found = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found)}
