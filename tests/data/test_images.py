"""Image data sets from files in their publishers' layouts: written here, or real ones in the folder CVFL_DATA names."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cvfl.data.sets.augment import AUGMENT, CropAndFlip
from cvfl.data.sets.cifar10 import load_cifar10
from cvfl.data.sets.imagenet100 import Pictures, load_imagenet100, read_classes
from cvfl.data.sets.modelnet10 import CLASSES, load_modelnet10
from cvfl.data.sets.pixels import Pixels, parts, scaled
from cvfl.errors import DataError
from cvfl.protocol.rows import Holding
from cvfl.rng import stream
from publishers import images, python2_batch, python3_batch, write_cifar, write_imagenet, write_modelnet


def real(name: str) -> Path:
    """A real copy, or a skip that says which folder is missing."""
    folder = Path(os.environ.get("CVFL_DATA", "")) / name
    if "CVFL_DATA" not in os.environ or not folder.is_dir():
        pytest.skip(f"no real copy: set CVFL_DATA to a folder that has {name}")
    return folder


# --- CIFAR-10 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [python2_batch, python3_batch])
def test_cifar_quadrants_make_up_the_published_images(tmp_path: Path, batch: Callable[..., bytes]) -> None:
    expected = write_cifar(tmp_path / "cifar-10-batches-py", batch)
    data = load_cifar10(tmp_path, dtype=torch.float64)  # the folder above is found as well
    assert data.names == ("top-left", "top-right", "bottom-left", "bottom-right")
    assert [part.shape for part in data.train] == [(100, 3, 16, 16)] * 4
    assert [part.shape for part in data.test] == [(20, 3, 16, 16)] * 4
    rows = torch.tensor([7, 0, 99, 7])
    a, b, c, d = (part[rows] for part in data.train)
    whole = torch.cat([torch.cat([a, b], 3), torch.cat([c, d], 3)], 2)
    torch.testing.assert_close(whole, torch.from_numpy((expected[rows] / 255 - 0.5) / 0.5), rtol=0, atol=0)
    assert data.train_labels.tolist() == [row % 10 for row in range(20)] * 5
    assert data.outputs == 10


@pytest.mark.parametrize(("parties", "shape"), [(1, (3, 32, 32)), (2, (3, 32, 16)), (4, (3, 16, 16))])
def test_cifar_is_divided_among_few_parties(tmp_path: Path, parties: int, shape: tuple[int, ...]) -> None:
    write_cifar(tmp_path)
    data = load_cifar10(tmp_path, parties)
    assert {part.shape[1:] for part in data.train} == {shape}
    assert len(data.names) == parties
    assert data.augment == CropAndFlip(shape[-1] // 8)


def test_cifar_names_what_is_possible(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"among 4 parties .quadrants., 2 .halves. or 1 .whole., not 3"):
        load_cifar10(tmp_path, 3)


class _Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


class _OddText:
    def __reduce__(self) -> tuple[Any, ...]:
        import _codecs  # noqa: PLC0415 - the module a pickle names

        return _codecs.encode, ("x", "rot13")


ROW = np.zeros((1, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(_Harm()), "asks for .*system; it is not one of the publisher's files, do not use it"),
        (pickle.dumps({b"data": np.float64(1)}, protocol=2), "asks for numpy.*.scalar"),
        (pickle.dumps({b"data": ROW.astype(np.float32)}, protocol=2), "holds an array of 'f4'"),
        (pickle.dumps(_OddText()), "asks for the encoding 'rot13'"),
        (python3_batch(ROW, [0])[:-60], "not a readable batch"),
        (python2_batch(ROW, [0]).replace(b"\x00\x0c\x00\x00\x86", b"\x01\x0c\x00\x00\x86"), "not a readable batch"),
        (b"", "not a readable batch"),
        (pickle.dumps([1, 2]), "not a CIFAR-10 batch"),
        (pickle.dumps({b"data": 1, b"labels": []}), "not rows of 3072 bytes"),
        (python3_batch(ROW[:, :100], [0]), "not rows of 3072 bytes"),
        (python3_batch(ROW, [0, 1]), "a label from 0 to 9 for each of 1 images"),
        (python3_batch(ROW, [10]), "a label from 0 to 9 for each of 1 images"),
    ],
)
def test_a_batch_that_is_none_is_refused_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path)
    (tmp_path / "data_batch_3").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_3: .*{message}"):
        load_cifar10(tmp_path)
    assert not (tmp_path / "harmed").exists()


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_batch_1: No such file .*give the folder cifar-10-batches-py"):
        load_cifar10(tmp_path)


def test_the_real_cifar_has_fifty_thousand_training_images() -> None:
    data = load_cifar10(real("cifar-10-batches-py"))
    assert (len(data.train_labels), len(data.test_labels)) == (50_000, 10_000)
    assert data.train_labels.bincount().tolist() == [5000] * 10
    assert data.train_labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    every = torch.arange(0, 50_000, 50)
    means = torch.stack([part[every].mean((0, 2, 3)) for part in data.train]).mean(0)
    torch.testing.assert_close((means + 1) / 2, torch.tensor([0.4914, 0.4822, 0.4465]), rtol=0, atol=0.01)


# --- augmentation -----------------------------------------------------------------------------------------------------


def moved_by_hand(x: torch.Tensor, padding: int, seed: int, t0: int) -> torch.Tensor:
    """The slow truth: one row after another."""
    height, width = x.shape[-2:]
    moved = []
    for row, (a, b, c) in zip(x, stream(seed, AUGMENT, t0).words(3 * len(x)).reshape(-1, 3).tolist(), strict=True):
        down, right = a % (2 * padding + 1), b % (2 * padding + 1)
        canvas = torch.zeros(*row.shape[:-2], height + 2 * padding, width + 2 * padding, dtype=x.dtype)
        canvas[..., padding : padding + height, padding : padding + width] = row
        crop = canvas[..., down : down + height, right : right + width]
        moved.append(crop.flip(-1) if c >= 1 << 63 else crop)
    return torch.stack(moved)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6), st.lists(st.integers(1, 3), max_size=2), st.integers(1, 9), st.integers(1, 9), st.integers(0, 5)
)
def test_rows_move_as_by_hand(rows: int, middle: list[int], height: int, width: int, padding: int) -> None:
    x = torch.from_numpy(images(rows, *middle, height, width)).double() + 1
    for t0 in range(3):
        assert torch.equal(CropAndFlip(padding)(x, 7, t0), moved_by_hand(x, padding, 7, t0))


def test_moving_back_gives_the_image_inside() -> None:
    x = torch.from_numpy(images(40, 3, 12, 12)).float() + 1
    change = CropAndFlip(2)
    moved = change(x, 3, 5)
    down, right, mirrored = change.draws(40, 3, 5)
    for row in range(40):
        back = moved[row].flip(-1) if mirrored[row] else moved[row]
        back = back.roll((int(down[row]) - 2, int(right[row]) - 2), (-2, -1))
        assert torch.equal(back[:, 2:-2, 2:-2], x[row, :, 2:-2, 2:-2])


def test_parties_of_any_size_draw_alike_and_rounds_differ() -> None:
    change = CropAndFlip(2)
    small, large = torch.zeros(64, 1, 9, 9), torch.zeros(64, 3, 21, 21)
    small[:, :, 4, 4] = large[:, :, 10, 10] = 1  # the middle: a mirror leaves it where it is
    middles = [change(x, 1, 0)[:, 0].nonzero()[:, 1:] - x.shape[-1] // 2 for x in (small, large)]
    assert torch.equal(*middles)
    assert set(middles[0].flatten().tolist()) == set(range(-2, 3))
    assert not torch.equal(change(large, 1, 0), change(large, 1, 1))
    assert not torch.equal(change(large, 1, 0), change(large, 2, 0))
    assert torch.equal(change(large, 1, 0)[:10], change(large[:10], 1, 0))


def test_without_padding_rows_are_only_mirrored() -> None:
    x = torch.from_numpy(images(200, 1, 2, 5))
    moved = CropAndFlip(0)(x, 1, 1)
    same = (moved == x).flatten(1).all(1)
    assert 60 < int(same.sum()) < 140
    assert torch.equal(moved[~same], x[~same].flip(-1))


def test_a_negative_padding_is_refused() -> None:
    with pytest.raises(DataError, match="padding of -1 pixels is negative"):
        CropAndFlip(-1)


def test_a_party_sees_its_rows_changed_in_training_only(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    data = load_cifar10(tmp_path)
    holding = Holding(data.names[1], data.train[1], (data.test[1],), augment=data.augment)
    rows = torch.arange(50)
    assert torch.equal(holding.batch(rows, 5, 2), moved_by_hand(data.train[1][rows], 2, 5, 2))
    assert torch.equal(torch.cat(list(holding.evaluation_batches(8))), data.test[1][torch.arange(20)])


def test_bytes_become_numbers_within_one() -> None:
    x = scaled(torch.arange(256, dtype=torch.uint8), torch.float32)
    assert (x[0], x[255]) == (-1, 1)
    assert bool((x.diff() > 0).all())
    assert Pixels(torch.zeros(5, 2, 3, dtype=torch.uint8), torch.float64)[torch.tensor([1, 1])].dtype == torch.float64


def test_parts_of_odd_images_make_up_the_whole() -> None:
    image = torch.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7)
    assert torch.equal(torch.cat(parts(image, 2), 3), image)
    assert sum(part.numel() for part in parts(image, 4)) == image.numel()
    assert torch.equal(parts(image, 1)[0], image)


# --- ModelNet10 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["{item}/{view:03d}.png", "{item}.obj.shaded_v{view:03d}.png", "{item}_{view}.png"])
def test_views_are_dealt_out_in_order(tmp_path: Path, name: str) -> None:
    expected = write_modelnet(tmp_path / "rendered", name=name)
    (tmp_path / "rendered" / "airplane" / "train").mkdir(parents=True)  # a class of ModelNet40 only
    (tmp_path / "rendered" / "bed" / "train" / "._bed_0001_1.png").write_bytes(b"left by an archiver")
    told: list[tuple[int, int]] = []
    data = load_modelnet10(tmp_path, on_progress=lambda *step: told.append(step))
    assert data.names == ("views-1-3", "views-4-6", "views-7-9", "views-10-12")
    assert [part.shape for part in data.train] == [(20, 3, 1, 20, 20)] * 4
    assert [part.shape for part in data.test] == [(10, 3, 1, 20, 20)] * 4
    every = torch.cat([part[torch.arange(20)] for part in data.train], 1)
    assert torch.equal(every, scaled(torch.from_numpy(expected), torch.float32))
    assert data.train_labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert data.test_labels.tolist() == list(range(10))
    assert (told[0], told[-1]) == ((12, 360), (360, 360))


def test_every_divisor_of_the_views_is_a_number_of_parties(tmp_path: Path) -> None:
    write_modelnet(tmp_path, views=6)
    for parties in (1, 2, 3, 6):
        data = load_modelnet10(tmp_path, parties)
        assert [part.shape for part in data.test] == [(10, 6 // parties, 1, 20, 20)] * parties
    assert data.names == tuple(f"view-{view}" for view in range(1, 7))
    with pytest.raises(DataError, match=r"6 views cannot be dealt out to 4 parties .possible: 1, 2, 3, 6."):
        load_modelnet10(tmp_path, 4)


def test_colour_anywhere_gives_three_channels_everywhere(tmp_path: Path) -> None:
    grey = write_modelnet(tmp_path, views=2)
    Image.fromarray(grey[3, 0, 0]).convert("RGB").save(tmp_path / "bed" / "train" / "bed_0002" / "000.png")
    assert load_modelnet10(tmp_path, 1).train[0].shape == (20, 2, 1, 20, 20)
    colour = images(20, 20, 3)
    Image.fromarray(colour).save(tmp_path / "toilet" / "test" / "toilet_0003" / "001.png")
    data = load_modelnet10(tmp_path, 1)
    assert data.test[0].shape == (10, 2, 3, 20, 20)
    shown = data.test[0][torch.tensor([9])][0, 1]
    assert torch.equal(shown, scaled(torch.from_numpy(colour), torch.float32).permute(2, 0, 1))
    first = data.train[0][torch.tensor([3])][0, 0]
    assert torch.equal(first, scaled(torch.from_numpy(grey[3, 0]), torch.float32).expand(3, -1, -1))


def test_items_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    write_modelnet(tmp_path, views=2)
    odd = tmp_path / "desk" / "train" / "desk_0002" / "001.png"
    for content, message in [
        (b"", "not a readable PNG"),
        (odd.read_bytes()[:100], "not a readable PNG"),
        (None, r"desk_0002: 1 views, others have 2; complete or remove it"),
    ]:
        if content is None:
            odd.unlink()
        else:
            odd.write_bytes(content)
        with pytest.raises(DataError, match=f"desk.train.desk_0002.*{message}" if content is not None else message):
            load_modelnet10(tmp_path, 1)
    Image.fromarray(images(20, 18)).save(odd)
    with pytest.raises(DataError, match=r"001.png: 18x20 pixels, but 000.png and others have 20x20"):
        load_modelnet10(tmp_path, 1)
    Image.fromarray(images(20, 20).astype(np.uint16) * 200).save(odd)
    with pytest.raises(DataError, match=r"001.png: .*save it with 8 bits a channel"):
        load_modelnet10(tmp_path, 1)


def test_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: no such folder; give the one that holds bathtub, bed"):
        load_modelnet10(tmp_path / "gone")
    with pytest.raises(DataError, match=r"none of the classes bathtub, bed.* is a folder here"):
        load_modelnet10(tmp_path)
    write_modelnet(tmp_path, views=1)
    (tmp_path / "night_stand").rename(tmp_path / "nightstand")
    with pytest.raises(DataError, match=r"night_stand.train: no such folder; did you mean 'nightstand'"):
        load_modelnet10(tmp_path)
    for kind in CLASSES:
        for split in ("train", "test"):
            (tmp_path / "empty" / kind / split).mkdir(parents=True)
    with pytest.raises(DataError, match="empty: no PNG files as CLASS"):
        load_modelnet10(tmp_path / "empty")


def test_the_real_modelnet_has_its_official_split() -> None:
    data = load_modelnet10(real("modelnet10"), 12)
    assert [part.shape for part in data.train] == [(3991, 1, 1, 48, 48)] * 12
    assert [part.shape for part in data.test] == [(908, 1, 1, 48, 48)] * 12
    assert data.test_labels.bincount().tolist() == [50, 100, 100, 86, 86, 100, 86, 100, 100, 100]


# --- ImageNet100 ------------------------------------------------------------------------------------------------------


def test_images_are_resized_cropped_and_divided(tmp_path: Path) -> None:
    data = load_imagenet100(tmp_path, write_imagenet(tmp_path), dtype=torch.float64)
    assert [part.shape for part in data.train] == [(6, 3, 112, 112)] * 4
    assert [part.shape for part in data.test] == [(3, 3, 112, 112)] * 4
    assert data.train_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.augment == CropAndFlip(14)
    rows = torch.arange(6)
    a, b, c, d = (part[rows] for part in data.train)
    assert a.is_contiguous()
    whole = torch.cat([torch.cat([a, b], 3), torch.cat([c, d], 3)], 2)
    for row, file in enumerate(data.train[0].pictures.files):  # type: ignore[attr-defined]
        with Image.open(file) as image:
            picture = image.convert("RGB")
        scale = 256 / min(picture.size)
        picture = picture.resize(
            (round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BILINEAR
        )
        left, top = (picture.width - 224) / 2, (picture.height - 224) / 2
        expected = np.asarray(picture.crop((round(left), round(top), round(left) + 224, round(top) + 224)))
        error = (whole[row].permute(1, 2, 0) + 1) * 127.5 - torch.from_numpy(expected.copy())
        assert float(error.abs().mean()) < 1.5, file  # a crop between pixels is resampled


def test_a_square_image_of_the_right_size_is_not_resampled(tmp_path: Path) -> None:
    write_imagenet(tmp_path).rename(tmp_path / "imagenet100.txt")  # the list that is read unless another is given
    data = load_imagenet100(tmp_path, parties=1)
    with Image.open(data.train[0].pictures.files[1]) as image:  # type: ignore[attr-defined]
        expected = torch.from_numpy(np.asarray(image.crop((16, 16, 240, 240))).copy()).permute(2, 0, 1)
    assert torch.equal(data.train[0][torch.tensor([1])][0], scaled(expected, torch.float32))


def test_an_image_is_decoded_once_for_all_parties(tmp_path: Path) -> None:
    data = load_imagenet100(tmp_path, write_imagenet(tmp_path))
    rows = torch.tensor([4, 1])
    with ThreadPoolExecutor(4) as pool:
        first = list(pool.map(lambda part: part[rows], data.train))
    for file in data.train[0].pictures.files:  # type: ignore[attr-defined]
        file.unlink()
    assert all(torch.equal(part[rows], x) for part, x in zip(data.train, first, strict=True))
    with pytest.raises(DataError, match=r"JPEG: not a readable image .*; copy it again or remove it"):
        data.train[2][torch.tensor([1, 4])]


def test_only_the_latest_images_are_kept(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    pictures = Pictures(tuple(sorted((tmp_path / "train").rglob("*.JPEG"))), kept=4)
    batches = [torch.tensor(rows) for rows in ([0, 1], [2, 3], [0, 1], [4, 5])]
    for rows in batches:
        pictures.read(rows)
    for file in pictures.files:
        file.write_bytes(b"")
    pictures.read(torch.tensor([4, 5]))
    pictures.read(torch.tensor([0, 1]))  # asked for after [2, 3], so kept longer
    with pytest.raises(DataError, match="not a readable image"):
        pictures.read(torch.tensor([2, 3]))


def test_classes_that_are_missing_get_a_suggestion(tmp_path: Path) -> None:
    listed = write_imagenet(tmp_path)
    listed.write_text("n02869837\nn01749930\n")
    with pytest.raises(DataError, match="train: no folder for the class 'n01749930'; did you mean 'n01749939'"):
        load_imagenet100(tmp_path, listed)
    listed.write_text("n02869837\nn01749939\n")
    (tmp_path / "val" / "n01749939").rename(tmp_path / "val" / "n9")
    with pytest.raises(DataError, match="val: no folder for the class 'n01749939'"):
        load_imagenet100(tmp_path, listed)
    with pytest.raises(DataError, match=r"train: no folders of classes here; sort the images into .*WNID"):
        load_imagenet100(tmp_path / "val", listed)
    for file in (tmp_path / "train" / "n01749939").iterdir():
        file.unlink()
    with pytest.raises(DataError, match="n01749939: no JPEG files here"):
        load_imagenet100(tmp_path, listed)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"n1\nn2\nn1\n", "n1 is listed twice"),
        (b"# none\n", "0 classes listed"),
        (b"\xff\xfe\x00", "not a readable list"),
    ],
)
def test_a_list_of_classes_that_cannot_be_used(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "classes.txt").write_bytes(content)
    with pytest.raises(DataError, match=f"classes.txt: {message}"):
        read_classes(tmp_path / "classes.txt")
    with pytest.raises(DataError, match="not a readable list"):
        read_classes(tmp_path / "gone.txt")
