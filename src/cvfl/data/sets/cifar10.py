"""CIFAR-10 from its publisher's python batches; party m holds quadrant m of every image."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.data.sets.augment import CropAndFlip
from cvfl.data.sets.pixels import Pixels, part_names, parts
from cvfl.data.vertical import VerticalData
from cvfl.errors import DataError
from cvfl.protocol import Loss

FOLDER = "cifar-10-batches-py"
SIDE = 32
CLASSES = 10
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST = ("test_batch",)


def load_cifar10(path: Path, parties: int = 4, dtype: torch.dtype = torch.float32) -> VerticalData:
    """The publisher's 50,000 training and 10,000 test images, divided among 4 (quadrants), 2 (halves) or 1.

    `path` is the folder of batches or the one it lies in. Training rows are shifted by up to an eighth of a part's
    side and mirrored.
    """
    names = part_names(parties)
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    train, train_labels = _read(folder, _TRAIN)
    test, test_labels = _read(folder, _TEST)
    return VerticalData(
        names=names,
        train=tuple(Pixels(part, dtype) for part in parts(train, parties)),
        test=tuple(Pixels(part, dtype) for part in parts(test, parties)),
        train_labels=train_labels,
        test_labels=test_labels,
        loss=Loss.MULTICLASS,
        augment=CropAndFlip(padding=parts(train, parties)[0].shape[-1] // 8),
    )


def _read(folder: Path, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    batches = [_batch(folder / name) for name in names]
    images = torch.from_numpy(np.concatenate([images for images, _ in batches]))
    return images, torch.from_numpy(np.concatenate([labels for _, labels in batches]))


def _batch(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N x 3 x 32 x 32) and labels of one batch."""
    content = _unpickled(file)
    if not isinstance(content, dict):
        raise DataError(f"{file}: not a CIFAR-10 batch; fetch the data set again")
    array, labels = content.get(b"data"), content.get(b"labels")
    data = array.values if isinstance(array, _Array) else np.empty(0, np.uint8)
    if data.shape[1:] != (3 * SIDE * SIDE,):
        raise DataError(f"{file}: its data are not rows of {3 * SIDE * SIDE} bytes; fetch the data set again")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(_is_class(label) for label in labels):
        raise DataError(f"{file}: it needs a label from 0 to {CLASSES - 1} for each of {len(data)} images")
    return data.reshape(-1, 3, SIDE, SIDE), np.array(labels, dtype=np.int64)


def _is_class(label: object) -> bool:
    return isinstance(label, int) and 0 <= label < CLASSES


def _unpickled(file: Path) -> object:
    try:
        with file.open("rb") as stream:
            return _Unpickler(stream, encoding="bytes").load()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}; give the folder {FOLDER} of cifar-10-python.tar.gz") from None
    except _RefusedError as error:
        raise DataError(f"{file}: {error}; it is not one of the publisher's files, do not use it") from None
    except Exception as error:  # broken pickles raise almost anything
        raise DataError(f"{file}: not a readable batch ({error}); fetch the data set again") from None


class _RefusedError(Exception):
    """A pickle asks for something that no CIFAR-10 batch needs."""


class _Unpickler(pickle.Unpickler):
    """Reads plain containers, byte strings and uint8 arrays; whatever else a pickle could call is refused.

    Nothing is looked up by name, and NumPy is not called by the file. The batches as published (Python 2) and as
    written again by Python 3 both read.
    """

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct":
                return self._array
            case "numpy", "ndarray":
                return None  # the file only hands it to _reconstruct
            case "numpy", "dtype":
                return self._dtype
            case "_codecs", "encode":  # how Python 3 writes byte strings in the old protocol
                return self._bytes
        raise _RefusedError(f"asks for {module}.{name}")

    def _array(self, *_: object) -> _Array:
        return _Array()

    def _dtype(self, kind: object, *_: object) -> _Byte:
        if kind not in {"u1", b"u1"}:
            raise _RefusedError(f"holds an array of {kind!r}")
        return _Byte()

    def _bytes(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise _RefusedError(f"asks for the encoding {encoding!r}")
        return text.encode("latin1")


class _Array:
    """Stands for the array that a pickle describes."""

    values: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], object, bool, bytes]) -> None:
        _, shape, _, fortran, content = state
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Byte:
    """Stands for the type uint8, whose description in the pickle says nothing new."""

    def __setstate__(self, state: object) -> None: ...
