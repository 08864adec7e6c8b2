"""A user's tables, arrays and torch Datasets: what is read, who may read it, and what is refused."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

import bench
from bench.core.errors import BenchError
from bench.core.progress import LineProgress
from bench.data.datasets import get_dataset, load, verify_stored
from bench.data.own_name import parse, stated_after
from bench.data.spec import Loaded
from bench.experiments.data_source import DataSource
from helpers.data import put_image

X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
Y = np.arange(60) % 3
NAMES = np.array(["red", "green", "blue"])


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


def npz(path: Path, **arrays: Any) -> str:
    np.savez_compressed(path, **arrays)
    return f"folder:{path}"


def pixels(loaded: Loaded) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the training and then the test records, (n, values)."""
    halves = [half.images(slice(None)) for half in (loaded.train, loaded.test)]
    return np.concatenate(halves).reshape(len(loaded.train) + len(loaded.test), -1)


def test_a_range_of_values_becomes_256_levels(tmp_path: Path) -> None:
    loaded = load(npz(tmp_path / "a.npz", x=X, y=Y, classes=NAMES) + "@-2..2")
    assert (loaded.spec.shape, loaded.spec.class_names) == ((1, 1, 5), ("red", "green", "blue"))
    assert not loaded.spec.public_benchmark
    assert 3 <= len(loaded.test) <= 25
    found = np.sort(pixels(loaded) / 255 * 4 - 2, axis=0)
    assert np.allclose(found, np.sort(X.clip(-2, 2), axis=0), atol=2 / 255 + 1e-6)


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((60, 6, 4), (1, 6, 4)),
        ((60, 3, 6, 4), (3, 6, 4)),
        ((60, 6, 4, 3), (3, 6, 4)),
        ((60, 6, 4, 1), (1, 6, 4)),
        ((60, 7), (1, 1, 7)),
    ],
)
def test_bytes_are_kept_and_channels_come_first(
    shape: tuple[int, ...], found: tuple[int, int, int], tmp_path: Path
) -> None:
    values = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    name = npz(tmp_path / "a.npz", x_train=values[:50], y_train=Y[:50], x_test=values[50:], y_test=Y[50:, None])
    loaded = load(name)
    assert loaded.spec.shape == found
    expected = values.transpose(0, 3, 1, 2) if values.shape[1:] == (*found[1:], found[0]) else values
    assert np.array_equal(pixels(loaded), expected.reshape(60, -1))
    assert np.array_equal(loaded.train.labels, Y[:50])
    assert np.array_equal(loaded.test.labels, Y[50:])


def test_tables_and_arrays_of_the_same_numbers_agree(tmp_path: Path) -> None:
    frame = pandas.DataFrame(X).rename(columns=str).assign(label=NAMES[Y], split=["train"] * 40 + ["test"] * 20)
    frame.to_csv(tmp_path / "a.csv", index=False)
    arrays = npz(tmp_path / "a.npz", x_train=X[:40], y_train=NAMES[Y[:40]], x_test=X[40:], y_test=NAMES[Y[40:]])
    one, other = (load(f"{name}@-2..2") for name in (f"folder:{tmp_path / 'a.csv'}", arrays))
    assert one.spec.class_names == other.spec.class_names == ("blue", "green", "red")
    assert np.array_equal(pixels(one), pixels(other))
    assert np.array_equal(one.train.labels, other.train.labels)


def test_parquet_holds_columns_of_numbers_or_one_of_lists(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(X).rename(columns=str).assign(label=Y)
    frame.to_parquet(tmp_path / "a.parquet")
    pandas.DataFrame({"label": Y, "embedding": list(X)}).to_parquet(tmp_path / "b.parquet")
    one, other = (load(f"folder:{tmp_path / name}@-2..2") for name in ("a.parquet", "b.parquet"))
    assert one.spec.shape == (1, 1, 5)
    assert np.array_equal(pixels(one), pixels(other))
    (tmp_path / "c.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-40])
    with pytest.raises(BenchError, match=r"c\.parquet is damaged or not a \.parquet file"):
        load(f"folder:{tmp_path / 'c.parquet'}@-2..2")


def table_of_images(folder: Path, rows: list[tuple[str, str]], name: str = "list.csv") -> str:
    pandas.DataFrame(rows, columns=["path", "label"]).to_csv(folder / name, index=False)
    return f"folder:{folder / name}"


def images(folder: Path, count: int = 40) -> list[tuple[str, str]]:
    for number in range(count):
        put_image(folder / "in" / f"{number}.png", 4 * number, (9, 7))
    return [(f"in/{number}.png", "10" if number % 2 else "9") for number in range(count)]


def test_a_table_names_image_files_and_its_labels_stay_text(tmp_path: Path) -> None:
    rows = images(tmp_path)
    name = table_of_images(tmp_path, rows)
    loaded = load(name)
    assert (loaded.spec.shape, loaded.spec.class_names) == ((1, 7, 9), ("9", "10"))
    assert load(f"{name}@3x16x16").train.images([0]).shape == (1, 3, 16, 16)
    values = loaded.train.images(slice(None))[:, 0, 0, 0]
    assert np.array_equal(loaded.train.labels, values // 4 % 2)
    # A label is part of the content, and a path is not enough to tell it.
    swapped = [(path, {"9": "10", "10": "9"}[label]) for path, label in rows]
    assert load(table_of_images(tmp_path, swapped, "b.csv")).revision != loaded.revision
    put_image(tmp_path / "in" / "3.png", 99, (9, 7))
    os.utime(tmp_path / "list.csv", (1, 1))
    assert load(name).revision != loaded.revision


def test_only_the_owner_may_read_what_is_kept_and_the_revision_is_keyed(tmp_path: Path, root: Path) -> None:
    name = npz(tmp_path / "a.npz", x=X, y=Y) + "@-2..2"
    first = load(name)
    assert first.revision.startswith("hmac-sha256:")
    assert (root / "folders").stat().st_mode & 0o777 == 0o700
    kept = [path for path in (root / "folders").glob("*.arrays/*") if path.is_file()]
    assert kept
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    assert load(name, root=tmp_path / "other").revision != first.revision
    assert load(name).revision == first.revision
    assert load(name.replace("-2..2", "-3..3")).revision != first.revision
    assert "every byte" in verify_stored(name, lambda what, done, total: None)
    npz(tmp_path / "a.npz", x=-X, y=Y)
    assert load(name).revision != first.revision


class Pictures(Dataset[Any]):
    """Items of two classes, of which `change` alters one."""

    classes = ("no", "yes")

    def __init__(self, change: int = 0, kind: str = "uint8") -> None:
        self.values = np.random.default_rng(2).integers(0, 200, (40, 8, 8)).astype(kind)
        self.values[3] += change

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return torch.from_numpy(self.values[number]), number % 2


@pytest.mark.slow
def test_a_torch_dataset_runs_like_the_file_that_it_becomes(tmp_path: Path, root: Path) -> None:
    frame = bench.run("nonprivate", datasets=Pictures(), preset="tiny", out=tmp_path / "runs", quiet=True)
    assert list(frame["failure"]) == [""]
    (name,) = frame["dataset"]
    assert name.startswith("folder:Pictures-")
    (kept,) = (root / "folders").glob("Pictures-*.npz")
    assert kept.stat().st_mode & 0o777 == 0o600
    again = bench.run("nonprivate", datasets=Pictures(), preset="tiny", out=tmp_path / "runs", quiet=True)
    assert list(again["key"]) == list(frame["key"])
    saved = load(bench.save_dataset(tmp_path / "mine.npz", Pictures(1), Pictures()))
    assert saved.spec.class_names == ("no", "yes")
    assert (len(saved.train), len(saved.test)) == (40, 40)
    with pytest.raises(BenchError, match=r"float32\. State their range.* values=\(0, 1\)"):
        bench.run("nonprivate", datasets=Pictures(kind="float32"), out=tmp_path / "runs")
    named = bench.save_dataset(tmp_path / "f.npz", Pictures(kind="float32"), values=(0, 200))
    assert stated_after(named) == "0..200"
    assert load(named).spec.shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (TensorDataset(torch.zeros(0, 3), torch.zeros(0)), "is empty"),
        ([(np.zeros(3), 0), (np.zeros(4), 1)], "item 1 of list cannot be used"),
        ([(np.zeros(3, dtype="uint8"), "cat")], "label, a whole number"),
        ([(np.zeros(3, dtype="uint8"), 1.9)], "its label is 1.9"),
        (iter([]), "has no length"),
    ],
)
def test_datasets_that_are_no_table_of_records_are_refused(items: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=why):
        bench.save_dataset(tmp_path / "mine.npz", items)


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


def announced(path: Path) -> None:
    """Write an array whose header announces a terabyte."""
    with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (1 << 40, 1)})
    with zipfile.ZipFile(path, "a") as archive, archive.open("y.npy", "w") as file:
        np.lib.format.write_array(file, Y)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "is not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "no file": (lambda path: None, "No such file"),
    "nonsense": (lambda path: path.write_bytes(b"no zip"), "is damaged or not an .npz file"),
    "announced": (announced, "is shorter than its header states"),
    "other names": (lambda path: np.savez(path, images=X), "holds images. Accepted: x and y, or x_train"),
    "object": (lambda path: np.savez(path, x=np.array([{}] * 60, dtype=object), y=Y), "never loaded"),
    "no labels": (lambda path: np.savez(path, x=X), "holds x. Accepted"),
    "lengths": (lambda path: np.savez(path, x=X, y=Y[:50]), "each record needs one of each"),
    "one class": (lambda path: np.savez(path, x=X, y=Y * 0), "at least two"),
    "targets": (lambda path: np.savez(path, x=X, y=X[:, 0]), "Labels must be whole numbers or names"),
    "classes": (lambda path: np.savez(path, x=X, y=Y, classes=NAMES[:2]), r"outside 0\.\.1"),
    "video": (lambda path: np.savez(path, x=np.zeros((60, 2, 3, 4, 5)), y=Y), "Accepted: .n, features"),
    "empty half": (
        lambda path: np.savez(path, x_train=X, y_train=Y, x_test=X[:0], y_test=Y[:0]), "60 training and 0 test",
    ),
}  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_and_mistaken_arrays_are_named(kind: str, tmp_path: Path) -> None:
    make, why = HOSTILE[kind]
    make(tmp_path / "a.npz")
    with pytest.raises(BenchError, match=rf"a\.npz.*{why}"):
        load(f"folder:{tmp_path / 'a.npz'}@-1..1")


def test_a_pickle_in_an_archive_is_never_run(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", pickle.dumps(Evil(tmp_path / "ran")))
        archive.writestr("y.npy", pickle.dumps(Evil(tmp_path / "ran")))
    np.savez(tmp_path / "b.npz", x=np.array([Evil(tmp_path / "ran")] * 60, dtype=object), y=Y)
    for name in ("a.npz", "b.npz"):
        with pytest.raises(BenchError, match=r"damaged|never loaded"):
            load(f"folder:{tmp_path / name}")
    assert not (tmp_path / "ran").exists()


def test_values_need_a_public_range(tmp_path: Path) -> None:
    name = npz(tmp_path / "a.npz", x=X, y=Y)
    with pytest.raises(BenchError, match=r"float32\. State their range.* do not compute it from the records"):
        load(name)
    with pytest.raises(BenchError, match="LOW below HIGH"):
        load(f"{name}@2..-2")
    for after in ("a..b", "28", "5x8x8"):
        with pytest.raises(BenchError, match=r"takes the range LOW\.\.HIGH of its values after @"):
            load(f"{name}@{after}")
    with pytest.raises(BenchError, match="leave out @1x8x8"):
        load(f"{name}@1x8x8")
    gap = X.copy()
    gap[7, 2] = np.nan
    with pytest.raises(BenchError, match="record 7 holds a value that is not finite"):
        load(npz(tmp_path / "b.npz", x=gap, y=Y) + "@-2..2")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,2\n", "has the columns a, b, and none named 'label'"),
        ("label,a\n", "no rows"),
        ("", r"is damaged or not a \.csv file"),
        ("label,a\nx,1\n,2\n", "row 1 has no label"),
        ("label,a\nx,1\ny,cat\n", "column 'a' does not hold numbers"),
        ("label\nx\ny\n", "no columns besides label"),
        ("label,a,split\nx,1,train\ny,2,perhaps\n", "split holds perhaps"),
        ("label,a,split\nx,1,train\nx,1,train\ny,2,test\n", "no training record of y"),
        ("label,path\nx,1.png\ny,./1.png\n", r"lists 1\.png more than once"),
        ("label,path\nx,1.png\ny,2.png\n", r"1\.png"),
        ("label,a,split\nx,1,train\ny,,train\nx,1,test\n", "record 1 holds a value that is not finite"),
    ],
)
def test_mistaken_tables_get_clear_errors(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(BenchError, match=why):
        load(f"folder:{tmp_path / 'a.csv'}" + ("" if "path" in text else "@0..9"))
    (tmp_path / "b.csv").write_bytes(b"label,a\n\xff\xfe,1\n")
    with pytest.raises(BenchError, match=r"b\.csv is damaged"):
        load(f"folder:{tmp_path / 'b.csv'}@0..1")


def test_a_name_of_a_file_that_is_there_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a@0..1").mkdir()
    assert parse(f"folder:{tmp_path / 'a@0..1'}").values is None
    assert parse(f"folder:{tmp_path / 'b.csv@-1e-3..2.5'}").values == (-1e-3, 2.5)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(BenchError, match=r"notes\.txt is a file. Accepted: a folder of images, or a file \.csv"):
        get_dataset(f"folder:{tmp_path / 'notes.txt'}")
    with pytest.raises(BenchError, match=r"Or folder:.*notes\.txt for data of your own"):
        get_dataset(str(tmp_path / "notes.txt"))


@pytest.mark.slow
def test_nets_of_images_refuse_rows_of_features(tmp_path: Path) -> None:
    name = npz(tmp_path / "a.npz", x=X, y=Y % 2) + "@-2..2"
    frame = bench.run(
        "dp-prototypes,pate-bayes,dp-merf", datasets=name, eps=10, preset="tiny", out=tmp_path / "runs", quiet=True
    ).set_index("method")
    assert frame.loc["dp-prototypes", "failure"] == frame.loc["pate-bayes", "failure"] == ""
    assert "dp-merf takes small_cnn, for images" in frame.loc["dp-merf", "failure"]
    assert frame.loc["dp-prototypes", "public_data"] == (
        "whatever the features were made with (not examined): 12 records of the data itself, taken as public"
    )
    assert set(frame["dataset"]) == {"folder:a.npz"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (",x,label\n0,1,a\n1,2,b\n", "a column without a name"),
        ("x,Label\n1,a\n2,b\n", "Rename Label to label"),
        ("x;label\n1;a\n2;b\n", "Separate columns by commas"),
        ("x,label,label\n1,a,b\n2,b,a\n", "several columns of one name: label"),
        ("x,label\n1,2,a\n2,3,b\n", "more values than its first line has names"),
        ("x,label,split\n1,a,train\n2,b,test\n3,a,val\n", "which would both be for testing"),
    ],
)
def test_a_table_that_would_be_misread_is_refused(text: str, says: str, tmp_path: Path, root: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(BenchError, match=says):
        load(f"folder:{tmp_path / 't.csv'}@0..4")


def test_blanks_around_a_label_make_no_other_class(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "".join(["x,label\n", *(f"{n % 5},cat{' ' * (n % 2)}\n1, dog\n" for n in range(20))])
    )
    assert load(f"folder:{tmp_path / 't.csv'}@0..4").spec.class_names == ("cat", "dog")


class Named(Dataset[Any]):
    """Images whose labels number the `classes`, as those of an ImageFolder do."""

    def __init__(self, classes: list[str], labels: list[str], image: Any = None) -> None:
        self.classes, self.labels = classes, labels
        self.image = np.zeros((4, 4), dtype=np.uint8) if image is None else image

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return self.image, self.classes.index(self.labels[number])


def test_the_classes_of_a_test_set_are_matched_by_name(tmp_path: Path) -> None:
    train = Named(["cat", "cow", "dog"], ["cat", "cow", "dog"] * 2)
    loaded = load(bench.save_dataset(tmp_path / "a.npz", train, Named(["cat", "dog"], ["dog", "cat"])))
    assert loaded.test.labels.tolist() == [2, 0]
    with pytest.raises(BenchError, match="classes that the training set lacks: emu"):
        bench.save_dataset(tmp_path / "b.npz", train, Named(["cat", "emu"], ["emu"]))


def test_pictures_with_a_palette_keep_their_colours(tmp_path: Path) -> None:
    red = Image.new("RGB", (4, 4), (200, 0, 0)).convert("P", palette=Image.Palette.ADAPTIVE)
    bench.save_dataset(tmp_path / "a.npz", Named(["a", "b"], ["a", "b"] * 5, red))
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["x"][0, 0, 0].tolist() == [200, 0, 0]


def test_a_range_of_values_is_kept_to_the_last_digit(tmp_path: Path) -> None:
    given = TensorDataset(torch.full((10, 3), 1e6 + 1), torch.arange(10) % 2)
    assert parse(bench.save_dataset(tmp_path / "a.npz", given, values=(1e6, 1e6 + 2))).values == (1e6, 1e6 + 2)


def test_a_folder_beside_the_halves_is_named_as_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for half in ("mine/train", "mine/val", "mine/test", "plain"):
        for number in range(40):
            put_image(tmp_path / half / f"{'cat' if number % 2 else 'dog'}/{number}.png", number, (9, 7), "RGB")
    for name, said in (("mine", True), ("plain", False)):
        DataSource(LineProgress()).describe(f"folder:{tmp_path / name}")
        assert ("not read  val/" in capsys.readouterr().err) is said
