"""A bypass declared in one place only, and a ledger that is never opened."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from bench.interface import BenchError, Event, Ledger, LNMax, PublicKind, Released
from bench.models.pretrained import weights_by_digest
from cheats.honest import Given, Honest


class UndeclaredBypass(Honest):
    """Calls ledger.bypass without the class attribute that planning and refusing rely on."""

    name = "undeclared-bypass"

    def begin(self, given: Given) -> None:
        given.ledger.bypass("looked at everything")


class UncalledBypass(Honest):
    """Declares a bypass in its class and never tells the ledger, so its proven epsilon would come out finite."""

    name = "uncalled-bypass"
    bypass = "something"


class CostsLess(Honest):
    """States the cost of two answers to each query where one runs."""

    name = "costs-less"

    def charges(self) -> list[Event]:
        return [LNMax(self.config.gamma, 2 * self.config.queries)]

    def train_student(self, private: Any, public: Any, ledger: Ledger, context: Any) -> Released:
        return Honest(self.config, self.facts).train_student(private, public, ledger, context)


class UndeclaredPublic(Honest):
    """Reads public images and declares no public data."""

    name = "undeclared-public"
    public_data_kinds = (PublicKind.NONE,)


class UndeclaredWeights(Honest):
    """Asks for pretrained weights and declares unlabelled images only."""

    name = "undeclared-weights"

    def begin(self, given: Given) -> None:
        with contextlib.suppress(BenchError):  # whether they are stored or not
            weights_by_digest("tf_efficientnet_lite0", "0" * 64)


class Forgetful(Honest):
    """Answers its queries by the private votes themselves and never opens the ledger."""

    name = "forgetful"

    def train_student(self, private: Any, public: Any, ledger: Ledger, context: Any) -> Released:
        class Open:
            def noisy_max(self, votes: np.ndarray, **_: Any) -> np.ndarray:
                return votes.argmax(1)

        return super().train_student(private, public, Open(), context)  # type: ignore[arg-type]
