"""Fetch a source archive from the index that pip is configured for, without running anything in it.

``pip download`` would run its ``setup.py`` to find dependencies. This program uses pip's internal modules instead. They
may change, so it runs as a separate process (``python -P pip_sdist.py NAME VERSION SHA256``), and a failure affects
only one download route.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from typing import Any


def fetch(name: str, version: str, sha256: str) -> Path:
    """Write the archive to the current folder and return its path; raise RuntimeError if missing or not `sha256`."""
    command: Any = importlib.import_module("pip._internal.commands.download").DownloadCommand("download", "")
    network: Any = importlib.import_module("pip._internal.network.utils")
    version_of: Any = importlib.import_module("pip._vendor.packaging.version").Version
    with command.main_context():
        options, _ = command.parse_args(["--no-deps", "--no-binary=:all:", "-q", name])
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)
        found = [
            candidate.link
            for candidate in finder.find_all_candidates(name)
            if candidate.version == version_of(version) and not candidate.link.is_wheel
        ]
        if not found:
            raise RuntimeError(f"the index has no source archive of {name} {version}")
        link = found[0]
        if link.is_file:
            data = Path(link.file_path).read_bytes()
        else:
            answer = session.get(link.url_without_fragment, headers=network.HEADERS, timeout=60)
            answer.raise_for_status()
            data = answer.content
    if hashlib.sha256(data).hexdigest() != sha256:
        raise RuntimeError(f"{link.filename} does not have the pinned SHA-256")
    path = Path.cwd() / Path(link.filename).name
    path.write_bytes(data)
    return path


if __name__ == "__main__":
    try:
        fetch(*sys.argv[1:4])
    except Exception as problem:  # noqa: BLE001 (any change inside pip ends in one line for the caller)
        sys.exit(f"error: {type(problem).__name__}: {problem}")
