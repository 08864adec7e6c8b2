"""Random sentences as a text data set holds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.data import text

WORDS = 30


def sentences(count: int, seed: int = 0, length: int = 12, words: int = WORDS) -> np.ndarray[Any, Any]:
    """Random sentences, some of whose words are padding, unknown, or beyond the vocabulary."""
    numbers = np.random.default_rng(seed).integers(0, words + 5, (count, length))
    numbers[numbers > words + 2] = 65_535
    return np.stack([numbers // 256, numbers % 256], axis=1)[:, :, None].astype(np.uint8)


def counted(images: np.ndarray[Any, Any], words: int = WORDS) -> np.ndarray[Any, Any]:
    rows = text.word_numbers(images)
    return np.array([[int((row == text.FIRST_WORD + w).sum()) for w in range(words)] for row in rows])
