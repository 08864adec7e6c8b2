"""Audits by pairs whose runs are drawn, not trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from bench.core.progress import Progress
from bench.core.types import Facts, PrivateData, PublicData
from bench.data.splits import Materialised
from bench.evaluation.audit import pair_audit, pair_runs
from bench.evaluation.audit.pair_audit import PairPlan, PairsFound, audit_pairs
from bench.evaluation.audit.pairs import WorstPair
from bench.interface.method import Method
from bench.storage.cache import Cache

DELTA, CONFIDENCE = 1e-5, 0.95
FACTS = Facts("small", 1, 1, 1, 2, (1, 1, 1))
PRIVATE = PrivateData(torch.zeros((1, 1, 1, 1), dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), FACTS)
MATERIAL = Materialised(PRIVATE, PublicData(PRIVATE.images, ""), PRIVATE.labels, PRIVATE.images, PRIVATE.labels)
PAIRS = [WorstPair(name, {}, FACTS, PRIVATE, PRIVATE, MATERIAL, ()) for name in ("one", "another")]


class DrawnRuns:
    """Stands for the processes that train. `release` gets a pair's name, set and seed, and whether the run is silent;
    `transcript` a pair's name, the direction, the tilt and delta. No time is left for runs of None.
    """

    def __init__(self, release: Callable[..., Any] | None, transcript: Callable[..., Any] | None) -> None:
        self.give = {pair_runs.release: release, pair_runs.transcript: transcript}
        self.seen: list[tuple[Any, ...]] = []

    def each(self, calls: Sequence[Any], more: Callable[[], bool]) -> Iterator[tuple[int, Any]]:
        for position, call in enumerate(calls):
            give = self.give[call.func]
            if give is None or not more():
                return
            given = (call.args[0].pair.name, *call.args[1:])
            self.seen.append(given)
            yield position, give(*given, **call.keywords)

    def close(self) -> None:
        pass


def audited(
    release: Callable[..., Any] | None = None, transcript: Callable[..., Any] | None = None, *,
    pairs: Sequence[WorstPair] = PAIRS, releases: int = pair_audit.RELEASES, cache: Cache | None = None, **plan: Any,
) -> tuple[PairsFound, list[tuple[Any, ...]]]:  # fmt: skip
    """Return what an audit of `pairs` with `releases` counted runs finds, and the arguments of all runs."""

    class Small(Method):
        name = "small"

    runs = DrawnRuns(release, transcript)
    given = {"minutes": 10.0, "target": 1.0, "delta": DELTA, "confidence": CONFIDENCE, "workers": 1} | plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_audit, "RELEASES", releases)
        patch.setattr(pair_audit, "worst_pairs", lambda *given: pairs)
        patch.setattr(pair_audit, "Crew", lambda *given, **options: runs)
        found = audit_pairs(Small, {}, FACTS, PairPlan(**given), cache or Cache(None, {}), Progress())  # type: ignore[arg-type]
    return found, runs.seen
