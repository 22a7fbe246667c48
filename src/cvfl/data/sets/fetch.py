"""The public data sets that cvfl reads, and how to get them from their publishers.

fetch_dataset("adult", folder)   all its files into FOLDER/adult, checked, archives unpacked
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cvfl.data.sets.download import Download, Fetched, Progress, fetch, fetch_checked, unpack
from cvfl.errors import DataError
from cvfl.registry import Registry

__all__ = ["DATASETS", "Dataset", "Download", "Fetched", "fetch", "fetch_dataset", "unpack"]

_ARCHIVES = (".tar.gz", ".zip")


@dataclass(frozen=True)
class Dataset:
    """A public data set: its files, the terms they come under, and the folder layout that the loader reads."""

    name: str
    title: str
    terms: str
    downloads: tuple[Download, ...]
    layout: str


def fetch_dataset(name: str, folder: Path, on_progress: Progress | None = None) -> tuple[Fetched, ...]:
    """Bring a data set to FOLDER/NAME and unpack its archives there."""
    dataset, place = DATASETS[name], folder / name
    try:
        files = tuple(fetch_checked(download, place, on_progress) for download in dataset.downloads)
    except DataError as error:
        raise DataError(f"{error}; the loader reads {dataset.layout}") from None
    for file in files:
        if file.path.name.endswith(_ARCHIVES):
            unpack(file.path, place)
    return files


_UCI = "https://archive.ics.uci.edu/static/public/"
_CC_BY = "CC BY 4.0; cite the UCI page"
_CHALLENGE = "https://physionet.org/files/challenge-2012/1.0.0/"
_MIMIC = "https://physionet.org/files/mimiciii/1.4/"
_MIMIC_LOGIN = (
    "first get a credentialed account at physionet.org, take its CITI course and sign the agreement of "
    "https://physionet.org/content/mimiciii/1.4/"
)
_MIMIC_TABLES = (
    *("ADMISSIONS", "CHARTEVENTS", "DIAGNOSES_ICD", "D_ICD_DIAGNOSES", "D_ITEMS", "D_LABITEMS"),
    *("ICUSTAYS", "LABEVENTS", "OUTPUTEVENTS", "PATIENTS"),
)
_IMAGENET = "https://image-net.org/data/ILSVRC/2012/"
_IMAGENET_LOGIN = "first make an account at image-net.org and accept its terms"

# Where a publisher gives no sum, a sum stands here only if several independent public projects pin it for this address.
_ALL = (
    Dataset(
        "cifar10",
        "CIFAR-10: 60,000 colour images of 32 x 32 pixels in 10 classes",
        "no licence is stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009)",
        (
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "cifar-10-python.tar.gz",
                "md5:c58f30108f718f92721af3b95e74349a",  # on https://www.cs.toronto.edu/~kriz/cifar.html
            ),
        ),
        "cifar-10-batches-py/data_batch_1 to data_batch_5 and test_batch",
    ),
    Dataset(
        "physionet2012",
        "PhysioNet/CinC Challenge 2012, sets a and b: 8,000 stays in intensive care",
        "open access; cite PhysioNet, see https://physionet.org/content/challenge-2012/1.0.0/",
        tuple(
            Download(_CHALLENGE + file, file, f"sha256:{digest}")
            for file, digest in (
                ("set-a.tar.gz", "8cb250f179cd0952b4b9ebcf8954b63d70383131670fac1cfee13deaa13ca920"),
                ("set-b.tar.gz", "b1637a2a423a8e76f8f087896cfc5fdf28f88519e1f4e874fbda69b2a64dac30"),
                ("Outcomes-a.txt", "2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2"),
                ("Outcomes-b.txt", "1305f29734da374a809483229a99f33a9230aa8d4fa74b1a2d6ad788136423d5"),
            )
        ),
        "set-a/RECORD.txt, set-b/RECORD.txt, Outcomes-a.txt and Outcomes-b.txt",
    ),
    Dataset(
        "mimic3",
        "MIMIC-III 1.4, the tables of the in-hospital mortality task",
        "PhysioNet Credentialed Health Data Licence: for credentialed persons only, not to be passed on",
        tuple(
            Download(f"{_MIMIC}{table}.csv.gz", f"{table}.csv.gz", "sha256sums:SHA256SUMS.txt", _MIMIC_LOGIN)
            for table in _MIMIC_TABLES
        ),
        "PATIENTS.csv.gz, ADMISSIONS.csv.gz and the other tables; SHA256SUMS.txt beside them is used to check them",
    ),
    Dataset(
        "modelnet10",
        "ModelNet10 as 12 views an item, from the renderings of ModelNet40 by the authors of MVCNN",
        "for academic use; the shapes belong to their makers, see https://modelnet.cs.princeton.edu/",
        (Download("http://supermoe.cs.umass.edu/shape_recog/shaded_images.tar.gz", "shaded_images.tar.gz", ""),),
        "CLASS/{train,test}/ITEM/VIEW.png or CLASS/{train,test}/ITEM_VIEW.png; "
        "the publisher (https://modelnet.cs.princeton.edu/) has only meshes: other renderings of these serve as well",
    ),
    Dataset(
        "imagenet100",
        "ImageNet (ILSVRC 2012), of which a list of 100 classes is used",
        "for non-commercial research and education, see https://image-net.org/download",
        (
            Download(
                f"{_IMAGENET}ILSVRC2012_img_train.tar",
                "ILSVRC2012_img_train.tar",
                "md5:1d675b47d978889d74fa0da5fadfb00e",  # both sums stand on the download page
                _IMAGENET_LOGIN,
            ),
            Download(
                f"{_IMAGENET}ILSVRC2012_img_val.tar",
                "ILSVRC2012_img_val.tar",
                "md5:29b22e2961454d5413ddabcf34fc5622",
                _IMAGENET_LOGIN,
            ),
        ),
        "train/WNID/*.JPEG and val/WNID/*.JPEG, which you unpack from these files yourself, and imagenet100.txt, "
        "the list of classes (the paper's is in https://github.com/HobbitLong/CMC)",
    ),
    Dataset(
        "credit_default",
        "Default of credit card clients: 30,000 clients, 23 columns",
        _CC_BY,
        (
            Download(
                f"{_UCI}350/data.csv",
                "data.csv",
                "sha256:45bcf4df62ff2e237a74eb155cabfb4bbbc171219a0637daef44fdad07503dd0",
            ),
        ),
        "data.csv with the columns ID, X1 to X23 and Y",
    ),
    Dataset(
        "adult",
        "Adult (census income): 48,842 persons, 14 columns",
        _CC_BY,
        (
            Download(
                f"{_UCI}2/adult.zip",
                "adult.zip",
                "sha256:7537312dd56c2b98035880805ce99e68183a30ee468aa5329d6df0fbb3cc21bb",
            ),
        ),
        "adult.data and adult.test",
    ),
    Dataset(
        "mfeat",
        "Multiple features: 2,000 written digits in six views",
        _CC_BY,
        (Download(f"{_UCI}72/multiple+features.zip", "multiple+features.zip", ""),),
        "mfeat-fac, mfeat-fou, mfeat-kar, mfeat-mor, mfeat-pix and mfeat-zer",
    ),
)
DATASETS = Registry[Dataset]("data set")
for _dataset in _ALL:
    DATASETS.register(_dataset.name, _dataset)
