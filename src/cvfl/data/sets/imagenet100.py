"""ImageNet100: a hundred classes of ImageNet, read from its folders when rows are asked for.

    train/WNID/*.JPEG, val/WNID/*.JPEG, imagenet100.txt       the last lists the classes, one WNID a line

Each image is resized to 256 pixels on its shorter side and its centre of 224 x 224 is divided among the parties. The
parties of one process share what was decoded: the first one to ask for a batch decodes it, the others find it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cvfl.data.sets.augment import CropAndFlip
from cvfl.data.sets.pixels import part_names, parts, scaled
from cvfl.data.vertical import VerticalData
from cvfl.errors import DataError, suggest
from cvfl.protocol import Loss

CLASSES = "imagenet100.txt"
SHORTER, SIDE = 256, 224
_TRAIN_KEPT, _TEST_KEPT = 512, 5120  # images: two rounds' batches of the paper, and its whole test set at 0.8 GB


def load_imagenet100(
    path: Path, classes: Path | None = None, parties: int = 4, dtype: torch.dtype = torch.float32
) -> VerticalData:
    """The listed classes of ImageNet; its validation images are the test rows, since those of its test have no labels.

    The list is PATH/imagenet100.txt unless another one is given.
    """
    names, wnids = part_names(parties), read_classes(classes or path / CLASSES)
    train, train_labels = _files(path / "train", wnids)
    test, test_labels = _files(path / "val", wnids)
    train_rows = _rows(Pictures(train, _TRAIN_KEPT), parties, dtype)
    return VerticalData(
        names=names,
        train=train_rows,
        test=_rows(Pictures(test, _TEST_KEPT), parties, dtype),
        train_labels=train_labels,
        test_labels=test_labels,
        loss=Loss.MULTICLASS,
        augment=CropAndFlip(padding=train_rows[0].shape[-1] // 8),
    )


def read_classes(file: Path) -> tuple[str, ...]:
    """The WNIDs in a list: one a line; what follows a # is a comment."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file}: not a readable list of classes ({error}); write one WNID a line, or take the paper's list, "
            "imagenet100.txt of https://github.com/HobbitLong/CMC"
        ) from None
    wnids = [wnid for line in lines if (wnid := line.partition("#")[0].strip())]
    if twice := sorted({wnid for wnid in wnids if wnids.count(wnid) > 1}):
        raise DataError(f"{file}: {twice[0]} is listed twice")
    if len(wnids) < 2:
        raise DataError(f"{file}: {len(wnids)} classes listed; write at least two WNIDs, one a line")
    return tuple(wnids)


def _files(folder: Path, wnids: tuple[str, ...]) -> tuple[tuple[Path, ...], Tensor]:
    """The images of the classes, in the order of the list, and their labels."""
    known = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    if not known:
        raise DataError(f"{folder}: no folders of classes here; sort the images into {folder / 'WNID'}")
    files: list[Path] = []
    labels: list[int] = []
    for label, wnid in enumerate(wnids):
        if wnid not in known:
            raise DataError(f"{folder}: no folder for the class {wnid!r}{suggest(wnid, known)}")
        images = sorted(file for file in (folder / wnid).iterdir() if file.suffix.lower() in {".jpeg", ".jpg"})
        if not images:
            raise DataError(f"{folder / wnid}: no JPEG files here; unpack the class again")
        files += images
        labels += [label] * len(images)
    return tuple(files), torch.tensor(labels)


@dataclass(frozen=True, eq=False)
class Pictures:
    """Image files, decoded a batch at a time; the latest batches are kept, up to `kept` images."""

    files: tuple[Path, ...]
    kept: int
    _batches: OrderedDict[tuple[int, ...], Tensor] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, rows: Tensor) -> Tensor:
        """The asked images as B x 3 x 224 x 224 bytes."""
        key = tuple(rows.tolist())
        with self._lock:  # parties that ask for the same batch at the same time wait for the first of them
            if key not in self._batches:
                self._batches[key] = self._decode(key)
            self._batches.move_to_end(key)
            while len(self._batches) > 1 and sum(map(len, self._batches.values())) > self.kept:
                self._batches.popitem(last=False)
            return self._batches[key]

    def _decode(self, rows: tuple[int, ...]) -> Tensor:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            images = list(pool.map(_decoded, [self.files[row] for row in rows]))
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def _decoded(file: Path) -> NDArray[np.uint8]:
    """The centre of an image as 224 x 224 x 3 bytes."""
    try:
        with Image.open(file, formats=("JPEG", "PNG")) as image:  # a few files of ImageNet are PNG by another name
            width, height = image.size
            half = min(width, height) * SIDE / SHORTER / 2
            # The crop is taken within the resizing: only the pixels that stay are computed.
            box = (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half)
            small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
            return np.asarray(small)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{file}: not a readable image ({error}); copy it again or remove it") from None


@dataclass(frozen=True, eq=False)
class PictureRows:
    """One party's part of pictures that it shares with the other parties of its process."""

    pictures: Pictures
    part: int
    parties: int
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, then the shape of one."""
        return len(self), *parts(torch.empty(3, SIDE, SIDE, device="meta"), self.parties)[self.part].shape

    def __len__(self) -> int:
        return len(self.pictures.files)

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        images = parts(self.pictures.read(rows), self.parties)[self.part]
        return scaled(images, self.dtype).contiguous()


def _rows(pictures: Pictures, parties: int, dtype: torch.dtype) -> tuple[PictureRows, ...]:
    return tuple(PictureRows(pictures, part, parties, dtype) for part in range(parties))
