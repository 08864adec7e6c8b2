"""Shadow runs: a cell's pipeline retrained on its private set with canaries.

The released student has no canaries, which would lower its accuracy. A shadow run differs from it in the canaries and
in every random draw. It is a private artefact, shared by the attacks and audits of a cell; its ensembles are shared
across epsilons. Its noise salt stays in memory, so a killed shadow run starts over, and none can be reproduced exactly.
A *noiseless* shadow run measures power: an audit that finds nothing in it is inconclusive.
"""

from __future__ import annotations

import dataclasses
import json
import math
from concurrent.futures import as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.config import NoiseKind, PrecisionKind, Preset, as_dict
from bench.core.progress import Progress
from bench.core.seeds import Streams, new_salt
from bench.core.transforms import as_float
from bench.core.types import Adjacency, Family, PrivacyUnit, PrivateData, Released
from bench.data.splits import Materialised
from bench.evaluation.audit.canaries import Canaries, place
from bench.experiments.noise_salt import cell_token, noise_of
from bench.experiments.plan import Cell
from bench.interface.registry import METHODS, plugin_file
from bench.interface.signals import log_odds
from bench.models.build import build
from bench.privacy.accounting.accountants import proven
from bench.privacy.mechanisms.executors import Call, Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import Silence
from bench.storage.cache import Arrays, Cache
from bench.training.context import Context
from bench.training.features import student_logits
from bench.training.loop import predict
from bench.training.processes import worker_pool


@dataclass(frozen=True, slots=True)
class ShadowRun:
    """One shadow run: its release, the coins (m,) of its canaries, the proven epsilon and the test accuracy."""

    index: int
    coins: NDArray[np.bool_]
    released: Released
    proven: float  # for the method's unit, or for a training record if the unit is the query label
    accuracy: float


class Noiseless(Noisy):
    """Runs DP-SGD for power runs with clipping and batches but no noise; its `noise` silences other mechanisms."""

    def begin(self, call: Call) -> Call:
        """See :meth:`bench.privacy.mechanisms.executors.Executor.begin`."""
        if call.name != "dp_sgd":
            return call
        run = dataclasses.replace(call.public["run"], noise_multiplier=1e-9)
        return dataclasses.replace(call, public={**call.public, "run": run})


SHADOW_RUN_VERSION = 2  # part of keys; increment when the same plan gives different canaries, coins or shadow runs


def _depends(
    cell: Cell, canaries: Canaries, index: int, context: Context, *, noiseless: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the dependencies of a shadow run's private set, and those of the shadow run."""
    method = METHODS.get(cell.method)
    plan = {**dataclasses.asdict(canaries.plan), "version": SHADOW_RUN_VERSION}
    which = {
        "plan": plan, "adjacency": canaries.adjacency.value, "index": index,
        "seed": cell.seed, "label": canaries.unit is PrivacyUnit.LABEL,
    }  # fmt: skip
    depends = {
        **which,
        "method": [cell.method, method.version],
        "config": as_dict(cell.config),
        "delta": cell.delta,
        "noiseless": noiseless,
        "device": context.device.type,
    }
    if cell.noise is NoiseKind.SECURE:
        depends["noise"] = cell.noise.value
    if cell.precision is not PrecisionKind.FLOAT32:
        depends["precision"] = cell.precision.value
    return which, depends


def train_shadow_run(
    cell: Cell, canaries: Canaries, index: int, material: Materialised, context: Context, *, noiseless: bool = False
) -> ShadowRun:
    """Return shadow run `index` of `cell`, from the cache (with the cell's base) if present."""
    coins = canaries.coins(cell.seed, index)
    which, depends = _depends(cell, canaries, index, context, noiseless=noiseless)

    def make() -> Arrays:
        # Its ensembles do not depend on the cell.
        cache = context.cache.child(sibling=which)  # the artefact name in older run directories
        streams = Streams(cell.seed, f"sibling-{canaries.plan.seed}-{index}/")
        inner = dataclasses.replace(context, streams=streams, cache=cache)
        return _train(cell, place(material.private, canaries, coins), material, inner, noiseless=noiseless)

    arrays = context.cache.get("sibling", depends, make)
    return _unpack(index, coins, arrays)


def train_shadow_student(
    cell: Cell, material: Materialised, index: int, seed: int, context: Context
) -> tuple[Released, float]:
    """Return a student of `cell`'s method and settings on the private set of `material`, and its test accuracy.

    It has no canaries. `material` is not the cell's own, so the caller's cache must distinguish its data.
    """
    depends = {
        "method": [cell.method, METHODS.get(cell.method).version], "config": as_dict(cell.config), "index": index,
        "seed": seed, "delta": cell.delta, "noise": cell.noise.value, "precision": cell.precision.value,
        "device": context.device.type, "version": 2,
    }  # fmt: skip

    def make() -> Arrays:
        cache = context.cache.child(shadow=[seed, index])  # teachers of its own
        streams = Streams(cell.seed, f"shadow-{seed}-{index}/")
        return _train(cell, material.private, material, dataclasses.replace(context, streams=streams, cache=cache))

    made = _unpack(index, np.zeros(0, dtype=np.bool_), context.cache.get("shadow-student", depends, make))
    return made.released, made.accuracy


def _train(
    cell: Cell, private: PrivateData, material: Materialised, context: Context, *, noiseless: bool = False
) -> Arrays:
    """Return a release as arrays: everything that an attacker has except a generator's weights."""
    salt, method = new_salt(), METHODS.get(cell.method)
    context = dataclasses.replace(context, cell=cell_token(cell, salt), precision=cell.precision.value)
    executor = Noiseless(Silence(np.random.default_rng())) if noiseless else Noisy(noise_of(cell, salt))
    ledger = Ledger(method.unit, method.adjacency, executor)
    context.streams.seed_globals()
    released = method(cell.config, private.facts).train_checked(private, material.public, ledger, context)
    released.student.eval()
    if noiseless:
        cost = math.inf
    else:
        level = ledger.record_level(cell.delta) if method.unit is PrivacyUnit.QUERY_LABEL else None
        cost = (level or proven(ledger.events, cell.delta)).epsilon
    logits = student_logits(released.student, material.test_images, context, "test")
    good = float((logits.argmax(1) == material.test_labels).double().mean())
    about = json.dumps(
        {"student": released.student_name, "options": released.student_options, "proven": cost, "accuracy": good}
    )
    arrays: Arrays = {"about": np.frombuffer(about.encode(), dtype=np.uint8)}
    arrays |= {f"student/{k}": v.detach().cpu().numpy() for k, v in released.student.state_dict().items()}
    arrays |= {f"extra/{k}": v.detach().cpu().numpy() for k, v in released.extras.items()}
    return arrays


def _unpack(index: int, coins: NDArray[np.bool_], arrays: Arrays) -> ShadowRun:
    about: dict[str, Any] = json.loads(arrays["about"].tobytes())

    def below(prefix: str) -> dict[str, torch.Tensor]:
        return {k.removeprefix(prefix): torch.from_numpy(v.copy()) for k, v in arrays.items() if k.startswith(prefix)}

    student = build(about["student"], **about["options"])
    student.load_state_dict(below("student/"))
    released = Released(student.eval(), about["student"], about["options"], extras=below("extra/"))
    return ShadowRun(index, coins, released, float(about["proven"]), float(about["accuracy"]))


def queries_of(images: torch.Tensor, shift: int) -> torch.Tensor:
    """Return the images and, for a `shift` > 0 in pixels, four shifted copies: (queries, n, c, h, w)."""
    moves = [(0, 0)] + ([(-shift, 0), (shift, 0), (0, -shift), (0, shift)] if shift else [])
    return torch.stack([images.roll(move, dims=(-2, -1)) for move in moves])


def logits_of(released: Released, queries: torch.Tensor, device: torch.device) -> NDArray[np.float64]:
    """Return the student's logits (queries, n, classes), float64, on images (queries, n, c, h, w)."""
    flat = predict(released.student, queries.flatten(0, 1), device=device)
    return flat.view(*queries.shape[:2], -1).double().numpy()


def coin_scores(shadow_run: ShadowRun, canaries: Canaries, family: Family, device: torch.device) -> NDArray[np.float64]:
    """Return a score (m,) for each canary of `family` from the student itself, larger if its coin is likelier True.

    Replace: log odds of the second alternative minus those of the first. Add-remove: log odds of the record minus the
    mean over the other canaries of its label, which cancels the student's bias for such images.
    """
    numbers = canaries.of(family)
    odds = []
    for side in (0, 1):
        images, labels = canaries.images[numbers, side], canaries.labels[numbers, side].numpy()
        odds.append(log_odds(logits_of(shadow_run.released, images[None], device)[0], labels))
    if canaries.adjacency is Adjacency.REPLACE:
        return odds[1] - odds[0]
    labels = canaries.labels[numbers, 1].numpy()
    score = odds[1].copy()
    for label in np.unique(labels):
        alike = labels == label
        total, count = odds[1][alike].sum(), int(alike.sum())
        if count > 1:
            score[alike] -= (total - odds[1][alike]) / (count - 1)
    return score


def image_scores(shadow_run: ShadowRun, canaries: Canaries, family: Family) -> NDArray[np.float64] | None:
    """Return scores (m,) like :func:`coin_scores`, from distances to the nearest released image; None without any."""
    shape = canaries.images.shape[2:]
    found = [t for t in shadow_run.released.extras.values() if t.ndim == 4 and t.shape[1:] == shape and len(t)]
    if not found:
        return None
    released = torch.cat([as_float(t) for t in found]).flatten(1)
    numbers = torch.from_numpy(canaries.of(family))
    distance = [
        torch.cdist(as_float(canaries.images[numbers, side]).flatten(1), released).amin(1).double().numpy()
        for side in (0, 1)
    ]
    return distance[0] - distance[1] if canaries.adjacency is Adjacency.REPLACE else -distance[1]


def train_shadow_runs(
    cell: Cell, canaries: Canaries, count: int, material: Materialised, context: Context
) -> list[ShadowRun]:
    """Return `count` shadow runs of `cell`, in parallel with workers; an interrupted call resumes from the cache."""
    found: dict[int, ShadowRun] = {}
    for index in range(count):
        kept = context.cache.find("sibling", _depends(cell, canaries, index, context, noiseless=False)[1])
        if kept is not None:
            found[index] = _unpack(index, canaries.coins(cell.seed, index), kept)
    missing = [index for index in range(count) if index not in found]
    importable = not plugin_file(METHODS.get(cell.method))
    quick = cell.preset is Preset.TINY and len(missing) <= 4  # starting processes would take longer than the work
    workers = min(context.workers, len(missing)) if importable and not quick else 1

    def apart(progress: Progress, workers: int) -> Context:
        cache = Cache(context.cache.root, context.cache.base, progress.say)
        return Context(context.device, Streams(cell.seed), cache, progress, workers)

    if missing:
        with (
            context.progress.stage(f"shadow runs of {cell.method}", len(missing)) as stage,
            worker_pool(workers, context.device.type) as pool,
        ):
            if pool is None:
                for index in missing:
                    own = apart(context.progress, context.workers)
                    found[index] = train_shadow_run(cell, canaries, index, material, own)
                    stage.advance()
            else:
                futures = {
                    pool.submit(train_shadow_run, cell, canaries, index, material, apart(Progress(), 1)): index
                    for index in missing
                }
                for future in as_completed(futures):
                    found[futures[future]] = future.result()
                    stage.advance()
    return [found[index] for index in range(count)]
