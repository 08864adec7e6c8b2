"""Settings of the whole suite: one thread per worker, so that workers do not compete for cores."""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # also of the processes that tests start
os.environ["HF_HUB_OFFLINE"] = "1"

from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("suite", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=200)  # HYPOTHESIS_PROFILE=thorough
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but N parameter sets of a test marked ``few(N)`` as slow, evenly spaced; slow tests may take an hour."""
    groups = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            groups[item.nodeid.split("[")[0]].append(item)
    for group in groups.values():
        few = group[0].get_closest_marker("few")
        assert few is not None
        count = min(int(few.args[0]), len(group))
        kept = {round(place * (len(group) - 1) / max(count - 1, 1)) for place in range(count)}
        for place, item in enumerate(group):
            if place not in kept:
                item.add_marker(pytest.mark.slow)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3_600))  # longer than any takes, on a machine that does other work too


@pytest.fixture
def registries_restored() -> Iterator[None]:
    """Unregister, at the end, the plug-ins registered in between."""
    from helpers import commands

    with commands.registries_restored():
        yield


@pytest.fixture
def checkpoints_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a checkpoint after each step, not every two minutes."""
    monkeypatch.setattr("bench.storage.checkpoint.SECONDS", 0.0)
