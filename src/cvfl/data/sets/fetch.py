"""The public data sets that cvfl reads, as `publishers.toml` beside this file lists them, and how to get them.

fetch_dataset("adult", folder)   all its files into FOLDER/adult, checked, archives unpacked
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cvfl.data.sets import Progress, shipped
from cvfl.data.sets.download import Download, Fetched, fetch, unpack
from cvfl.errors import DataError
from cvfl.registry import Registry

_ARCHIVES = (".tar.gz", ".zip")


@dataclass(frozen=True)
class Dataset:
    """A public data set: its files, the terms they come under, and the folder layout that the loader reads."""

    title: str
    terms: str
    downloads: tuple[Download, ...]
    layout: str


def fetch_dataset(name: str, folder: Path, on_progress: Progress = lambda done, total: None) -> tuple[Fetched, ...]:
    """Bring a data set to FOLDER/NAME and unpack its archives there."""
    dataset, place = DATASETS[name], folder / name
    try:
        files = tuple(fetch(download, place, on_progress) for download in dataset.downloads)
    except DataError as error:
        raise DataError(f"{error}; the loader reads {dataset.layout}") from None
    for file in files:
        if file.path.name.endswith(_ARCHIVES):
            unpack(file.path, place)
    return files


def _dataset(title: str, terms: str, layout: str, address: str, files: Mapping[str, str], login: str = "") -> Dataset:
    downloads = tuple(Download(address + file, file, checksum, login) for file, checksum in files.items())
    return Dataset(title, terms, downloads, layout)


DATASETS = Registry[Dataset]("data set")
for _name, _said in shipped("publishers.toml").items():
    DATASETS.register(_name, _dataset(**_said))
