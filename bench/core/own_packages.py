"""Whether Python finds this program's top-level packages, or files of the user that hide them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from bench.core.errors import BenchError

NAMES = ("methods", "attacks", "reports")


def check_own_packages() -> None:
    """Raise :class:`BenchError` if a file of the user's, in the working directory say, hides one of the packages."""
    home = Path(__file__).resolve().parents[2]
    for name in NAMES:
        spec = find_spec(name)
        if spec is not None and spec.origin and Path(spec.origin).resolve() != home / name / "__init__.py":
            raise BenchError(
                f"{spec.origin} hides the package {name!r} of this program: Python finds it first. Rename it, or work "
                "in another folder."
            )
