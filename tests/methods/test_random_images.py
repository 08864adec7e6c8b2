"""Random images as input of data-free methods."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.core.config import Grid, Preset
from bench.core.progress import Progress
from bench.experiments.data_source import DataSource
from bench.experiments.plan import expand
from bench.experiments.run import run_cell
from bench.interface.registry import METHODS
from bench.methods.shared import shape_render
from bench.methods.shared.random_images import random_images
from bench.results.run_dir import RunDir


def test_random_images_are_the_same_for_the_same_seed_and_differ_among_themselves() -> None:
    for shape in ((1, 28, 28), (3, 32, 24), (1, 8, 8)):
        images = random_images(50, shape, torch.Generator().manual_seed(3))
        assert (images.dtype, tuple(images.shape)) == (torch.uint8, (50, *shape))
        assert torch.equal(images, random_images(50, shape, torch.Generator().manual_seed(3)))
        assert len({image.numpy().tobytes() for image in images}) > 45
    assert len(random_images(0, (1, 28, 28), torch.Generator())) == 0


def test_half_of_the_objects_are_strokes_and_half_are_broad_shapes() -> None:
    for shape in ((1, 28, 28), (3, 32, 24), (1, 8, 8), (2, 8, 9)):
        draws = torch.Generator().manual_seed(3)
        images = random_images(51, shape, draws, "objects")
        assert (images.dtype, tuple(images.shape)) == (torch.uint8, (51, *shape))
        strokes = {image.numpy().tobytes() for image in random_images(26, shape, _after(25))}
        assert sum(image.numpy().tobytes() in strokes for image in images) == 26
    assert len(random_images(0, (1, 28, 28), torch.Generator(), "objects")) == 0
    many = random_images(400, (1, 28, 28), torch.Generator().manual_seed(0), "objects").float() / 255
    assert float(many.mean()) > 1.2 * float(random_images(400, (1, 28, 28), torch.Generator()).float().mean()) / 255


def _asking() -> list[str]:
    return [name for name in METHODS.names() if hasattr(METHODS.get(name).Config, "random_kind")]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", _asking())
def test_every_method_with_a_kind_asks_about_images_of_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, drawn = list[int](), shape_render.random_parameters

    def counted(count: int, draws: torch.Generator) -> torch.Tensor:
        asked.append(count)
        return drawn(count, draws)

    monkeypatch.setattr(shape_render, "random_parameters", counted)
    source, shares = DataSource(Progress()), hasattr(METHODS.get(name).Config, "random_share")
    for kind, expected in (("strokes", False), ("objects", True)):
        given = (f"random_kind={kind}", *["random_share=0.5"] * shares)
        (cell,) = expand(Grid((name,), ("digits",), (10.0,), preset=Preset.TINY, overrides=given), source.describe)
        assert run_cell(cell, RunDir(tmp_path / kind).create(), source, Progress()).student is not None
        assert bool(asked) is expected, kind


def _after(shapes: int) -> torch.Generator:
    """Return the generator of the test above after it drew the parameters of `shapes` shapes."""
    draws = torch.Generator().manual_seed(3)
    shape_render.random_parameters(shapes, draws)
    return draws
