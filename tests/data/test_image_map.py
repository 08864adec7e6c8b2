"""Decoded images in a mapped file, and the kept list of files: equal to the files, resumed, never stale."""

from __future__ import annotations

import dataclasses
import os
import pickle
import time
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bench.core.errors import BenchError
from bench.core.fetch_progress import silent
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Basis, Budget
from bench.data import file_list, image_folder, image_map
from bench.data.datasets import load
from bench.data.file_list import ChangedError, place
from bench.data.image_map import mapping_of, verify_map
from bench.data.spec import Loaded
from bench.data.splits import Materialised, map_images, materialise, split
from bench.interface.registry import METHODS
from bench.models.frozen_backbone import random_backbone
from bench.storage.array_store import DamagedError
from bench.storage.cache import Cache
from bench.training import features
from bench.training.context import Context
from bench.training.ensemble import train_teachers
from bench.training.loop import FitSettings
from bench.training.mapped_rows import MappedRows, rows_of, sendable
from bench.training.teacher import TeacherTask
from helpers.ledgers import seeded_ledger

SHAPE = (3, 16, 16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of ten JPEGs for training and for testing, written before the last clock tick."""
    generator = np.random.default_rng(0)
    for half in ("train", "test"):
        for name in ("cat", "dog", "owl"):
            (tmp_path / "mine" / half / name).mkdir(parents=True)
            for number in range(10):
                pixels = generator.integers(0, 256, (20, 18, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "mine" / half / name / f"{number}.jpg")
    settle(tmp_path / "mine")
    return tmp_path / "mine"


def settle(folder: Path) -> None:
    """Make `folder` and all below it a minute old, as a list of what has just changed is not used again."""
    then = time.time() - 60
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            os.utime(path, (then, then))


def opened(folder: Path) -> Loaded:
    return load(f"folder:{folder}@3x16x16", root=folder.parent / "root")


def as_mapped(loaded: Loaded) -> Loaded:
    return map_images(loaded)


def kept(folder: Path) -> Path:
    return place(folder.parent / "root", folder, SHAPE)


def materials(folder: Path) -> tuple[Materialised, Materialised]:
    """Return the folder in memory and mapped."""
    loaded = opened(folder)
    whole = as_mapped(loaded)
    return materialise(loaded, split(loaded)), materialise(whole, split(whole))


def test_the_map_holds_the_decoded_images(folder: Path) -> None:
    loaded = opened(folder)
    whole = as_mapped(loaded)
    for half in ("train", "test"):
        decoded, found = getattr(loaded, half), getattr(whole, half)
        assert np.array_equal(decoded.images(slice(None)), found.images(slice(None)))
        assert np.array_equal(decoded.images([7, 2]), found.images([7, 2]))
        assert np.array_equal(decoded.labels, found.labels)
    assert loaded.revision == whole.revision
    verify_map(kept(folder), silent)
    place_of_names = kept(folder).parent
    assert [path for path in (place_of_names, *place_of_names.glob("*/*.*")) if path.stat().st_mode & 0o077] == []


def test_every_part_of_the_split_is_a_view_that_cannot_change_the_file(folder: Path) -> None:
    memory, views = materials(folder)
    for one, other in (
        (memory.private.images, views.private.images),
        (memory.public.images, views.public.images),
        (memory.test_images, views.test_images),
    ):
        assert torch.equal(one, other)
        assert mapping_of(one) is None
        assert mapping_of(other) is not None
    before = (kept(folder).with_suffix(".map") / "images.npy").read_bytes()
    views.private.images[0] = 0
    assert (kept(folder).with_suffix(".map") / "images.npy").read_bytes() == before


def test_a_killed_decoding_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_map, "CHUNK", 4)
    decoded: list[Path] = []
    plain = image_map.decode

    def decode(source: Path, shape: tuple[int, int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        if len(decoded) == 22:
            decoded.append(source)
            raise KeyboardInterrupt
        decoded.append(source)
        return plain(source, shape)

    monkeypatch.setattr(image_map, "decode", decode)
    loaded = opened(folder)
    with pytest.raises(KeyboardInterrupt):
        as_mapped(loaded)
    assert not kept(folder).with_suffix(".map").exists()
    whole = as_mapped(loaded)
    assert len(decoded) == 60 + 1, "only the image of the kill is decoded again"
    assert np.array_equal(loaded.train.images(slice(None)), whole.train.images(slice(None)))


@pytest.mark.parametrize("damage", ["cut", "flipped", "no manifest"])
def test_a_damaged_map_is_made_again(folder: Path, damage: str) -> None:
    loaded = opened(folder)
    as_mapped(loaded)
    path = kept(folder).with_suffix(".map") / "images.npy"
    if damage == "cut":
        os.truncate(path, path.stat().st_size - 100)
    elif damage == "flipped":
        with path.open("r+b") as file:
            file.seek(5_000)
            byte = file.read(1)
            file.seek(5_000)
            file.write(bytes([byte[0] ^ 1]))
    else:
        path.with_name("manifest.json").write_text("{")
    if damage == "flipped":
        with pytest.raises(DamagedError, match="1 of 60 images differ"):
            verify_map(kept(folder), silent)
        assert not path.exists()
    whole = as_mapped(loaded)
    assert np.array_equal(loaded.test.images(slice(None)), whole.test.images(slice(None)))


def test_rows_written_wrongly_are_decoded_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power failure leaves: a digest on the disk without its image."""
    loaded = opened(folder)
    done = 0

    def stop(what: str, now: int, total: int | None) -> None:
        nonlocal done
        done = now
        if what.startswith("verifying"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_images(loaded, stop)
    (partial,) = kept(folder).parent.glob(".*.partial")
    images = np.lib.format.open_memmap(partial / "images.npy", mode="r+")
    images[3] = 0
    images.flush()
    whole = as_mapped(loaded)
    assert np.array_equal(loaded.train.images(slice(None)), whole.train.images(slice(None)))


def test_the_list_is_used_again_and_follows_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    original = file_list.stamp

    def stamp(path: Path, *, plain: bool = False) -> tuple[int, int]:
        asked.append(path)
        return original(path, plain=plain)

    monkeypatch.setattr(file_list, "stamp", stamp)
    monkeypatch.setattr(file_list, "SAMPLE", 5)
    first = opened(folder)
    assert len(asked) == 60 + 9, "every file and every folder"
    asked.clear()
    assert opened(folder).revision == first.revision
    assert len(asked) == 5 + 9
    assert [first.train.half.files[n] for n in range(30)] == [  # type: ignore[attr-defined]
        opened(folder).train.half.files[n]
        for n in range(30)  # type: ignore[attr-defined]
    ]
    (folder / "train" / "dog" / "new.jpg").write_bytes((folder / "train" / "dog" / "1.jpg").read_bytes())
    more = opened(folder)
    assert len(more.train) == 31
    assert more.revision != first.revision
    assert len(as_mapped(more).train) == 31


def test_a_changed_file_of_the_sample_is_seen(folder: Path) -> None:
    first = opened(folder)
    as_mapped(first)
    path = folder / "test" / "owl" / "3.jpg"
    with path.open("r+b") as file:  # in place: the time of its folder stays
        file.write((folder / "test" / "owl" / "4.jpg").read_bytes())
        file.truncate()
    again = opened(folder)
    assert again.revision != first.revision
    assert np.array_equal(as_mapped(again).test.images([23]), as_mapped(again).test.images([24]))


def test_stored_images_of_another_decoding_are_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(folder)
    with monkeypatch.context() as older:
        older.setattr(image_folder, "DECODING", b"1")
        older.setattr(image_map, "decode", lambda *_: np.zeros(SHAPE, dtype=np.uint8))
        stale = opened(folder)
        assert not as_mapped(stale).train.images([0]).any()
    again = opened(folder)
    assert as_mapped(again).train.images([0]).any()
    assert again.revision == first.revision != stale.revision, "nor is what was trained on them"


def test_a_changed_file_outside_the_sample_is_never_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_list, "SAMPLE", 2)
    first = opened(folder)
    with (folder / "train" / "dog" / "3.jpg").open("ab") as file:
        file.write(b"0")
    assert opened(folder).revision == first.revision, "what a sample can miss"
    with pytest.raises(ChangedError, match=r"dog/3\.jpg has changed since"):
        as_mapped(opened(folder))
    with pytest.raises(ChangedError, match="another size or time"):
        first.train.images([13])
    again = opened(folder)
    assert again.revision != first.revision, "the list was dropped"
    assert len(as_mapped(again).train) == 30


def test_no_room_is_said_before_any_decoding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = opened(folder)
    usage = image_map.shutil.disk_usage(folder)
    monkeypatch.setattr(image_map.shutil, "disk_usage", lambda path: usage._replace(free=1_000))
    with pytest.raises(BenchError, match="BENCH_DATA"):
        as_mapped(loaded)


def test_processes_decode_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_map, "POOL_FROM", 1)
    monkeypatch.setattr(image_map, "available_cores", lambda: 2)
    loaded = opened(folder)
    assert np.array_equal(loaded.train.images(slice(None)), as_mapped(loaded).train.images(slice(None)))


def test_teachers_read_their_rows_from_the_map(folder: Path) -> None:
    """Alone and in worker processes, which get the name of the file, the weights and labels are those of memory."""
    memory, views = materials(folder)
    assert isinstance(rows_of(views.private.images, torch.tensor([3, 1])), MappedRows)
    assert torch.equal(rows_of(views.private.images, torch.tensor([3, 1]))[:], memory.private.images[[3, 1]])
    assert torch.equal(sendable(views.public.images)[2:4], memory.public.images[2:4])
    task = TeacherTask("small_cnn", 3, FitSettings(steps=3, batch_size=4, shift=1))
    count = len(memory.private)
    parts = [np.arange(0, count, 2), np.arange(1, count, 2)]
    made = [
        train_teachers(task, material.private.images, material.private.labels, parts, Streams(0), pool=pool)
        for material, pool in ((memory, None), (views, None), (views, AsIfSent()))
    ]
    for other in made[1:]:
        assert all(np.array_equal(array, other.states[name]) for name, array in made[0].states.items())
    assert np.array_equal(made[0].labels(memory.public.images), made[0].labels(views.public.images, AsIfSent()))


class AsIfSent(ProcessPoolExecutor):
    """A worker pool in this process, whose jobs are as small as what is sent by the name of its file."""

    def submit(self, work: Any, /, *job: Any, **options: Any) -> Any:
        data = pickle.dumps(job, protocol=5)
        assert len(data) < 20_000 + sum(
            value.nbytes for part in job if isinstance(part, dict) for value in part.values()
        )
        done: Future[Any] = Future()
        done.set_result(work(*pickle.loads(data)))
        return done


def test_features_of_mapped_images_and_in_a_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, views = materials(folder)
    backbone = random_backbone("small_cnn", 3, 0, SHAPE, seed=0)
    assert np.array_equal(features.image_digests(memory.private.images), features.image_digests(views.private.images))
    plain = features.features_of(memory.private.images, backbone, context(None), "private")
    monkeypatch.setattr(features, "SPILL", 0)
    spilled = features.features_of(views.private.images, backbone, context(tmp_path / "cache"), "private")
    assert torch.equal(plain, spilled)
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} <= {".safetensors", ""}


def context(root: Path | None) -> Context:
    return Context(torch.device("cpu"), Streams(0), Cache(root, {}), Progress(), note=lambda text: None)


def test_a_mapped_run_is_the_run_in_memory(folder: Path) -> None:
    method, released = METHODS.get("pate"), []
    for material in materials(folder):
        facts = material.private.facts
        config = method.Config(**method.presets(facts)["tiny"])
        config = method(config, facts).calibrate(Budget(10.0, 1e-5, Basis.CLAIMED))
        where = context(None)
        where.streams.seed_globals()
        ledger = seeded_ledger(method.unit, method.adjacency, where.streams.numpy("noise"))
        made = method(config, material.private.facts).train_student(material.private, material.public, ledger, where)
        released.append({**made.student.state_dict(), **made.extras})
        assert dataclasses.asdict(facts)["private_records"] == len(material.private)
    assert released[0].keys() == released[1].keys()
    assert all(torch.equal(value, released[1][name]) for name, value in released[0].items())
