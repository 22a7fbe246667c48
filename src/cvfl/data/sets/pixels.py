"""Images as parties hold them: bytes in memory, numbers when asked for, and who holds which part of an image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cvfl.data.vertical import quadrants
from cvfl.errors import DataError

_PARTS = {
    1: ("whole",),
    2: ("left", "right"),
    4: ("top-left", "top-right", "bottom-left", "bottom-right"),
}


def scaled(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers within [-1, 1]: (x / 255 - mean) / deviation, with 0.5 for both as in the paper."""
    return images.to(dtype).div_(255).sub_(0.5).div_(0.5)


@dataclass(frozen=True, eq=False)
class Pixels:
    """Rows of uint8 images that become numbers as they are read: a quarter of the memory of float32."""

    images: Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, then the shape of one."""
        return tuple(self.images.shape)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        return scaled(self.images.index_select(0, rows), self.dtype)


def part_names(parties: int) -> tuple[str, ...]:
    """What to call the parties that share an image."""
    if parties not in _PARTS:
        raise DataError(f"an image is divided among 4 parties (quadrants), 2 (halves) or 1 (whole), not {parties}")
    return _PARTS[parties]


def parts(images: Tensor, parties: int) -> list[Tensor]:
    """Each party's part of B x C x H x W images, in the order of `part_names`; views, not copies."""
    match len(part_names(parties)):
        case 4:
            return quadrants(images)
        case 2:
            half = images.shape[-1] // 2
            return [images[..., :half], images[..., half:]]
    return [images]
