"""Checkpoint files: ownership, damage, a full disk, and how often they are written."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bench.core.errors import BenchError
from bench.storage import checkpoint as module
from bench.storage.cache import Cache
from bench.storage.checkpoint import Checkpoint, Loop, state_of
from bench.training.loop import fit
from helpers.stages import FITS, Stage, Stopped, blobs, everything, net, seed

pytestmark = pytest.mark.usefixtures("checkpoints_at_every_step")

shapes = st.lists(st.integers(0, 3), max_size=3)
kinds = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])


def short(root: Path | None, stop: int | None = None, start: int = 0, **options: Any) -> tuple[nn.Module, list[str]]:
    """Fit a small net, stopped at a step; return it and the messages."""
    said: list[str] = []
    cache = options.pop("cache", None) or Cache(root, {}, said.append)
    images, labels = blobs(30, start)
    made = net()
    with contextlib.suppress(Stopped), Checkpoint(cache, "stage", {}) as saved:
        fit(made, images, labels, FITS["momentum"], options.pop("order", seed(1)), stage=Stage(stop), checkpoint=saved)
    return made, said


@pytest.mark.parametrize("change", [{"start": 5}, {"order": 2}])
def test_checkpoint_of_other_inputs_is_left_alone_and_said(change: dict[str, Any], tmp_path: Path) -> None:
    short(tmp_path, 6)
    given = {**change, "order": seed(change.get("order", 1))}
    again = {**change, "order": seed(change.get("order", 1))}
    made, said = short(tmp_path, **given)
    assert len(said) == 1
    assert "other inputs" in said[0]
    assert everything(made) == everything(short(None, **again)[0])


def test_damaged_checkpoint_is_set_aside_and_said(tmp_path: Path) -> None:
    expected = everything(short(None)[0])
    for damage in (lambda data: data[:100], lambda data: data[:-3] + b"abc", lambda data: b""):
        short(tmp_path, 6)
        (path,) = tmp_path.glob("checkpoint-*.safetensors")
        damaged = damage(path.read_bytes())
        path.write_bytes(damaged)
        made, said = short(tmp_path)
        assert everything(made) == expected
        assert len(said) == 1
        assert "damaged" in said[0]
        (aside,) = tmp_path.iterdir()
        assert aside.suffix == ".damaged"
        assert aside.read_bytes() == damaged


def test_checkpoint_is_for_its_owner_only_and_no_artefact(tmp_path: Path) -> None:
    cache = Cache(tmp_path, {})
    short(None, 6, cache=cache)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    short(None, cache=cache)
    assert cache.counts() == {}
    assert not cache.made
    assert not cache.found


def test_full_disk_is_said_once_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = everything(short(None)[0])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bench.results.run_dir.os.fsync", full)
    made, said = short(tmp_path)
    assert everything(made) == expected
    assert len(said) == 1
    assert "the disk is full" in said[0]
    assert not list(tmp_path.iterdir())


def test_saved_every_so_often_and_never_for_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(module, "SECONDS", 120.0)
    monkeypatch.setattr("bench.storage.checkpoint.time.monotonic", lambda: now[0])
    cache = Cache(None, {})
    saved = Checkpoint(cache, "stage", {})
    keep = cache.keep

    def slow(*given: Any) -> None:
        now[0] += 10
        keep(*given)

    now[0] += 599
    assert not saved.due(), "shorter stages are cheaper to retrain than to checkpoint"
    now[0] += 1
    assert saved.due()
    saved.save({"weights": torch.ones(2)})
    assert not saved.due()
    now[0] += 120
    assert saved.due()
    monkeypatch.setattr(cache, "keep", slow)
    saved.save({"weights": torch.ones(2)})
    now[0] += 199
    assert not saved.due()
    now[0] += 1
    assert saved.due()


def test_stages_in_memory_do_not_share(tmp_path: Path) -> None:
    first, second = Cache(None, {}), Cache(None, {})
    short(None, 6, cache=first)
    assert Checkpoint(first, "stage", {}).load() is not None
    assert Checkpoint(second, "stage", {}).load() is None
    assert Checkpoint(first, "stage", {"seed": 1}).load() is None
    assert Checkpoint(first.child(shadow_run=1), "stage", {}).load() is None


def test_state_that_does_not_fit_is_deleted_with_a_clear_error(tmp_path: Path) -> None:
    def part(width: int) -> dict[str, Any]:
        return {"net": net(width=width)}

    Loop(Checkpoint(Cache(tmp_path, {}), "stage", {}), part(4)).done(1, 5)
    assert list(tmp_path.iterdir())
    with pytest.raises(BenchError, match=r"(?s)does not fit the stage stage .*it is deleted"):
        Loop(Checkpoint(Cache(tmp_path, {}), "stage", {}), part(8)).start()
    assert not list(tmp_path.iterdir())
    Loop(Checkpoint(Cache(tmp_path, {}), "stage", {}), part(4)).done(1, 5)
    with pytest.raises(BenchError, match="it holds net"):
        Loop(Checkpoint(Cache(tmp_path, {}), "stage", {}), {"other": torch.zeros(2)}).start()


@given(st.lists(st.tuples(shapes, kinds), max_size=4), st.integers(0, 2**32), st.booleans())
def test_saved_parts_are_restored(tensors: list[tuple[list[int], torch.dtype]], start: int, disk: bool) -> None:
    def parts(number: int) -> dict[str, Any]:
        random = seed(number)
        values = [torch.randint(0, 2, shape, generator=random).to(dtype) for shape, dtype in tensors]
        return {"values": values, "torch": random, "numpy": np.random.default_rng(number)}

    given_parts, into = parts(start), parts(start + 1)
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder) if disk else None, {})
        Checkpoint(cache, "stage", {}).save({name: state_of(part) for name, part in given_parts.items()})
        saved = Checkpoint(cache, "stage", {})
        state = saved.load()
        assert state is not None
        saved.restore(into, state)
    for value, found in zip(given_parts["values"], into["values"], strict=True):
        assert torch.equal(value, found)
    assert torch.equal(*(torch.rand(3, generator=one["torch"]) for one in (given_parts, into)))
    assert np.array_equal(*(one["numpy"].standard_normal(3) for one in (given_parts, into)))
