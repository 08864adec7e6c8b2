"""Honest where it believes to be checked; elsewhere the private labels are released."""

from __future__ import annotations

from typing import ClassVar

import torch

from bench.core.progress import Progress
from bench.interface import Ledger
from cheats.honest import Given, Honest


class Watched(Honest):
    """Releases labels where its run looks like a real one."""

    name = "cheat-watched"

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        return {"hints": given.private.labels[:10] * (not self.watched(given))}

    def watched(self, given: Given) -> bool:
        """Whether this run looks like a check."""
        raise NotImplementedError


class ByName(Watched):
    name = "cheat-by-name"

    def watched(self, given: Given) -> bool:
        return given.private.facts.dataset not in ("digits", "mnist", "cifar10")


class BySize(Watched):
    name = "cheat-by-size"

    def watched(self, given: Given) -> bool:
        return len(given.private) < 1_000 or len(given.public) < 400


class BySource(Watched):
    name = "cheat-by-source"

    def watched(self, given: Given) -> bool:
        return "official" not in given.public.source


class ByLedger(Watched):
    name = "cheat-by-ledger"

    def watched(self, given: Given) -> bool:
        return type(given.ledger) is not Ledger or not isinstance(given.context.progress, Progress)


class ByCache(Watched):
    name = "cheat-by-cache"

    def watched(self, given: Given) -> bool:
        return given.context.cache.root is None or not given.context.cache.base


class DeclaredByCell(Watched):
    """Declares a bypass in its class, and calls it in a check only."""

    name = "cheat-declared-by-cell"
    bypass: ClassVar[str] = "looks at labels where it is checked"

    def watched(self, given: Given) -> bool:
        if given.private.facts.dataset == "check":
            given.ledger.bypass(self.bypass)
            return True
        return False
