"""A grid in a file is the grid of the options, and a mistake in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.core.options import GridOptions
from bench.launchers.grid_file import grid_text, read_grid
from helpers.commands import bench, refused


@pytest.mark.parametrize(
    "options",
    [
        GridOptions(methods="pate"),
        GridOptions(methods=["pate", "dp-sgd"], datasets="digits,mnist", eps="1,3", seeds="0-2", preset="tiny"),
        GridOptions(methods="pate", risk="advantage=0.2", set_={"pate.teachers": 10, "gamma": None}, delta=1e-6),
        GridOptions(methods="dp-sgd", basis="proven", adjacency="own", noise="secure", student="small_cnn"),
    ],
)
def test_what_is_written_reads_as_the_same_grid(options: GridOptions, tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(grid_text(options))
    assert read_grid(file).grid() == options.grid()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("methods: pate\nseed: 1", "unknown name in .* 'seed'. Did you mean 'seeds'"),
        ("methods: pate\npreset: fast", "preset: it must be 'paper', 'quick' or 'tiny', not 'fast'"),
        ("datasets: mnist", "methods: Field required"),
        ("[pate]", "must hold a grid as NAME: VALUE"),
        ("methods: !!python/name:os.system", "cannot be read as YAML"),
    ],
)
def test_a_mistake_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(text)
    with pytest.raises(BenchError, match=said):
        read_grid(file)


def test_the_command_prints_and_takes_the_file(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    words = ["--dry-run", "--yaml"]
    file.write_text(bench("run", "-m", "pate", "-d", "digits", "-s", "0-1", *words).stdout)
    assert bench("run", "-c", file, *words).stdout == file.read_text()
    assert "--config holds the grid. Leave out --datasets" in refused("run", "-c", str(file), "-d", "mnist")
    assert "use it with --dry-run" in refused("run", "-m", "pate", "--yaml")
