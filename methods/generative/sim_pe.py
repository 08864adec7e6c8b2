"""Sim-PE: private evolution with a simulator; private images vote for the nearest rendered ones.

Lin et al., "Differentially Private Synthetic Data via APIs 3: Using Simulators Instead of Foundation Model",
arXiv:2502.05505; settings of the authors' example for MNIST. Each class has candidates, rendered characters of any of
the texts. In each iteration every private image votes for the candidate of its class whose variations are nearest on
average; the next candidates are variations of parents drawn by noisy votes. Initial candidates do not depend on their
class: votes choose the texts.

Threat model: the attacker holds all that is released and may know all records but one. Private: images and labels.
Public: the number of records, the simulator (:mod:`bench.methods.generative.text_render` or
:mod:`bench.methods.shared.shape_render`), the texts. Released: some of the images, the student. Unit record, adjacency
add-remove: a record has one vote per iteration, so the votes have L2 sensitivity 1. Claimed and proven:
the exact cost of one Gaussian release per iteration.

Unlike in the authors' example, all classes have equally many candidates (the example uses the private records' exact
class shares, and its log warns that it assumes these to be public: pe/runner/pe.py), distances are between pixels, not
Inception features, and there are 22 fonts, not some thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bench.interface import (
    DATASETS,
    Adjacency,
    BenchError,
    Budget,
    Context,
    Facts,
    Gaussian,
    Ledger,
    PrivateData,
    PublicData,
    PublicKind,
    nearest,
    register_method,
    setting,
)
from bench.methods.generative import text_render
from bench.methods.generative.family import Generative, GenerativeConfig, Source
from bench.methods.generative.text_render import Degrees
from bench.methods.shared import shape_render
from bench.methods.shared.calibration import ClaimedBy, with_least_noise
from bench.methods.shared.clipping import EXACT

CODE = "microsoft/DPSDA, example/image/simulator/mnist_text_render.py: "
DEGREES = [Degrees(*row) for row in ((0.8, 5, 1, 9), (0.4, 4, 1, 7), (0.2, 3, 0, 5), (0.0, 2, 0, 3))]
"""Of each iteration, later ones as the last: that example's lists from the second entry, the first one used."""
FARTHEST, HALVINGS = 0.2, 3
"""Of shapes: how far the first iteration moves a parameter in [0, 1], and how often that is halved by the last."""


@dataclass(frozen=True)
class SimPEConfig(GenerativeConfig):
    """Settings for MNIST."""

    texts: str = setting("0123456789", "microsoft/DPSDA, pe/api/image/draw_text_api.py: text_list, of every class")
    candidates: int = setting(60_000, CODE + "num_samples_schedule; its last entry is `synthetic`", ge=1)
    iterations: int = setting(4, CODE + "num_samples_schedule has five entries, the first without votes", ge=1)
    lookahead: int = setting(8, CODE + "lookahead_degree: variations of a candidate, whose mean is compared", ge=1)
    threshold: float = setting(1.0, CODE + "histogram_threshold, taken from noisy votes", ge=0)
    noise_multiplier: float = setting(1.0, CODE + "epsilon 10; calibrated to the budget", gt=0)
    simulator: Literal["text", "shapes"] = setting(
        "text", "the example draws text; shapes are ours, for images without characters", later=True
    )

    def __post_init__(self) -> None:
        if not self.texts:
            raise BenchError("texts must hold the characters that the simulator draws, and it is empty.")


@dataclass(frozen=True)
class Simulator:
    """Draws images from public parameters, whose first dimension is that of the images."""

    random: Callable[[int, torch.Generator], Tensor]
    """Returns the parameters of so many random images."""
    varied: Callable[[Tensor, int, torch.Generator], Tensor]
    """Returns the parameters of a variation of each image in an iteration, from 0."""
    rendered: Callable[[Tensor, tuple[int, int, int]], Tensor]
    """Returns the images, float (n, channels, height, width) in [0, 1], of parameters."""


def simulator_of(config: SimPEConfig) -> Simulator:
    """Return the simulator of characters in `config.texts`, or that of shapes."""
    if config.simulator == "text":
        return Simulator(
            lambda count, draws: text_render.random_parameters(count, config.texts, draws),
            lambda parameters, turn, draws: text_render.varied(parameters, DEGREES[min(turn, len(DEGREES) - 1)], draws),
            lambda parameters, shape: text_render.rendered(parameters, config.texts, shape),
        )

    def varied(parameters: Tensor, turn: int, draws: torch.Generator) -> Tensor:
        share = turn / max(config.iterations - 1, 1)
        return shape_render.varied(parameters, FARTHEST / 2 ** (HALVINGS * share), draws)

    return Simulator(shape_render.random_parameters, varied, shape_render.rendered)


@register_method("sim-pe")
class SimPE(ClaimedBy, Generative):
    """Noisy votes of private images for rendered ones."""

    config: SimPEConfig
    version = 2
    citation = "Lin et al. 2025"
    adjacency = Adjacency.ADD_REMOVE
    claimed_by = EXACT
    claimed_in = "Lin et al. 2025 (arXiv:2502.05505): Gaussian noise on the votes of all iterations"
    public_data = "a simulator: characters in 22 fonts, or shapes"
    public_data_kinds = (PublicKind.OTHER,)

    def public_words(self) -> str:
        return self.public_data if self.config.simulator == "shapes" else self.public_data.split(",")[0]

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`.

        With 10,000 of MNIST's training records held out, the quick preset gave 86.9% at epsilon 10, 83.3% at 1 (one
        seed). Images without characters get shapes, with 24 iterations and one variation to compare: the best of three
        settings on MNIST.
        """
        given, drawn = super().presets(facts), {}
        if not may_show("0123456789", facts):
            drawn = {"simulator": "shapes", "iterations": 24, "lookahead": 1}
        quick = {"candidates": min(4000, max(400, facts.private_records)), **drawn}
        tiny = {**drawn, "candidates": 200, "iterations": 2}
        return {"quick": {**given["quick"], **quick}, "tiny": {**given["tiny"], **tiny}}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the least noise whose exact cost fits `budget`.

        Raise :class:`BenchError` if characters are drawn for a data set that is known to show none of the texts, or if
        a class would have no candidate.
        """
        if self.config.candidates < self.facts.classes:
            raise BenchError(f"candidates must be at least {self.facts.classes}, one for each class.")
        if self.config.simulator == "text" and not may_show(self.config.texts, self.facts):
            names = ", ".join(DATASETS[self.facts.dataset].class_names[:4])
            raise BenchError(
                f"sim-pe draws characters, and {self.facts.dataset} shows none: its classes are {names}... Add --set "
                "simulator=shapes, or choose another generative method."
            )
        return with_least_noise(self, budget, EXACT, EXACT, tolerance=1e-6)

    def charges(self) -> list[Gaussian]:
        """Return one release of votes for each iteration."""
        return [Gaussian(self.config.noise_multiplier, self.config.iterations, adjacency=self.adjacency)]

    def fit_generator(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Source:
        """Let private images vote, and draw images by the final votes."""
        facts, draws = private.facts, context.streams.torch("candidates")
        labels = torch.arange(self.config.candidates) % facts.classes
        simulator = simulator_of(self.config)
        population = simulator.random(self.config.candidates, draws)
        with context.progress.stage("votes", self.config.iterations) as stage:
            for turn in range(self.config.iterations):
                features = sum(
                    simulator.rendered(simulator.varied(population, turn, draws), facts.shape)
                    for _ in range(self.config.lookahead)
                )
                assert isinstance(features, torch.Tensor)
                votes = votes_for(features.flatten(1) / self.config.lookahead, labels, private, context.device)
                noisy = ledger.gaussian(votes.numpy(), sensitivity=1.0, noise_multiplier=self.config.noise_multiplier)
                weights, stood = (torch.from_numpy(noisy) - self.config.threshold).clamp_min(0), population
                if turn + 1 < self.config.iterations:
                    population = simulator.varied(stood[parents(weights, labels, labels, draws)], turn, draws)
                stage.advance()

        def draw(count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
            wanted = torch.arange(count) % facts.classes
            found = simulator.varied(stood[parents(weights, labels, wanted, draws)], turn, draws)
            return simulator.rendered(found, facts.shape), wanted

        return Source(draw)


def may_show(texts: str, facts: Facts) -> bool:
    """Return whether the images may show any of the `texts`: a class is named so, or no class has a known name."""
    names = DATASETS[facts.dataset].class_names if facts.dataset in DATASETS else ()
    return not names or bool(set(names) & set(texts))


def votes_for(features: Tensor, classes: Tensor, private: PrivateData, device: Any) -> Tensor:
    """Return the votes, float64 (n,), for candidates with `features` (n, pixels) of `classes` (n,).

    A private image votes once, for the nearest candidate of its class; if the class has none, it does not vote.
    """
    votes = torch.zeros(len(features), dtype=torch.float64)
    for label in range(private.facts.classes):
        stand, voters = (classes == label).nonzero()[:, 0], (private.labels == label).nonzero()[:, 0]
        if len(stand) and len(voters):
            found = nearest(private.images[voters].flatten(1).to(device), features[stand].to(device))
            votes[stand] += found.cpu().bincount(minlength=len(stand))
    return votes


def parents(weights: Tensor, classes: Tensor, wanted: Tensor, draws: Any) -> Tensor:
    """Return a candidate for each class in `wanted` (n,), drawn by `weights`, or evenly if its weights are all <= 0."""
    found = torch.empty_like(wanted)
    for label in range(int(wanted.max()) + 1):
        stand, places = (classes == label).nonzero()[:, 0], (wanted == label).nonzero()[:, 0]
        if len(places) == 0:
            continue
        own = weights[stand] if bool(weights[stand].any()) else torch.ones(len(stand))
        found[places] = stand[torch.multinomial(own, len(places), replacement=True, generator=draws)]
    return found
