"""ModelNet10 as rendered views, party m holding some of the views of every item.

Read are PNG files in either of the layouts in which renderings are handed round:

    CLASS/{train,test}/ITEM/VIEW.png              e.g. sofa/train/sofa_0001/003.png
    CLASS/{train,test}/ITEM_VIEW.png              e.g. sofa/train/sofa_0001.obj.shaded_v003.png

Folders of other classes are passed over, so renderings of ModelNet40 serve as they are.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cvfl.data.sets import Progress
from cvfl.data.sets.pixels import Pixels
from cvfl.data.vertical import VerticalData
from cvfl.errors import DataError, suggest
from cvfl.protocol import Loss

CLASSES = ("bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet")
_FLAT = re.compile(r"(.+)_v?(\d+)\.png", re.IGNORECASE)
_THREADS = 4


@dataclass(frozen=True)
class _Item:
    """An object: where its views lie, and its class."""

    name: Path
    views: tuple[Path, ...]
    label: int


def load_modelnet10(
    path: Path,
    parties: int = 4,
    dtype: torch.dtype = torch.float32,
    on_progress: Progress = lambda done, total: None,
) -> VerticalData:
    """The publisher's split, the views of an item dealt out to the parties in order: rows of views x 1 x H x W.

    Images with colour give 3 channels in place of 1. An item without any drawing is kept.
    """
    root = _root(path)
    splits = [list(_items(root, split)) for split in ("train", "test")]
    everything = [*splits[0], *splits[1]]
    views = _view_count(everything, root)
    if parties < 1 or views % parties:
        possible = ", ".join(str(n) for n in range(1, views + 1) if views % n == 0)
        raise DataError(f"{root}: {views} views cannot be dealt out to {parties} parties (possible: {possible})")
    images = _read(everything, on_progress)
    labels = torch.tensor([item.label for item in everything])
    sizes = [len(split) for split in splits]
    (train, test), (train_labels, test_labels) = torch.split(images, sizes), torch.split(labels, sizes)
    each = views // parties
    return VerticalData(
        names=tuple(f"view-{at + 1}" if each == 1 else f"views-{at + 1}-{at + each}" for at in range(0, views, each)),
        train=tuple(Pixels(part, dtype) for part in torch.split(train, each, dim=1)),
        test=tuple(Pixels(part, dtype) for part in torch.split(test, each, dim=1)),
        train_labels=train_labels,
        test_labels=test_labels,
        loss=Loss.MULTICLASS,
    )


def _root(path: Path) -> Path:
    """The folder of classes: this one, or the only one in it that has any."""
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; give the one that holds {', '.join(CLASSES)}")
    inner = sorted(folder for folder in path.iterdir() if folder.is_dir())
    for root in (path, *inner):
        if any((root / name).is_dir() for name in CLASSES):
            return root
    raise DataError(f"{path}: none of the classes {', '.join(CLASSES)} is a folder here")


def _items(root: Path, split: str) -> Iterator[_Item]:
    """The items of a split by class and name."""
    for label, name in enumerate(CLASSES):
        folder = root / name / split
        if not folder.is_dir():
            near = suggest(name, (entry.name for entry in root.iterdir() if entry.is_dir()))
            raise DataError(f"{folder}: no such folder{near if not folder.parent.is_dir() else ''}")
        groups: dict[str, list[Path]] = defaultdict(list)
        for entry in _visible(folder):
            if entry.is_dir():
                groups[entry.name] += [file for file in _visible(entry) if file.suffix.lower() == ".png"]
            elif match := _FLAT.fullmatch(entry.name):
                groups[match[1]].append(entry)
        for item in sorted(groups):
            yield _Item(folder / item, tuple(sorted(groups[item], key=_view_order)), label)


def _visible(folder: Path) -> Iterator[Path]:
    """What lies in a folder, without the dot files that some archives bring along."""
    return (entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _view_order(file: Path) -> tuple[int, str]:
    """Views by their number, the last in the name, so that 2 comes before 10."""
    numbers = re.findall(r"\d+", file.stem)
    return int(numbers[-1]) if numbers else -1, file.name


def _view_count(items: list[_Item], root: Path) -> int:
    """How many views every item has."""
    if not items:
        raise DataError(f"{root}: no PNG files as CLASS/{{train,test}}/ITEM/VIEW.png or .../ITEM_VIEW.png")
    views, _ = Counter(len(item.views) for item in items).most_common(1)[0]
    for item in items:
        if len(item.views) != views:
            raise DataError(f"{item.name}: {len(item.views)} views, others have {views}; complete or remove it")
    return views


class _ColouredError(Exception):
    """An image needs three channels."""


def _read(items: list[_Item], on_progress: Progress) -> Tensor:
    """All images as items x views x channels x H x W bytes; one channel unless some image has colour."""
    try:
        return _stacked(items, 1, on_progress)
    except _ColouredError:
        return _stacked(items, 3, on_progress)


def _stacked(items: list[_Item], channels: int, on_progress: Progress) -> Tensor:
    views = len(items[0].views)
    first = _pixels(items[0].views[0], channels)
    images = np.empty((len(items), views, *first.shape), np.uint8)

    def fill(at: int) -> None:
        for view, file in enumerate(items[at].views):
            pixels = _pixels(file, channels)
            if pixels.shape != first.shape:
                size, usual = ("x".join(map(str, shape[:0:-1])) for shape in (pixels.shape, first.shape))
                raise DataError(f"{file}: {size} pixels, but {items[0].views[0].name} and others have {usual}")
            images[at, view] = pixels

    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for done, _ in enumerate(pool.map(fill, range(len(items))), start=1):
                on_progress(done * views, len(items) * views)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return torch.from_numpy(images)


def _pixels(file: Path, channels: int) -> NDArray[np.uint8]:
    """One image as channels x H x W bytes."""
    try:
        with Image.open(file, formats=("PNG",)) as image:
            grey = image.mode in {"1", "L", "LA"}
            if not grey and image.mode not in {"P", "RGB", "RGBA"}:
                raise ValueError(f"{image.mode} pixels; save it with 8 bits a channel")
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{file}: not a readable PNG ({error}); render or copy it again") from None
    planes = pixels[None] if grey else pixels.transpose(2, 0, 1)
    if channels == len(planes):
        return planes
    if channels == 3:
        return np.broadcast_to(planes, (3, *planes.shape[1:]))
    if (planes != planes[:1]).any():
        raise _ColouredError
    return planes[:1]
