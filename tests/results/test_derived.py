"""Replace-one epsilons are computed once and cached, and computed again if the cached value is invalid."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.privacy.accounting.accountants import replace_one
from bench.privacy.events.events import DPSGD
from bench.results import derived

EVENT = DPSGD(0.01, 1.1, 20)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the list of requests to the accountant, with the cache in `tmp_path`."""
    calls: list[object] = []

    def account(events: object, delta: float) -> object:
        calls.append(events)
        return replace_one([EVENT], delta)

    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    monkeypatch.setattr(derived, "replace_one", account)
    return calls


def figure(delta: float = 1e-5) -> float:
    derived.figures_of.cache_clear()
    return derived.figures_of("replace-one", json.dumps([EVENT.as_dict()]), delta)[0]


def test_a_figure_is_found_once(asked: list[object]) -> None:
    expected = replace_one([EVENT], 1e-5).epsilon
    assert [figure(), figure(), figure(1e-6) > expected, len(asked)] == [expected, expected, True, 2]


def test_other_accountants_find_it_anew(asked: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    figure()
    monkeypatch.setattr(derived, "accountants_digest", lambda: "others")
    figure()
    assert len(asked) == 2


@pytest.mark.parametrize("content", [b"", b"\xff", b"much"])
def test_a_damaged_figure_is_found_anew(asked: list[object], tmp_path: Path, content: bytes) -> None:
    expected = figure()
    (kept,) = (tmp_path / ".replace-one").iterdir()
    kept.write_bytes(content)
    assert [figure(), figure(), len(asked)] == [expected, expected, 2]


def test_a_folder_that_cannot_be_written_costs_time_only(asked: list[object], tmp_path: Path) -> None:
    (tmp_path / ".replace-one").write_text("a file")
    assert figure() == figure() < 10
    assert len(asked) == 2


def test_two_that_ask_at_once_wait_for_one_figure(asked: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    finds = derived.replace_one

    def slowly(events: list[object], delta: float) -> object:
        time.sleep(0.3)
        return finds(events, delta)

    monkeypatch.setattr(derived, "replace_one", slowly)
    derived.figures_of.cache_clear()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(
            lambda _: derived.figures_of("replace-one", json.dumps([EVENT.as_dict()]), 1e-5), range(2)
        )
    assert first == second
    assert len(asked) == 1
