"""Image grids of images: what stands where, equal bytes, what is refused, and the file beside a record."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bench.experiments.run
from bench.cli.record_pages import record_page
from bench.core.progress import Progress
from bench.experiments import image_grid as module
from bench.experiments.image_grid import GAP, image_grid
from bench.experiments.release import save_image_grid
from bench.experiments.run import run_cell
from bench.results.record import parse_record
from bench.results.run_dir import RunDir
from helpers.one_teacher import one_cell, run
from helpers.records import record


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def greys(count: int) -> torch.Tensor:
    """Images of 4x4 pixels, each of the grey that is its number."""
    return torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(count, 1, 4, 4)


def layout(data: bytes, size: int) -> list[list[int]]:
    """Return the upper left pixel of each cell, row by row."""
    page = pixels(data)
    step = size + GAP
    return [[int(page[y, x]) for x in range(GAP, page.shape[1], step)] for y in range(GAP, page.shape[0], step)]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three columns of images that are not enlarged."""
    monkeypatch.setattr(module, "COLUMNS", 3)
    monkeypatch.setattr(module, "CELL", 1)


@pytest.mark.usefixtures("narrow")
def test_images_lie_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert layout(image_grid(greys(7)), 4) == [[0, 1, 2], [3, 4, 5], [6, 128, 128]]
    assert layout(image_grid(greys(2)), 4) == [[0, 1]]
    monkeypatch.setattr(module, "ROWS", 1)
    assert layout(image_grid(greys(7)), 4) == [[0, 1, 2]]


@pytest.mark.usefixtures("narrow")
def test_labels_give_each_class_a_row() -> None:
    labels = torch.tensor([2, 0, 2, 5, 0, 2, 2])
    assert layout(image_grid(greys(7), labels), 4) == [[1, 4, 128], [0, 2, 5], [3, 128, 128]]


def test_pixels_are_those_of_the_images_enlarged(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(0, 256, (1, 3, 5, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert pixels(image_grid(images)).shape[1] >= 56
    monkeypatch.setattr(module, "CELL", 18)
    page = pixels(image_grid(images))
    assert page.shape == (15 + 2 * GAP, 18 + 2 * GAP, 3)
    assert (page[GAP:-GAP:3, GAP:-GAP:3] == images[0].permute(1, 2, 0).numpy()).all()
    assert (page[GAP + 2 : -GAP : 3, GAP + 2 : -GAP : 3] == images[0].permute(1, 2, 0).numpy()).all()


def test_floats_and_bytes_give_the_same_image_grid_and_nonsense_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(0, 256, (12, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert image_grid(images) == image_grid(images.float() / 255) == image_grid(images.clone())
    strange = torch.tensor([float("nan"), -1.0, 2.0, float("inf")]).view(4, 1, 1, 1).expand(4, 1, 2, 2)
    assert image_grid(images) != image_grid(images.flip(0))
    monkeypatch.setattr(module, "CELL", 1)
    assert layout(image_grid(strange), 2) == [[0, 0, 255, 255]]


def test_a_release_without_a_picture_is_no_error(tmp_path: Path) -> None:
    def saved(**extras: torch.Tensor) -> str | None:
        return save_image_grid(extras, tmp_path / "x.png")

    assert saved() is None
    assert saved(synthetic_images=torch.zeros(5, 7)) is None
    assert saved(synthetic_images=torch.zeros(5, 2, 4, 4)) is None
    assert saved(synthetic_images=torch.zeros(0, 1, 4, 4)) is None
    assert not list(tmp_path.iterdir())
    plain = saved(synthetic_images=greys(5))
    assert plain == saved(synthetic_images=greys(5), synthetic_labels=torch.full((5, 3), 1 / 3))
    assert plain != saved(synthetic_images=greys(5), synthetic_labels=torch.arange(5))


def test_run_writes_the_image_grid_that_its_record_names(tmp_path: Path) -> None:
    found = run(tmp_path, "images=25")
    assert found.image_grid is not None
    path = tmp_path / found.image_grid.file
    assert path == tmp_path / "released" / f"{found.key}.png"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == found.image_grid.sha256
    assert pixels(path.read_bytes()).shape[0] == 10 * (56 + GAP) + GAP, "a row for each of the ten classes"
    assert any(found.image_grid.file in row for table in record_page(found) for row in table.rows)
    assert parse_record(found.to_json()) == found
    again = run(tmp_path, "images=25")
    assert again.image_grid == found.image_grid


@pytest.mark.parametrize("override", ["images=0", "channels=2"])
def test_run_without_images_has_no_image_grid(tmp_path: Path, override: str) -> None:
    found = run(tmp_path, override)
    assert found.image_grid is None
    assert not list(tmp_path.glob("**/*.png"))
    assert not any("synthetic images" in row for table in record_page(found) for row in table.rows)


def test_own_images_have_an_image_grid_too(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "mine" / label).mkdir(parents=True)
        for number in range(60):
            grey = Image.fromarray(generator.integers(0, 256, (12, 12), dtype=np.uint8))
            grey.save(tmp_path / "mine" / label / f"{number}.png")
    found = run(tmp_path / "runs", dataset=f"folder:{tmp_path / 'mine'}")
    assert not found.public_benchmark
    assert found.image_grid is not None
    assert (tmp_path / "runs" / found.image_grid.file).is_file()
    assert found.privacy is not None
    assert found.privacy.plausibility is None, "the classes' shares of a user's own test records are not public"


@pytest.mark.parametrize("moment", ["save_released", "save_image_grid", "write_record"])
def test_kill_before_any_file_leaves_no_record_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with one_cell(tmp_path) as (cell, run_dir, source):
        first = run_cell(cell, run_dir, source, Progress())
        assert first.image_grid is not None
        (tmp_path / first.image_grid.file).unlink()
        with monkeypatch.context() as patch:
            patch.setattr(RunDir if moment == "write_record" else bench.experiments.run, moment, kill)
            with pytest.raises(KeyboardInterrupt):
                run_cell(cell, run_dir, source, Progress())
        assert run_dir.read_record(cell.key) is None
        last = run_cell(cell, run_dir, source, Progress())
    assert last.image_grid == first.image_grid
    assert (tmp_path / first.image_grid.file).is_file()


def test_older_records_have_no_image_grid() -> None:
    older = json.loads(record().to_json())
    del older["image_grid"]
    assert parse_record(json.dumps(older)) == record()
