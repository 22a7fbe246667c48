"""Random changes to a batch that all parties draw alike, from the seed they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cvfl.errors import DataError
from cvfl.rng import stream

AUGMENT = "augment"


@dataclass(frozen=True)
class CropAndFlip:
    """Shift each row by up to `padding` pixels, zeros coming in from outside, and mirror about half of the rows.

    A party changes its own part of the image only: it has no pixel of its neighbours, so the parts of one row move
    alike, but no pixel crosses from one party to another, and each part is mirrored within itself. The draws depend on
    the seed, the round and the place in the batch alone; shifts are in pixels, whatever the size of a party's part.
    """

    padding: int

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise DataError(f"augmentation: a padding of {self.padding} pixels is negative")

    def __call__(self, x: Tensor, seed: int, t0: int) -> Tensor:
        """The batch (B x ... x H x W) as round t0 sees it."""
        height, width = x.shape[-2:]
        down, right, mirrored = self.draws(len(x), seed, t0)
        padded = F.pad(x, (self.padding,) * 4)
        across = torch.arange(width)
        rows = down[:, None] + torch.arange(height)
        columns = right[:, None] + torch.where(mirrored[:, None], across.flip(0), across)
        places = (rows[:, :, None] * padded.shape[-1] + columns[:, None, :]).reshape(len(x), 1, -1).to(x.device)
        planes = padded.reshape(len(x), -1, padded.shape[-2] * padded.shape[-1])
        return planes.gather(2, places.expand(-1, planes.shape[1], -1)).reshape(x.shape)

    def draws(self, n: int, seed: int, t0: int) -> tuple[Tensor, Tensor, Tensor]:
        """For each of n rows: where its crop of the padded image begins (down, right), and whether it is mirrored."""
        words = stream(seed, AUGMENT, t0).words(3 * n).reshape(n, 3)
        places = torch.from_numpy((words[:, :2] % (2 * self.padding + 1)).astype("int64"))
        return places[:, 0], places[:, 1], torch.from_numpy(words[:, 2] >> 63 == 1)
