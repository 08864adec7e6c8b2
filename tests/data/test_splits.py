from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.errors import BenchError, UnknownNameError
from bench.data.datasets import DATASETS, load
from bench.data.index_hash import keys, ranks
from bench.data.spec import ArrayRecords, Loaded
from bench.data.splits import RULES, facts, materialise, partition, pooled_images, split


def fake(name: str, train: int, test: int, seed: int = 0, classes: int | None = None) -> Loaded:
    """A data set with the name of a real one and any content."""
    spec = DATASETS[name]
    if classes is not None:
        spec = replace(spec, classes=classes, class_names=tuple(map(str, range(classes))))
    random = np.random.default_rng(seed)

    def half(count: int) -> ArrayRecords:
        images = random.integers(0, 256, (count, 1, 2, 2)).astype(np.uint8)
        return ArrayRecords(images, random.integers(0, spec.classes, count))

    return Loaded(replace(spec, shape=(1, 2, 2)), half(train), half(test), "test")


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(a.astype("<i8").tobytes() for a in arrays)).hexdigest()[:16]


# --- the papers' splits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "train", "test", "expected"),
    [
        ("mnist", 60_000, 10_000, (60_000, 9_000, 1_000)),
        ("fmnist", 60_000, 10_000, (60_000, 9_000, 1_000)),
        ("svhn", 73_257, 26_032, (73_257, 10_000, 16_032)),
        ("cifar10", 50_000, 10_000, (40_000, 10_000, 10_000)),
        ("cifar100", 50_000, 10_000, (40_000, 10_000, 10_000)),
        ("stl10", 5_000, 8_000, (10_000, 1_000, 2_000)),
        ("digits", 1_400, 397, (1_000, 400, 397)),
        ("celeba-g", 162_770, 19_962, (162_770, 9_981, 9_981)),
        ("att-faces", 280, 120, (200, 80, 120)),
    ],
)
def test_sizes_are_those_of_the_papers(name: str, train: int, test: int, expected: tuple[int, int, int]) -> None:
    divided = split(fake(name, train, test))
    assert (len(divided.private), len(divided.public), len(divided.test)) == expected
    everything = np.concatenate([divided.private, divided.public, divided.test])
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < train + test


def test_pate_takes_the_first_official_test_records_as_public() -> None:
    divided = split(fake("mnist", 60_000, 10_000))
    assert divided.public.tolist() == list(range(60_000, 69_000))
    assert divided.test.tolist() == list(range(69_000, 70_000))


def test_official_has_no_public_records() -> None:
    divided = split(fake("mnist", 60_000, 10_000), rule="official")
    assert len(divided.public) == 0
    assert len(divided.test) == 10_000


def test_every_builtin_set_has_a_rule_that_works() -> None:
    for name, spec in DATASETS.items():
        divided = split(fake(name, spec.train_records or 5_000, spec.test_records or 1_200))
        assert min(len(divided.private), len(divided.test)) > 0, name
        assert (len(divided.public) > 0) == (spec.split_rule != "official"), name


def test_unknown_and_unfit_rules() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'pate'"):
        split(fake("mnist", 20, 10), rule="patee")
    with pytest.raises(BenchError, match="does not cover 'digits'"):
        split(fake("digits", 1400, 397), rule="pate")
    with pytest.raises(BenchError, match="does not cover 'mnist' with 20"):
        split(fake("mnist", 20, 10))
    assert set(RULES) >= {spec.split_rule for spec in DATASETS.values()}


# --- stable, and blind to the data ------------------------------------------------------------------------------------


def test_hash_order_is_pinned() -> None:
    # These digests may never change: every published row depends on them.
    assert digest(ranks("mnist", 1_000, "x")) == PINNED["ranks"]
    divided = split(fake("cifar10", 50_000, 10_000))
    assert digest(divided.private, divided.public, divided.test) == PINNED["cifar10"]
    divided = split(fake("digits", 1_400, 397))
    assert digest(divided.private, divided.public, divided.test) == PINNED["digits"]
    assert digest(*partition(60_000, 250, "mnist/teachers/0")) == PINNED["partition"]


PINNED = {
    "ranks": "8e42b7664f76890a",
    "cifar10": "8ab46f12f0bbb378",
    "digits": "ef8bbafc8bd88c2f",
    "partition": "5a751c5657725ceb",
}


@given(count=st.integers(0, 300), more=st.integers(0, 50), name=st.text(max_size=5), purpose=st.text(max_size=5))
def test_an_index_has_the_same_key_whatever_the_count(count: int, more: int, name: str, purpose: str) -> None:
    assert np.array_equal(keys(name, count, purpose), keys(name, count + more, purpose)[:count])
    assert sorted(ranks(name, count, purpose).tolist()) == list(range(count))


@pytest.mark.parametrize("name", ["digits", "cifar10", "mnist"])
def test_splits_do_not_depend_on_what_records_hold(name: str) -> None:
    sizes = {"digits": (1_400, 397), "cifar10": (12_000, 100), "mnist": (100, 9_100)}[name]
    first, second = (split(fake(name, *sizes, seed=seed)) for seed in (1, 2))
    for field in ("private", "public", "test"):
        assert np.array_equal(getattr(first, field), getattr(second, field))


# --- teachers ---------------------------------------------------------------------------------------------------------


@given(count=st.integers(1, 500), data=st.data())
@settings(deadline=None)
def test_partition_gives_each_record_to_one_teacher(count: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, count))
    divided = partition(count, parts, data.draw(st.text(max_size=3)))
    assert len(divided) == parts
    sizes = {len(part) for part in divided}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert sorted(np.concatenate(divided).tolist()) == list(range(count))
    assert all(np.all(np.diff(part) > 0) for part in divided if len(part) > 1)


def test_partition_follows_its_name() -> None:
    first, again, other = (partition(100, 4, name) for name in ("a", "a", "b"))
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))
    assert not all(np.array_equal(x, y) for x, y in zip(first, other, strict=True))


@pytest.mark.parametrize(("count", "parts"), [(10, 11), (0, 1)])
def test_more_teachers_than_records(count: int, parts: int) -> None:
    with pytest.raises(BenchError, match="more teachers than records"):
        partition(count, parts, "x")
    with pytest.raises(BenchError, match="1 or more"):
        partition(10, 0, "x")


# --- tensors ----------------------------------------------------------------------------------------------------------


def test_materialise_gives_what_the_split_says(tmp_path: Path) -> None:
    import torch

    loaded = load("digits", root=tmp_path)
    divided = split(loaded)
    material = materialise(loaded, divided)
    known = facts(loaded, divided)
    assert material.private.facts == known
    assert (known.private_records, known.public_records, known.test_records) == (1_000, 400, 397)
    assert (known.classes, known.shape, known.public_benchmark) == (10, (1, 8, 8), True)
    assert len(material.private) == 1_000
    assert material.private.images.dtype == torch.uint8
    assert material.private.labels.dtype == torch.int64
    assert material.public.images.shape == (400, 1, 8, 8)
    assert len(material.public_labels) == 400
    assert len(material.test_labels) == len(material.test_images) == 397
    first = divided.private[0]
    assert np.array_equal(material.private.images[0].numpy(), loaded.train.images([first])[0])
    assert "400 official training records of digits" in material.public.source
    # A method that changes its tensors must not change the stored arrays.
    material.private.images.zero_()
    assert loaded.train.images([first]).any()


@pytest.mark.parametrize(
    ("dataset", "train", "test", "whole"), [("mnist", 60, 10_000, True), ("cifar10", 50_000, 20, False)]
)
def test_whether_public_and_test_records_are_the_official_test_set(
    dataset: str, train: int, test: int, whole: bool
) -> None:
    loaded = fake(dataset, train, test)
    assert materialise(loaded, split(loaded)).public_from_test == whole
    assert not materialise(loaded, split(loaded, "official")).public_from_test, "nothing is public"


def test_pooled_images_come_from_both_halves() -> None:
    loaded = fake("stl10", 5, 8)
    which = np.array([12, 0, 7, 4, 5])
    images = pooled_images(loaded, which)
    both = np.concatenate([loaded.train.images(slice(None)), loaded.test.images(slice(None))])
    assert np.array_equal(images, both[which])


def test_a_class_without_private_records_is_not_told() -> None:
    """A refusal would reveal in the log whether the last record of a class is present."""
    loaded = fake("digits", 1_400, 397, classes=10)
    loaded.train.labels[loaded.train.labels == 7] = 3
    material = materialise(loaded, split(loaded))
    assert 7 not in material.private.labels
    assert material.private.facts == materialise(fake("digits", 1_400, 397, classes=10), split(loaded)).private.facts


def test_what_does_not_fit_into_the_memory_is_refused_at_once() -> None:
    loaded = fake("digits", 1_400, 397)
    huge = replace(loaded, spec=replace(loaded.spec, shape=(3, 1_000_000, 1_000_000)))
    with pytest.raises(BenchError, match="GiB of memory"):
        materialise(huge, split(huge))


def test_a_moved_folder_is_divided_as_before() -> None:
    loaded = fake("digits", 100, 30)
    first, second = (
        split(replace(loaded, spec=replace(loaded.spec, name=f"folder:{path}"))) for path in ("/a/b", "/c")
    )
    assert np.array_equal(first.public, second.public)
