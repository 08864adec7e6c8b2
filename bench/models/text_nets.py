"""Nets for sentences, stored as images (n, 2, 1, length) in [0, 1] (:mod:`bench.data.text`), without input gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.data.text import FIRST_WORD, PADDING, UNKNOWN, VOCABULARY, is_text
from bench.models.feature_net import FeatureNet, Size, TwoPartNet, height_width
from bench.models.registration import register_own


def _check(name: str, shape: tuple[int, ...]) -> None:
    if not is_text(shape):
        raise BenchError(
            f"{name} takes sentences, images of 2 channels and one row of words; not images of shape {shape}. Take a "
            "text data set such as movie-review, or another model."
        )


class WordNumbers(nn.Module):
    """Turn images (n, 2, 1, length) in [0, 1] into word numbers, int64 (n, length); beyond `vocabulary` UNKNOWN."""

    def __init__(self, name: str, vocabulary: int) -> None:
        super().__init__()
        self.name, self.vocabulary = name, vocabulary

    def forward(self, images: Tensor) -> Tensor:
        """Return the word numbers."""
        _check(self.name, tuple(images.shape[1:]))
        # Channels are read one by one, so the memory layout does not matter.
        numbers = ((images[:, 0, 0] * 255.0).round() * 256 + (images[:, 1, 0] * 255.0).round()).long()
        return torch.where(numbers < FIRST_WORD + self.vocabulary, numbers, UNKNOWN)


class CountWords(nn.Module):
    """Turn word numbers (n, length) into counts (n, `vocabulary`), float32, ignoring padding and unknown words."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the counts."""
        counts = torch.zeros(len(numbers), FIRST_WORD + self.vocabulary, device=numbers.device)
        ones = torch.ones(numbers.shape, device=numbers.device)
        return counts.scatter_add_(1, numbers, ones)[:, FIRST_WORD:]


@register_own
def naive_bayes_words(
    num_classes: int = 2, in_chans: int = 2, img_size: Size = (1, 64),
    vocabulary: int = VOCABULARY, **_: Any,
) -> FeatureNet:  # fmt: skip
    """Build naive Bayes over words (TrPATE, section V.B.2): word counts times a table of log-probabilities.

    ``head.weight`` (classes, vocabulary) is the table, 0 until :func:`set_words`; ``head.bias`` is the log-prior.
    """
    _check("naive_bayes_words", (in_chans, *height_width(img_size)))
    head = nn.Linear(vocabulary, num_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    body = nn.Sequential(WordNumbers("naive_bayes_words", vocabulary), CountWords(vocabulary))
    return FeatureNet(body, head, vocabulary, None)


def set_words(net: nn.Module, table: Tensor) -> None:
    """Write log-probabilities `table` (classes, vocabulary) into a net of :func:`naive_bayes_words`."""
    assert isinstance(net, FeatureNet)
    head = net.get_classifier()
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.copy_(table)


class TextCNN(TwoPartNet):
    """See :func:`text_cnn`."""

    def __init__(self, classes: int, vocabulary: int, width: int, filters: int, hidden: int) -> None:
        super().__init__()
        self.numbers = WordNumbers("text_cnn", vocabulary)
        self.embedding = nn.Embedding(FIRST_WORD + vocabulary, width, padding_idx=PADDING)
        self.convolution = nn.Conv1d(width, filters, 3, padding=1)
        self.hidden = nn.Sequential(nn.Linear(filters, hidden), nn.ReLU()) if classes else nn.Identity()
        self.head = nn.Linear(hidden, classes) if classes else nn.Identity()
        self.num_classes, self.num_features, self.head_hidden_size = classes, filters, hidden if classes else filters

    def forward_features(self, images: Tensor) -> Tensor:
        """Map sentences (n, 2, 1, length) to the maximum of each filter over the words, (n, filters)."""
        numbers = self.numbers(images)
        words = (numbers != PADDING)[:, None]
        # Mask padding, so that features do not depend on the image length; DP-SGD's noise moves its embedding.
        values: Tensor = self.convolution(self.embedding(numbers).transpose(1, 2) * words).relu()
        pooled: Tensor = (values * words).amax(2)
        return pooled

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits of `features` (n, filters), or with `pre_logits` the last hidden layer."""
        return super().forward_head(self.hidden(features), pre_logits)


@register_own
def text_cnn(
    num_classes: int = 2, in_chans: int = 2, img_size: Size = (1, 64),
    vocabulary: int = VOCABULARY, width: int = 50, filters: int = 250, hidden: int = 250, **_: Any,
) -> TextCNN:  # fmt: skip
    """Build TrPATE's sentence net: embedding of 50, 250 filters, maximum over the words, dense 250, dense.

    Section V.B.1. We read its "3 x 3 convolution" as covering three words and the whole embedding; the ReLUs are ours.
    With `num_classes` 0 the net ends at the pooling, the part trained on the source data.
    """
    _check("text_cnn", (in_chans, *height_width(img_size)))
    return TextCNN(num_classes, vocabulary, width, filters, hidden)
