"""What one run leaves behind changes the next: in a module, a class or the cache."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch

from bench.core.types import Budget, PrivateData, PublicData
from bench.training.context import Context
from cheats.honest import Config, Given, Honest

SEEN: list[torch.Tensor] = []


class ModuleGlobal(Honest):
    """Releases the labels of the run before."""

    name = "cheat-module-global"

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        SEEN.append(given.private.labels[:10].clone())
        return {"hints": torch.zeros(10, dtype=torch.int64) if len(SEEN) == 1 else SEEN[-2]}


class SecondRun(Honest):
    """Honest once; from its second run on it releases labels."""

    name = "cheat-second-run"
    runs = 0

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        type(self).runs += 1
        return {"hints": given.private.labels[:10] * (self.runs > 1)}


class CacheCarries(Honest):
    """Keeps class counts in the cache, where the next cell finds them."""

    name = "cheat-cache-carries"

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        cache, key = given.context.cache, {"of": "hints"}
        found = cache.find("hints", key)
        cache.put("hints", key, {"counts": np.bincount(given.private.labels.numpy(), minlength=10)})
        return {"hints": torch.zeros(10) if found is None else torch.from_numpy(found["counts"])}


class ShardCarries(Honest):
    """Makes a shard of class counts, without a ledger, and releases what the cache has of it."""

    name = "cheat-shard-carries"
    shardable = True

    def make_shard(self, private: PrivateData, public: PublicData, context: Context, shard: int, shards: int) -> None:
        context.cache.put("shard", {"of": "hints"}, {"counts": np.bincount(private.labels.numpy(), minlength=10)})

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        found = given.context.cache.find("shard", {"of": "hints"})
        return {"hints": torch.zeros(10) if found is None else torch.from_numpy(found["counts"])}


class CopiesLedger(Honest):
    """Learns the noise of its next answer from a copy of the ledger."""

    name = "cheat-copies-ledger"

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        copy.deepcopy(given.ledger)
        return {}


class KeepsAnswers(Honest):
    """Pays for its own labels and learns from those of the first cell, whose epsilon may be larger."""

    name = "cheat-keeps-answers"

    def depends(self, given: Given) -> dict[str, str]:
        return {"of": "answers"}

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        labels, cache, depends = super().answer(given, votes), given.context.cache, self.depends(given)
        found = cache.find("answers", depends)
        if found is None:
            cache.put("answers", depends, {"labels": labels})
        return labels if found is None else found["labels"]


class ReadsMoreAccurateAnswers(KeepsAnswers):
    """Keeps the labels of a cell at epsilon 10 for those at others."""

    name = "cheat-reads-more-accurate-answers"

    def calibrate(self, budget: Budget) -> Config:
        return replace(self.config, gamma=0.05 if budget.epsilon == 10 else 0.04)

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        labels, cache, depends = Honest.answer(self, given, votes), given.context.cache, self.depends(given)
        found = cache.find("answers", depends)
        if given.config.gamma < 0.05:
            return labels if found is None else found["labels"]
        if found is None:
            cache.put("answers", depends, {"labels": labels})
        return labels


class SharesAnswers(KeepsAnswers):
    """Asks the ledger while it makes an artefact that every cell finds: later cells pay nothing."""

    name = "cheat-shares-answers"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        def make() -> dict[str, np.ndarray]:
            return {"labels": Honest.answer(self, given, votes)}

        return given.context.cache.get("answers", self.depends(given), make)["labels"]


class AddsAnswers(Honest):
    """Adds up the labels that all cells got."""

    name = "cheat-adds-answers"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        labels, cache, key = super().answer(given, votes), given.context.cache, {"of": "sums"}
        found = cache.find("sums", key)
        counts = np.eye(10)[labels] + (0.0 if found is None else found["counts"])
        cache.put("sums", key, {"counts": counts})
        return counts.argmax(1)


class HonestKeeper(KeepsAnswers):
    """Keeps the labels for this cell only."""

    name = "honest-keeper"

    def depends(self, given: Given) -> dict[str, str]:
        return {"of": "answers", "cell": given.context.cell}


class WritesPublic(Honest):
    """Hides private labels in the public images, which the next run of a grid gets too."""

    name = "cheat-writes-public"

    def finish(self, given: Given, student: torch.nn.Module) -> None:
        hidden = given.public.images.flatten()[: len(given.private)]
        hidden.copy_(hidden // 16 * 16 + given.private.labels[: len(hidden)])
