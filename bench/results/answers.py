"""A student's answers on the test records: which are right, accuracy on the worst class, and calibration."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Self

from pydantic import Field

from bench.core.lazy_libraries import torch
from bench.core.rows import Row, Share

if TYPE_CHECKING:
    from torch import Tensor

BINS = 15
"""Bins of equal width for the calibration error, as in Guo et al. (2017)."""


class Answers(Row):
    """A student's answers on the test records, in the data set's order; the records themselves are not needed."""

    classes: int = Field(ge=2, le=65_536)
    """Number of classes."""
    errors: str = Field(max_length=1_000_000)
    """Predicted minus true class modulo `classes`, 0 if right: a byte each (two from 257 classes on), zlib, base64."""
    worst_class: Share
    """Accuracy on the class with the lowest accuracy."""
    calibration_error: Share
    """Expected calibration error: the mean distance of confidence and accuracy over 15 bins of confidence."""

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Self:
        """Return the answers of `logits` (n, classes) for records with the true `labels` (n,)."""
        classes = logits.shape[1]
        confidence, answer = logits.double().softmax(1).max(1)
        errors = ((answer - labels) % classes).numpy().astype("<u1" if classes <= 256 else "<u2")
        right = (answer == labels).double()
        counts = torch.bincount(labels, minlength=classes)
        by_class = torch.bincount(labels, right, minlength=classes)[counts > 0] / counts[counts > 0]
        where = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
        apart = torch.bincount(where, right - confidence, minlength=BINS).abs().sum() / len(labels)
        return cls(
            classes=classes,
            errors=base64.b64encode(zlib.compress(errors.tobytes(), 9)).decode(),
            worst_class=round(float(by_class.min()), 6),
            calibration_error=round(float(apart), 6),
        )

    def right(self, records: int) -> bytes:
        """Return a byte for each of `records` answers, 1 if it is right; raise ValueError if their number differs."""
        size = 1 if self.classes <= 256 else 2
        unpack = zlib.decompressobj()
        try:
            data = unpack.decompress(base64.b64decode(self.errors, validate=True), records * size + 1)
        except zlib.error as error:
            raise ValueError(f"errors are damaged: {error}") from error
        if len(data) != records * size or not unpack.eof:
            raise ValueError(f"errors are not those of {records} records")
        if size == 2:
            data = bytes(map(bool, memoryview(data).cast("H")))
        return data.translate(_IS_ZERO)


_IS_ZERO = bytes([1]) + bytes(255)
