"""A method whose cells take a moment, for tests of launchers: it logs its actions in the file GRID_LOG.

Its cells of one seed share an artefact. A cell that runs twice at once says so in the log. While a file beside the
log, with .hold behind its name, is there, no cell ends; with .hold-NAME, that cell does not, and the number in
.memory-NAME is what that cell takes in MiB.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.interface import (
    BenchError,
    Budget,
    Claim,
    Context,
    Facts,
    Ledger,
    Method,
    PrivateData,
    PublicData,
    Released,
    register_method,
    setting,
)


@dataclass(frozen=True)
class GridConfig:
    noise: float = setting(1.0, "ours")
    seconds: float = setting(0.1, "ours")
    making: float = setting(0.2, "ours")
    fails: bool = setting(False, "ours")
    dies: bool = setting(False, "ours")


def log(line: str) -> None:
    where = os.environ.get("GRID_LOG")
    if where:
        descriptor = os.open(where, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line} {os.getpid()}\n".encode())
        os.close(descriptor)


def length(what: str, otherwise: float) -> float:
    """Duration of a step, which is not part of the cell's config and so changes neither key nor record."""
    return float(os.environ.get(f"GRID_{what}", otherwise))


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    where = os.environ.get("GRID_LOG")
    if not where:
        yield
        return
    with Path(f"{where}.{name}").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            log(f"OVERLAP {name}")
        yield


@register_method("grid-test")
class GridMethod(Method):
    Config = GridConfig
    citation = "none"
    public_data = "none"
    shardable = True

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {"quick": {}, "tiny": {}}

    def calibrate(self, budget: Budget) -> GridConfig:
        return dataclasses.replace(self.config, noise=10.0 / budget.epsilon)

    def claimed(self, delta: float) -> Claim:
        return Claim(10.0 / self.config.noise, delta, "ours")

    def shares(self, seed: int) -> tuple[str, ...]:
        return (f"seed {seed}",)

    def make_shard(self, private: PrivateData, public: PublicData, context: Context, shard: int, shards: int) -> None:
        log(f"shard {context.streams.seed} {shard}")
        self.artefact(context, shard)

    def artefact(self, context: Context, part: int, pool: ProcessPoolExecutor | None = None) -> None:
        seed = context.streams.seed

        def make() -> dict[str, np.ndarray[Any, Any]]:
            with alone(f"making-{seed}-{part}"):
                making = length("MAKING", self.config.making)
                if pool is not None:
                    pool.submit(time.sleep, making).result()
                else:
                    time.sleep(making)
            return {"part": np.array([part])}

        before = len(context.cache.made)
        context.cache.get("part", {"seed": seed, "part": part}, make)
        if len(context.cache.made) > before:  # the file is whole: a kill from here on leaves no part of it
            log(f"made {seed} {part}")

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        from bench.interface import make_student
        from bench.training.processes import worker_pool

        name = f"{self.config.noise:g}-{context.streams.seed}"
        log(f"start {name}")
        with alone(name):
            # By processes of its own, as an ensemble is made, or by this one.
            with worker_pool(2 if length("POOLED", 0) else 1) as pool:
                for part in range(int(length("PARTS", 2))):
                    self.artefact(context, part, pool)
            if self.config.fails and self.config.noise == 5.0:
                raise BenchError("this cell cannot succeed")
            if self.config.dies and self.config.noise == 10.0:
                os.kill(os.getpid(), 9)
            beside = os.environ.get("GRID_LOG")
            asked = Path(f"{beside}.memory-{name}")
            mib = int(asked.read_text()) if asked.exists() else int(length("MEMORY", 0))
            held = np.ones(mib << 20, dtype=np.uint8)
            while any(Path(f"{beside}.{hold}").exists() for hold in ("hold", f"hold-{name}")):
                time.sleep(0.1)
            with context.progress.stage("work", 10) as stage:
                for _ in range(10):
                    time.sleep(length("SECONDS", self.config.seconds) / 10)
                    stage.advance()
            told = ledger.gaussian(np.zeros(1), sensitivity=1.0, noise_multiplier=self.config.noise)
            student, options = make_student("softmax_regression", private.facts, context.streams.torch("start"))
            for parameter in student.parameters():
                parameter.data.fill_(float(told[0]))
        log(f"end {name}")
        del held
        return Released(student, "softmax_regression", options)
