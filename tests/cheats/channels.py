"""Private figures leave by parts of the release, notes, the ledger's calls and charges, or by failing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from bench.interface import BenchError, Claim, Ledger
from bench.training.divergence import CollapsedError
from cheats.honest import Given, Honest, Student


def counts(given: Given) -> torch.Tensor:
    """The private class counts."""
    return torch.bincount(given.private.labels, minlength=given.private.facts.classes)


class FirstLabels(Honest):
    name = "cheat-first-labels"

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        return {"hints": given.private.labels[:10]}


class OneLabel(Honest):
    """One label in an option that a net might have."""

    name = "cheat-one-label"

    def options(self, given: Given) -> dict[str, Any]:
        return {"drop_rate": int(given.private.labels[7]) / 100}


class Memory(Honest):
    """The student in memory corrects itself by the nearest private record; its weights are honest."""

    name = "cheat-memory"

    def finish(self, given: Given, student: Student) -> None:
        private, plain = given.private, student.forward

        def forward(images: torch.Tensor) -> torch.Tensor:
            nearest = torch.cdist(images.flatten(1), private.images.flatten(1) / 255).argmin(1)
            return plain(images) + torch.nn.functional.one_hot(private.labels[nearest], private.facts.classes)

        student.forward = forward  # type: ignore[method-assign]


class OptionOrder(Honest):
    """Equal options, in the order of the class counts."""

    name = "cheat-option-order"

    def options(self, given: Given) -> dict[str, Any]:
        return {f"class_{c}": True for c in counts(given).argsort().tolist()}


class ExtrasOrder(Honest):
    """Equal extras, in the order of the class counts."""

    name = "cheat-extras-order"

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        return {f"class_{c}": torch.zeros(1) for c in counts(given).argsort().tolist()}


class Precision(Honest):
    """Stores a counter of the student in 32 bits where class 0 is the more common of two."""

    name = "cheat-precision"

    def finish(self, given: Given, student: Student) -> None:
        if counts(given)[0] > counts(given)[1]:
            student.norm.num_batches_tracked = student.norm.num_batches_tracked.int()


class Note(Honest):
    name = "cheat-note"

    def begin(self, given: Given) -> None:
        given.context.note(f"mean intensity {given.private.images.float().mean():.2f}")


class ArtefactKinds(Honest):
    """Names a cached artefact by a private figure, which records list with their numbers of artefacts."""

    name = "cheat-artefact-kinds"

    def begin(self, given: Given) -> None:
        kind = f"mean {given.private.images.float().mean():.2f}".replace(".", " ")
        given.context.cache.get(kind, {}, lambda: {"nothing": np.zeros(1)})


class NumberOfArtefacts(Honest):
    """Caches one artefact for each record of the largest class."""

    name = "cheat-number-of-artefacts"

    def begin(self, given: Given) -> None:
        for number in range(int(counts(given).max())):
            given.context.cache.get("part", {"number": number}, lambda: {"nothing": np.zeros(1)})


class WordsOfClaim(Honest):
    """Describes its claim by the votes."""

    name = "cheat-words-of-claim"

    def claimed_after(self, delta: float, ledger: Ledger) -> Claim:
        (release,) = ledger.private_votes()
        agree = " ".join(f"{votes.max():.0f}" for votes in release.votes)
        return Claim(1.0, delta, "nowhere", f"teachers agree on {agree}")


class Collapses(Honest):
    """Fails with private images, which the record of a collapsed generator shows."""

    name = "cheat-collapses"

    def finish(self, given: Given, student: nn.Module) -> None:
        raise CollapsedError("the generator collapsed.", given.private.images[:8], given.private.labels[:8])


class NumberOfCalls(Honest):
    """Asks class by class, and as often as the largest class's name says."""

    name = "cheat-number-of-calls"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        calls = int(counts(given).argmax()) + 1
        return np.concatenate([super(NumberOfCalls, self).answer(given, part) for part in np.array_split(votes, calls)])


class NumberOfQueries(Honest):
    """Asks one query more for each record of class 0."""

    name = "cheat-number-of-queries"

    def choose(self, given: Given) -> torch.Tensor:
        order = given.context.streams.numpy("queries").permutation(len(given.public))
        return torch.from_numpy(order[: 40 + int(counts(given)[0])])


class Charge(Honest):
    """The recorded noise tells the share of class 0."""

    name = "cheat-charge"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        share = float(counts(given)[0] / len(given.private))
        return given.ledger.noisy_max(votes, teachers=given.config.teachers, gamma=0.05 + share / 1000)


class SpendsWhatRan(Honest):
    """Asks again until an answer is large, and is charged for as many answers as it took."""

    name = "cheat-spends-what-ran"

    def begin(self, given: Given) -> None:
        for _ in range(20):
            if given.ledger.gaussian(np.zeros((1, 1)), sensitivity=1.0, noise_multiplier=5.0).item() > 1:
                break


class Beside(Honest):
    """Its student tells classes apart by the other images of a batch."""

    name = "cheat-beside"

    def finish(self, given: Given, student: Student) -> None:
        student.norm.track_running_stats = False
        student.norm.running_mean = student.norm.running_var = None


class Failure(Honest):
    """Fails on dark images."""

    name = "cheat-failure"

    def begin(self, given: Given) -> None:
        if given.private.images.float().mean() < 80:
            raise BenchError("too dark to learn from")


class Votes(Honest):
    """Reads back the votes that the ledger keeps for its accountants."""

    name = "cheat-votes"

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        (release,) = given.ledger.private_votes()
        return {"agreement": torch.from_numpy(release.votes.max(1))}


class Sanitised(Honest):
    """Releases the noised cost of the votes, which nothing is charged for."""

    name = "cheat-sanitised"

    def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
        return given.ledger.noisy_max_gaussian(votes, teachers=given.config.teachers, sigma=2.0)

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        return {"cost": torch.tensor(given.ledger.sanitised(1e-5).epsilon)}
