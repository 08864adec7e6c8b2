"""Artefacts: made once, verified when read, remade when damaged, never pickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.errors import BenchError
from bench.core.processes import processor
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise
from bench.results.provenance import Clock
from bench.storage import cache as caches
from bench.storage.cache import Cache, canonical_json, digest_of


def make(value: float = 1.0) -> dict[str, np.ndarray]:
    return {"votes": np.full((3, 2), value), "flags": np.array([True, False])}


def test_made_once_and_found_again(tmp_path: Path) -> None:
    first = Cache(tmp_path, {"dataset": "mnist"})
    arrays = first.get("votes", {"seed": 1}, make)
    again = Cache(tmp_path, {"dataset": "mnist"})
    found = again.get("votes", {"seed": 1}, lambda: make(99.0))
    np.testing.assert_array_equal(found["votes"], arrays["votes"])
    assert found["flags"].dtype == np.bool_
    assert (len(first.made), len(again.made), len(again.found)) == (1, 0, 1)


def test_no_artefact_asks_the_ledger_while_it_is_made(tmp_path: Path) -> None:
    cache = Cache(tmp_path, {})
    ledger = Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, Noisy(SeededNoise(np.random.default_rng(0))))
    cache.refuse_answers(ledger)

    def ask() -> dict[str, np.ndarray]:
        ledger.gaussian(np.zeros(1), sensitivity=1.0, noise_multiplier=1.0)
        return make()

    for place in (cache, cache.child(canaries=1)):
        with pytest.raises(BenchError, match="the artefact 'labels' asks the ledger while it is made"):
            place.get("labels", {"seed": 1}, ask)
        place.get("teachers", {"seed": 1}, make)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_key_holds_kind_base_and_dependencies(tmp_path: Path) -> None:
    cache = Cache(tmp_path, {"dataset": "mnist"})
    cache.get("votes", {"seed": 1}, make)
    cache.get("votes", {"seed": 2}, make)
    cache.get("teachers", {"seed": 1}, make)
    Cache(tmp_path, {"dataset": "fmnist"}).get("votes", {"seed": 1}, make)
    assert len(list(tmp_path.glob("*.safetensors"))) == 4


def test_artefacts_of_another_processor_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as there:
        there.setattr(caches, "processor", lambda: "another processor")
        Cache(tmp_path, {}).get("votes", {"n": 1}, lambda: {"x": np.zeros(3)})
        Cache(tmp_path, {}).keep("steps", {}, {"x": np.zeros(3)})
    here = Cache(tmp_path, {})
    here.get("votes", {"n": 2}, lambda: {"x": np.zeros(3)})
    here.get("votes", {"n": 2}, lambda: {"x": np.zeros(3)})
    assert here.elsewhere == 0
    here.get("votes", {"n": 1}, lambda: {"x": np.ones(3)})
    assert here.elsewhere == 1
    here.recall("steps", {})  # a training that was stopped elsewhere goes on here
    assert here.elsewhere == 2
    assert Clock().stop(elsewhere=2).processor == f"{processor()}, with 2 artefacts cached by another"


def test_damaged_artefact_is_set_aside_and_made_anew(tmp_path: Path) -> None:
    said: list[str] = []
    cache = Cache(tmp_path, {}, said.append)
    cache.get("votes", {}, make)
    (path,) = tmp_path.glob("*.safetensors")
    whole = path.read_bytes()
    for damaged in (whole[:40], whole[:-3] + b"\x00\x00\x01", b""):
        path.write_bytes(damaged)
        found = cache.get("votes", {}, lambda: make(5.0))
        np.testing.assert_array_equal(found["votes"], np.full((3, 2), 5.0))
        assert path.with_suffix(".damaged").read_bytes() == damaged
    assert len(said) == 3
    assert "damaged" in said[0]


def test_artefacts_are_for_their_owner_only(tmp_path: Path) -> None:
    Cache(tmp_path, {}).get("votes", {}, make)
    (path,) = tmp_path.glob("*.safetensors")
    assert path.stat().st_mode & 0o077 == 0


@given(st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.booleans()), max_size=5))
def test_digest_does_not_depend_on_order(value: dict[str, object]) -> None:
    backwards = dict(reversed(list(value.items())))
    assert canonical_json(value) == canonical_json(backwards)
    assert digest_of(value) == digest_of(backwards)


def test_two_that_meet_a_damaged_artefact_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one process reads the damaged file, the other sets it aside and remakes it; the new file stays."""
    import safetensors

    first, second = Cache(tmp_path, {}), Cache(tmp_path, {})
    first.get("votes", {}, make)
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(b"damaged")
    opened, real = [], safetensors.safe_open

    def slow(*given: object, **options: object) -> object:
        if not opened:
            opened.append(True)
            try:
                return real(*given, **options)
            finally:
                first.get("votes", {}, lambda: make(7.0))  # the other process, in between
        return real(*given, **options)

    monkeypatch.setattr("bench.storage.cache.safe_open", slow)
    found = second.get("votes", {}, lambda: make(99.0))
    assert found["votes"][0, 0] == 7.0
    assert len(second.made) == 0


def test_waiting_for_another_process_is_counted(tmp_path: Path) -> None:
    import threading
    import time

    cache = Cache(tmp_path, {})
    ready = threading.Event()

    def slow() -> dict[str, np.ndarray]:
        ready.set()
        time.sleep(0.5)
        return make()

    thread = threading.Thread(target=lambda: Cache(tmp_path, {}).get("votes", {}, slow))
    thread.start()
    ready.wait(10)
    cache.get("votes", {}, make)
    thread.join()
    assert 0.2 < cache.waited < 30
