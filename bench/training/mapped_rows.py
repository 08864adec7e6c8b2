"""Rows of a memory-mapped image file, read batch by batch and sent to workers by the file's name."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from bench.data.image_map import mapping_of, open_mapping


class MappedRows:
    """The images at the positions `rows` of the mapping at `path`; stands in for a read-only uint8 tensor."""

    def __init__(self, path: Path, identity: tuple[int, int], rows: Tensor) -> None:
        self._path, self._identity, self._rows = path, identity, rows
        self.shape = (len(rows), *open_mapping(path, identity).images.shape[1:])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """Return the images at the positions `index`, uint8 (k, channels, height, width), as a new tensor."""
        rows = self._rows[index if isinstance(index, slice) else index.cpu()]
        return torch.from_numpy(open_mapping(self._path, self._identity).images[rows.numpy()])

    def to(self, device: torch.device | str) -> Tensor:
        """Return the rows as a tensor on a GPU, since they are one teacher's; on the CPU, leave them in the file."""
        return cast(Tensor, self) if torch.device(device).type == "cpu" else self[:].to(device)


def rows_of(images: Tensor, rows: Tensor) -> Tensor:
    """Return ``images[rows]`` (`rows` int64 (k,)), left in its file if `images` is a slice of a mapping."""
    found = mapping_of(images)
    if found is None:
        return images[rows]
    mapping, first = found
    return cast(Tensor, MappedRows(mapping.path, mapping.identity, rows + first))


def sendable(images: Tensor) -> Tensor:
    """Return `images` to send to a worker: a slice of a mapping by file name, as torch would copy the whole file."""
    return images if mapping_of(images) is None else rows_of(images, torch.arange(len(images)))
