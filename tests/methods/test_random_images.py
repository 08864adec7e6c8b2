"""Random images as input of data-free methods."""

from __future__ import annotations

import pytest
import torch

from bench.core.errors import BenchError
from bench.methods.shared import shape_render
from bench.methods.shared.random_images import random_images


def test_random_images_are_the_same_for_the_same_seed_and_differ_among_themselves() -> None:
    for shape in ((1, 28, 28), (3, 32, 24), (1, 8, 8)):
        images = random_images(50, shape, torch.Generator().manual_seed(3))
        assert (images.dtype, tuple(images.shape)) == (torch.uint8, (50, *shape))
        assert torch.equal(images, random_images(50, shape, torch.Generator().manual_seed(3)))
        assert len({image.numpy().tobytes() for image in images}) > 45
    assert len(random_images(0, (1, 28, 28), torch.Generator())) == 0
    with pytest.raises(BenchError, match="negative"):
        random_images(-1, (1, 28, 28), torch.Generator())


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


def _after(shapes: int) -> torch.Generator:
    """Return the generator of the test above after it drew the parameters of `shapes` shapes."""
    draws = torch.Generator().manual_seed(3)
    shape_render.random_parameters(shapes, draws)
    return draws
