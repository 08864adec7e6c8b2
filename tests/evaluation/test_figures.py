"""Image grids of reconstructions and ROC figures."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bench.evaluation.attack.figures import Column, comparison_grid, roc_figure
from bench.results.pictures import LARGEST_PICTURE


def column(title: str, value: float = 0.5, channels: int = 1, **more: object) -> Column:
    return Column(title, torch.full((3, channels, 28, 20), value), **more)  # type: ignore[arg-type]


def read(path: Path) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(path.read_bytes())).convert("RGB"))


def colour_of(path: Path, colour: tuple[int, int, int]) -> int:
    return int((np.abs(read(path).astype(int) - np.array(colour)).max(-1) <= 2).sum())


def tinted(path: Path, channel: int) -> int:
    """Pixels in which one channel is far above the others: letters are too thin to have a colour in full."""
    pixels = read(path).astype(int)
    rest = np.delete(pixels, channel, axis=-1).max(-1)
    return int((pixels[..., channel] - rest > 40).sum())


ROWS = ["person 1", "person 2", "person 3"]


def test_an_image_grid_shows_every_image_once(tmp_path: Path) -> None:
    """Five columns of three images, each of one colour: the areas say that all of them are there."""
    images = torch.zeros(3, 3, 28, 20)
    images[:, 0] = 1.0
    red = Column("red", images)
    path = tmp_path / "sheet.png"
    comparison_grid(path, ROWS, [red] * 3, [red, red], title="attack on a student")
    one = 28 / 28 * 0.95 * 120 * (0.95 * 20 / 28 * 120)
    assert colour_of(path, (255, 0, 0)) == pytest.approx(15 * one, rel=0.08)


def test_captions_have_the_verdicts_colours(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    judged = column("eps 1", captions=["3 of 3", "0 of 3", "?"], good=[True, False, None])
    comparison_grid(path, ROWS, [judged], [column("private")], title="attack")
    assert tinted(path, 1) > 10
    assert tinted(path, 0) > 10
    plain = tmp_path / "plain.png"
    comparison_grid(plain, ROWS, [column("eps 1")], [column("private")], title="attack")
    assert tinted(plain, 0) == tinted(plain, 1) == 0


def test_a_missing_image_is_an_empty_frame(tmp_path: Path) -> None:
    green = Column("x", torch.tensor([0.0, 1.0, 0.0]).view(1, 3, 1, 1).expand(3, 3, 28, 20), absent=[True, True, False])
    path = tmp_path / "sheet.png"
    comparison_grid(path, ROWS, [green], [], title="attack")
    assert colour_of(path, (0, 255, 0)) == pytest.approx(0.95 * 120 * 0.95 * 20 / 28 * 120, rel=0.08)


def test_equal_pictures_have_equal_bytes_and_tell_no_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        comparison_grid(tmp_path / f"{name}.png", ROWS, [column("x")], [column("y")], title="attack", note="a note")
        roc_figure(tmp_path / f"{name}-roc.png", {"LiRA": ([0, 1], [0, 1])}, 1.0, 1e-5)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a-roc.png").read_bytes() == (tmp_path / "b-roc.png").read_bytes()
    for name in ("a.png", "a-roc.png"):
        assert not set(Image.open(tmp_path / name).info) & {"Software", "Creation Time", "date"}


# --- ROC --------------------------------------------------------------------------------------------------------------


def test_a_figure_has_its_curves_and_its_ceiling(tmp_path: Path) -> None:
    path = tmp_path / "roc.png"
    rates = np.linspace(0, 1, 50)
    roc_figure(path, {"LiRA": (rates, np.sqrt(rates)), "RMIA": (rates, rates)}, 2.0, 1e-5, title="x")
    assert colour_of(path, (0x1D, 0x4E, 0xD8)) > 200
    assert colour_of(path, (0xC2, 0x41, 0x0C)) > 100
    shaded = colour_of(path, (0xE5, 0xE7, 0xEB))
    roc_figure(path, {"LiRA": (rates, np.sqrt(rates))}, math.inf, 1e-5)
    assert colour_of(path, (0xE5, 0xE7, 0xEB)) < shaded / 2


def test_importing_draws_on_nothing_slow() -> None:
    code = (
        "import sys, bench.evaluation.attack.figures; print([m for m in ('matplotlib', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_grid_of_faces_is_small_enough_to_publish_and_keeps_its_colours(tmp_path: Path) -> None:
    # Noise is the hardest image for PNG.
    noise = torch.randint(256, (10, 1, 56, 46), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    columns = [Column(f"try {n}", noise.roll(n, 0), ["yes"] * 10, [n % 2 == 0] * 10) for n in range(7)]
    comparison_grid(tmp_path / "grid.png", [f"person {n}" for n in range(10)], columns, [], title="ten people")
    assert (tmp_path / "grid.png").stat().st_size <= LARGEST_PICTURE
    assert min(tinted(tmp_path / "grid.png", channel) for channel in (0, 1)) > 100
