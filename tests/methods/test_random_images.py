"""Random images as input of data-free methods."""

from __future__ import annotations

import pytest
import torch

from bench.core.errors import BenchError
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
