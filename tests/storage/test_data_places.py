"""Folders that runs may read data from."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.storage.array_store import data_places


def test_what_the_data_root_links_to_is_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, disk = tmp_path / "data", tmp_path / "disk"
    (root / "folders").mkdir(parents=True)
    (root / ".risk").mkdir()
    for name, link in (("mnist", "mnist"), ("scans", "folders/scans"), ("kept", ".risk/kept")):
        (disk / name).mkdir(parents=True)
        (root / link).symlink_to(disk / name)
    monkeypatch.setenv("BENCH_DATA", str(root))
    found = data_places()
    assert found[0] == root
    assert {disk / "mnist", disk / "scans"} <= {*found}
    assert disk / "kept" not in found
