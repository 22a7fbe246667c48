"""Data sets by name, written small in their publishers' layouts."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cvfl.data.sets.modelnet10 import CLASSES
from cvfl.rng import stream


def images(*shape: int) -> NDArray[np.uint8]:
    return (stream(1, "test images", *shape).words(int(np.prod(shape))) >> 56).astype(np.uint8).reshape(shape)


def python3_batch(data: NDArray[Any], labels: list[int]) -> bytes:
    """A batch as Python 3 writes it in the old protocol."""
    return pickle.dumps({b"batch_label": b"a batch", b"labels": labels, b"data": data}, protocol=2)


def python2_batch(data: NDArray[np.uint8], labels: list[int]) -> bytes:
    """A batch as published: what Python 2 and its NumPy wrote, byte strings as they are and the old module's name."""

    def text(content: bytes) -> bytes:
        return b"U" + bytes([len(content)]) + content

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01" + b"".join(b"J" + struct.pack("<i", side) for side in data.shape) + b"\x86"
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<i", data.nbytes) + data.tobytes() + b"tb"
    )
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"labels") + listed + text(b"data") + array + b"u."


def write_cifar(
    folder: Path, batch: Callable[[NDArray[np.uint8], list[int]], bytes] = python3_batch, rows: int = 20
) -> NDArray[np.uint8]:
    """Six batches in their layout; the result is all training images."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = [row % 10 for row in range(rows)]
    data = images(6, rows, 3072)
    for name, content in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], data, strict=True):
        (folder / name).write_bytes(batch(content, labels))
    return data[:5].reshape(-1, 3, 32, 32)


def write_modelnet(root: Path, views: int = 12, name: str = "{item}/{view:03d}.png") -> NDArray[np.uint8]:
    """Two training items and one test item of each class; the result is the training images."""
    data = images(len(CLASSES), 3, views, 20, 20)
    data[0, 0] = 255  # a blank item
    for label, kind in enumerate(CLASSES):
        for at, split in enumerate(("train", "train", "test")):
            for view in range(views):
                file = root / kind / split / name.format(item=f"{kind}_{at + 1:04d}", view=view)
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(data[label, at, view]).save(file)
    return data[:, :2].reshape(-1, views, 1, 20, 20)


WNIDS = ("n02869837", "n01749939", "n02488291")


def write_imagenet(root: Path) -> Path:
    """Two training images and one to test with of three classes, of many sizes; the result is the list of classes."""
    sizes = [(300, 260), (256, 256), (500, 375), (200, 333), (640, 100), (256, 300), (64, 64), (257, 256), (31, 40)]
    for at, (width, height) in enumerate(sizes):
        split = "val" if at % 3 == 2 else "train"
        file = root / split / WNIDS[at // 3] / f"{WNIDS[at // 3]}_{at}.JPEG"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(images(8, 8, 3)).resize((width, height), Image.Resampling.BICUBIC)
        (picture.convert("L") if at == 3 else picture).save(file, "JPEG", quality=95)
    listed = root / "classes.txt"
    listed.write_text("# three of a hundred\n" + "\n\n".join(f"{wnid}  # a class" for wnid in WNIDS))
    return listed


PHYSIONET_DESCRIPTORS = ("00:00,Age,70", "00:00,Gender,0", "00:00,Height,-1", "00:00,ICUType,4", "00:00,Weight,80")
SET_A = {
    101: ("01:30,HR,60", "05:00,HR,80", "05:00,pH,7.3", "06:10,MechVent,1"),
    102: ("00:20,HR,100", "00:50,HR,110", "48:00,HR,90", "03:00,pH,735"),
    103: (),
    104: ("02:00,HR,70", "02:00,Urine,40", "03:00,pH,7.4"),
}
SET_B = {201: ("04:15,HR,300",), 202: ("04:15,Lactate,2.5",)}
DEATHS = {101: 0, 102: 1, 103: 0, 104: 1, 201: 1, 202: 0}


def physionet_record(number: int, lines: tuple[str, ...], descriptors: tuple[str, ...] = PHYSIONET_DESCRIPTORS) -> str:
    return "\n".join(["Time,Parameter,Value", f"00:00,RecordID,{number}", *descriptors, *lines]) + "\n"


def physionet_outcomes(deaths: Mapping[int, int]) -> str:
    lines = (f"{number},6,1,5,-1,{died}" for number, died in deaths.items())
    return "\n".join(["RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death", *lines]) + "\n"


def write_physionet(
    path: Path, set_a: Mapping[int, tuple[str, ...]] = SET_A, set_b: Mapping[int, tuple[str, ...]] = SET_B
) -> Path:
    for letter, records in (("a", set_a), ("b", set_b)):
        (path / f"set-{letter}").mkdir(parents=True)
        for number, lines in records.items():
            (path / f"set-{letter}" / f"{number}.txt").write_text(physionet_record(number, lines), encoding="utf-8")
        (path / f"Outcomes-{letter}.txt").write_text(
            physionet_outcomes({number: DEATHS[number] for number in records}), encoding="utf-8"
        )
    return path


SPELLED = ["LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"]
SPELLED += [f"BILL_AMT{i}" for i in range(1, 7)] + [f"PAY_AMT{i}" for i in range(1, 7)]


def write_credit(folder: Path, rows: int = 60, *, coded: bool = True) -> np.ndarray:
    random = np.random.default_rng(0)
    table = random.integers(0, 1000, (rows, 23))
    table[:, 1:4] = random.integers(1, 3, (rows, 3))
    header = [f"X{i}" for i in range(1, 24)] if coded else SPELLED
    label = "Y" if coded else "default.payment.next.month"
    lines = [",".join(["ID", *header, label])]
    lines += [",".join(map(str, [i + 1, *row, i % 2])) for i, row in enumerate(table)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    return table


def write_adult(folder: Path) -> None:
    def line(i: int, end: str = "") -> str:
        two = i % 2
        values = [20 + i, "?" if i % 5 == 0 else ("Private", "State-gov")[two], 77516, ("Bachelors", "Masters")[two]]
        values += [13 + two, ("Never-married", "Divorced")[two], f"job{i % 3}", ("Husband", "Wife")[two]]
        values += [("White", "Black")[two], ("Male", "Female")[two], i * 10, i % 4, 30 + i % 7, ("Peru", "Cuba")[two]]
        return ", ".join(map(str, [*values, (">50K" if i % 3 == 0 else "<=50K") + end])) + "\n"

    (folder / "adult.data").write_text("".join(map(line, range(30))) + "\n")
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + "".join(line(i, ".") for i in range(12)) + "\n")


def write_mfeat(folder: Path, rows: int = 2000) -> None:
    for suffix, width in {"fou": 76, "fac": 216, "kar": 64, "pix": 240, "zer": 47, "mor": 6}.items():
        values = np.arange(rows)[:, None] // 200 + np.arange(width) / width
        np.savetxt(folder / f"mfeat-{suffix}", values, fmt="%.4f")
