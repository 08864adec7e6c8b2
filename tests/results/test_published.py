"""Published records are found in a checkout, in the working directory, and in a wheel's archive."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import bench
from bench.cli.main import app
from bench.core.errors import BenchError
from bench.results import derived
from bench.results import published as places
from bench.results.run_dir import RunDir
from helpers.paths import BOARD
from helpers.records import record


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of an installed package's archive; there is no checkout."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setattr(places, "CHECKOUT", tmp_path / "nowhere")
    monkeypatch.setattr(places, "ARCHIVE", tmp_path / "published.tar.xz")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "published.tar.xz"


def pack(target: Path) -> None:
    data = record().to_json().encode()
    with tarfile.open(target, "w:xz") as archive:
        info = tarfile.TarInfo(f"records/{record().key}.json")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))


def test_an_installed_package_reads_its_archive(installed: Path) -> None:
    assert places.published() is None
    with pytest.raises(BenchError, match="this package was built without them"):
        bench.load_results()
    pack(installed)
    assert list(bench.load_results()["key"]) == [record().key]
    first = places.published()
    assert first == places.published()
    assert str(first).startswith(str(installed.parent / "cache"))


def test_a_board_in_the_working_directory_comes_first(installed: Path) -> None:
    pack(installed)
    RunDir(Path("leaderboards")).create().write_record(record(method="dp-sgd"))
    assert list(bench.load_results()["method"]) == ["dp-sgd"]


def test_leaderboards_names_the_published_board(installed: Path) -> None:
    pack(installed)
    assert list(bench.load_results("leaderboards")["key"]) == [record().key]
    listed = CliRunner().invoke(app, ["ls", "leaderboards"])
    assert record().key in listed.output.replace("\n", "")
    with pytest.raises(BenchError, match=r"Run directories may follow the names"):
        bench.compare("mine", "pate")
    (home := RunDir(Path("leaderboards"))).create()
    assert list(places.named(home.path).iterdir()) == list(home.path.iterdir())


def test_a_cache_that_cannot_be_written_is_named(installed: Path) -> None:
    pack(installed)
    (installed.parent / "cache").write_text("a file")
    with pytest.raises(BenchError, match="cache"):
        bench.load_results()


def test_figures_that_come_with_a_board_are_those_of_its_ledgers(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = next(one for one in RunDir(BOARD).read_records(set_aside=False).found if one.method == "dp-merf")
    assert one.privacy is not None
    (own, _), found = derived.risks_of(one.privacy), json.loads(derived.figures_text([one]))
    wrong = {name: " ".join(["0x1.8p-1"] * len(text.split())) for name, text in found["figures"].items()}
    folder = installed.parent / "nowhere"  # the checkout of the code
    RunDir(folder).create().write_record(one)
    forged = RunDir(Path("leaderboards")).create()
    forged.write_record(one)
    (forged.path / derived.FIGURES).write_text(json.dumps({"source": found["source"], "figures": wrong}))
    derived.published_figures.cache_clear()
    assert derived.risks_of(one.privacy)[0] == own, "figures of the working directory's board are not believed"
    for source, expected in ((found["source"], {0.75}), ("another source", set(own.as_dict().values()))):
        (folder / derived.FIGURES).write_text(json.dumps({"source": source, "figures": wrong}))
        derived.published_figures.cache_clear()
        assert set(derived.risks_of(one.privacy)[0].as_dict().values()) == expected
    (folder / derived.FIGURES).write_text(json.dumps({"source": found["source"], "figures": wrong}))
    derived.published_figures.cache_clear()
    assert json.loads(derived.figures_text([one])) == found  # computed, not copied
    monkeypatch.undo()
    derived.published_figures.cache_clear()
