"""The ledger, the only way from private data to a release: each call applies a mechanism and records one event."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.types import Adjacency, Claim, PrivacyUnit, Sampling
from bench.privacy.accounting.accountants import Accounted
from bench.privacy.accounting.claims import DPSD_LABEL_GAP
from bench.privacy.accounting.data_dependent import release_rows
from bench.privacy.accounting.pate import check_votes
from bench.privacy.accounting.smooth_sensitivity import check_release, sanitise
from bench.privacy.dpsgd.dp_sgd import STRATEGIES, DPSGDRun, NoisySteps
from bench.privacy.dpsgd.exact_steps import ExactSteps, check_exact
from bench.privacy.events import events
from bench.privacy.events.base_event import positive, whole
from bench.privacy.events.batch_events import Training
from bench.privacy.events.label_events import LabelResponse
from bench.privacy.mechanisms import mechanisms, responses
from bench.privacy.mechanisms.charging import PRIVATE as PRIVATE
from bench.privacy.mechanisms.charging import mechanism, with_plain_fields
from bench.privacy.mechanisms.choice_ledger import ChoiceMechanisms
from bench.privacy.mechanisms.executors import Executor
from bench.privacy.mechanisms.noise import GRANULARITY, Noise
from bench.privacy.mechanisms.sampled_ledger import SampledMechanisms
from bench.privacy.mechanisms.stream_ledger import StreamMechanisms
from bench.storage.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class VoteRelease:
    """One batch of votes, for the data-dependent accountants; private, never written."""

    event: events.LNMax | events.GNMax | events.ConfidentGNMax
    votes: NDArray[np.float64]
    answered: NDArray[np.bool_]


class Ledger(SampledMechanisms, ChoiceMechanisms, StreamMechanisms):
    """Charges for each mechanism that a method uses, and releases its executor's answers."""

    def __init__(self, unit: PrivacyUnit, adjacency: Adjacency, executor: Executor) -> None:
        super().__init__(unit, adjacency, executor)
        self._votes: list[VoteRelease] = []
        self._hidden: tuple[NDArray[np.int64], NDArray[np.bool_]] | None = None  # labels, and whether each is answered

    @property
    def asked(self) -> int:
        """Teacher queries so far."""
        return self._sampled_answers + sum(len(release.answered) for release in self._votes)

    @property
    def answered(self) -> int:
        """Teacher queries that got an answer."""
        return self._sampled_answers + sum(int(release.answered.sum()) for release in self._votes)

    @mechanism("votes")
    def noisy_max(self, votes: NDArray[Any], *, teachers: int, gamma: float) -> NDArray[np.int64]:
        """Release :func:`bench.privacy.mechanisms.mechanisms.lnmax` of `votes` (queries, classes): int64 (queries,).

        Raises :class:`BenchError` on votes that are negative, not finite, or do not sum to `teachers` in each row.
        """
        counts = self._counts(votes, teachers)
        granularity = GRANULARITY if self._executor.exact else None
        event = events.LNMax(gamma, len(counts), secure_granularity=granularity)
        return self._charge_votes(event, counts, partial(mechanisms.lnmax, counts, gamma))

    @mechanism("votes")
    def noisy_max_gaussian(self, votes: NDArray[Any], *, teachers: int, sigma: float) -> NDArray[np.int64]:
        """Release :func:`bench.privacy.mechanisms.mechanisms.gnmax` of `votes`; see :meth:`noisy_max`."""
        counts = self._counts(votes, teachers)
        return self._charge_votes(events.GNMax(sigma, len(counts)), counts, partial(mechanisms.gnmax, counts, sigma))

    @mechanism("votes")
    def confident_noisy_max(
        self, votes: NDArray[Any], *, teachers: int, threshold: float, sigma1: float, sigma2: float, max_answers: int
    ) -> NDArray[np.int64]:
        """Release :func:`bench.privacy.mechanisms.mechanisms.confident_gnmax` of `votes`; see :meth:`noisy_max`.

        Charges for the threshold on every query and for `max_answers` answers, as the actual number is private.
        """
        counts = self._counts(votes, teachers)
        cap = min(max_answers, len(counts))
        event = events.ConfidentGNMax(threshold, sigma1, sigma2, len(counts), cap)
        release = partial(mechanisms.confident_gnmax, counts, threshold, sigma1, sigma2, cap)
        return self._charge_votes(event, counts, release)

    @mechanism("values")
    def gaussian(self, values: NDArray[Any], *, sensitivity: float, noise_multiplier: float) -> NDArray[np.float64]:
        """Release `mechanisms.gaussian` of `values`, whose L2 sensitivity the caller states."""
        given = np.asarray(values, dtype=np.float64)
        positive("sensitivity", sensitivity)
        self._charge(events.Gaussian(noise_multiplier, unit=self.unit, adjacency=self.adjacency))
        return self._ask(partial(mechanisms.gaussian, self._or_zeros(given), sensitivity, noise_multiplier))

    @mechanism("values")
    def laplace(
        self, values: NDArray[Any], *, sensitivity: float, noise_multiplier: float, entries: int | None = None
    ) -> NDArray[np.float64]:
        """Release `mechanisms.laplace` of `values`, whose L1 sensitivity the caller states.

        One unit moves at most `entries` entries (default: all); exact noise charges for the rounding of each.
        """
        given = np.asarray(values, dtype=np.float64)
        positive("sensitivity", sensitivity)
        if entries is not None:
            whole("the number of entries", entries)
        moved = given.size if entries is None else entries
        multiplier, steps = noise_multiplier, None
        if self._executor.exact:
            rounded = mechanisms.grid_sensitivity(sensitivity, moved)
            multiplier *= sensitivity / rounded
            # A shift moves by no more than this number of whole steps.
            steps = max(1, math.floor(rounded * GRANULARITY))
        event = events.Laplace(multiplier, grid_steps=steps, unit=self.unit, adjacency=self.adjacency)
        self._charge(event)
        return self._ask(partial(mechanisms.laplace, self._or_zeros(given), sensitivity, noise_multiplier))

    @mechanism("labels")
    def randomized_response(self, labels: NDArray[Any], *, epsilon: float, classes: int) -> NDArray[np.int64]:
        """Release :func:`bench.privacy.mechanisms.responses.randomized_response` of `labels` (n,), each label once."""
        given = self._labels(labels)
        self._charge_labels(events.RandomizedResponse(epsilon, classes, answers=len(given), unit=self._label_unit))
        return self._ask(partial(responses.randomized_response, given, epsilon, classes))

    @mechanism("labels")
    def top_k_randomized_response(
        self,
        labels: NDArray[Any],
        candidates: NDArray[Any],
        *,
        epsilon: float,
        classes: int,
        outside: Literal["set", "printed"] = "set",
    ) -> NDArray[np.int64]:
        """Release RRTop-k of `labels` (n,), each once; ``outside="printed"`` is DPSD's form, with infinite epsilon."""
        given, sets = self._labels(labels), np.asarray(candidates, dtype=np.int64)
        k = int(sets.shape[1])
        if outside == "printed":
            # Positional: reason, epsilon, k, classes, answers.
            self._record(events.PrintedTopK(DPSD_LABEL_GAP, epsilon, k, classes, len(given), unit=self._label_unit))
            return self._ask(partial(responses.printed_top_k, given, sets, epsilon, classes))
        event = events.TopKRandomizedResponse(epsilon, k, classes, answers=len(given), unit=self._label_unit)
        self._charge_labels(event)
        return self._ask(partial(responses.top_k_randomized_response, given, sets, epsilon, classes))

    @mechanism("labels")
    def prior_randomized_response(
        self, labels: NDArray[Any], prior: NDArray[Any], *, rows: NDArray[Any], epsilon: float
    ) -> NDArray[np.int64]:
        """Release `responses.prior_randomized_response` of ``labels[rows]``: int64 (m,).

        `labels` (n,) are those of all records, `rows` (m,) public positions among them, `prior` (m, classes). Labels in
        later calls are other units: while array and epsilon stay the same and no position repeats, all calls cost as
        much as one (parallel composition). Raises :class:`BenchError` on repeated rows, or a prior that is not finite,
        non-negative and (m, classes).
        """
        chosen, known = np.asarray(rows, dtype=np.int64), np.asarray(prior, dtype=np.float64)
        if known.ndim != 2 or known.shape[0] != len(chosen) or not (np.isfinite(known) & (known >= 0)).all():
            raise BenchError(f"a prior needs finite shares of at least 0, ({len(chosen)}, classes), not {known.shape}.")
        given = responses.known_labels(np.asarray(labels), known.shape[1])
        if len(np.unique(chosen)) < len(chosen) or ((chosen < 0) | (chosen >= len(given))).any():
            raise BenchError(f"rows must be different positions in 0..{len(given) - 1}.")
        event = events.PriorRandomizedResponse(epsilon, known.shape[1], answers=len(chosen), unit=self._label_unit)
        last = self._events[-1] if self._events else None
        if self._hidden is None or not np.array_equal(self._hidden[0], given) or self._hidden[1][chosen].any():
            self._hidden = given, np.zeros(len(given), dtype=np.bool_)
            self._charge(event)
        elif isinstance(last, LabelResponse) and dataclasses.replace(event, answers=last.answers) == last:
            self._record(dataclasses.replace(event, answers=event.answers + last.answers), joined=True)
        else:
            self._charge(event)
        self._hidden[1][chosen] = True
        asked = self._labels(given[chosen])
        return self._ask(partial(responses.prior_randomized_response, asked, known, epsilon))

    @property
    def _label_unit(self) -> PrivacyUnit:
        return PrivacyUnit.QUERY_LABEL if self.unit is PrivacyUnit.QUERY_LABEL else PrivacyUnit.LABEL

    def _charge_labels(self, event: events.RandomizedResponse | events.TopKRandomizedResponse) -> None:
        """Charge `event`; query labels are separate units and join one event, record labels may repeat and compose."""
        last = self._events[-1] if self._events else None
        if event.unit is PrivacyUnit.QUERY_LABEL and isinstance(last, LabelResponse) and self._left is None:
            joined = dataclasses.replace(event, answers=event.answers + last.answers)
            if dataclasses.replace(last, answers=joined.answers) == joined:  # type: ignore[call-arg]
                self._record(joined, joined=True)
                return
        self._charge(event)

    @mechanism("images", "labels")
    def dp_sgd(self, model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, run: DPSGDRun) -> None:
        """Train `model` in place by DP-SGD: batches by ``run.sampling``, clipped per-example gradients, Gaussian noise.

        `images` is uint8 (n, channels, height, width), or floats (n, ...) of any range, images in [0, 1] or features,
        including float16; they become float32 one pass at a time. `labels` is int64 (n,). ``run.records`` is public and
        n is not: the neighbour of a set of that many records has one fewer or one more. Unit record, adjacency
        add-remove, L2 sensitivity ``run.clipping.sensitivity`` for a batch's sum. With an exact noise source, gradients
        are rounded to a grid and added exactly (:mod:`bench.privacy.dpsgd.exact_steps`).

        Raises :class:`BenchError` on another adjacency, an expected batch outside ``1..run.records``, a clipping class
        that is not the ledger's own, clipping or noise that exact sums do not allow, or more records than
        ``run.records`` places of fixed or shuffled batches.
        """
        # Read each setting once: a custom object could show the accountant one value and the training another.
        run = with_plain_fields(DPSGDRun, run)
        if type(run.clipping) in STRATEGIES:
            run = dataclasses.replace(run, clipping=with_plain_fields(type(run.clipping), run.clipping))
        kept = run.checkpoint
        if kept is not None and (type(kept) is not Checkpoint or any(hasattr(Checkpoint, name) for name in vars(kept))):
            raise BenchError(f"DP-SGD resumes only from a plain Checkpoint, not from a {type(kept).__name__}.")
        placed = run.sampling in (Sampling.FIXED, Sampling.SHUFFLED)
        if placed and len(images) > run.records:
            raise BenchError(
                f"{run.sampling} batches have places for {run.records} records, the public number, but the set has "
                "more. State the largest number that the set may have."
            )
        planned = self._charge_steps(run)
        if self._executor.exact:
            run = dataclasses.replace(run, checkpoint=None)  # its batches cannot be drawn again

        def release(noise: Noise) -> None:
            # Draw batches and noise from the ledger's noise, so that public streams do not reveal them.
            words = noise.uniform((8,), 2**32)
            steps = ExactSteps if self._executor.exact else NoisySteps
            randomness = np.random.default_rng(words)
            counted = self._executor.train(model, images, labels, run, randomness=randomness, make_steps=steps)
            if counted != planned:
                raise AssertionError(f"DP-SGD took {counted.describe()}, the ledger charged {planned.describe()}")

        self._ask(release)

    def _charge_steps(self, run: DPSGDRun) -> Training:
        self._refuse_again()
        if self.adjacency is not Adjacency.ADD_REMOVE:
            raise BenchError("DP-SGD is accounted for add-remove adjacency only; declare that.")
        if type(run.sampling) is not Sampling:
            raise BenchError(f"sampling must be one of {', '.join(Sampling)}, not {run.sampling!r}.")
        if type(run.clipping) not in STRATEGIES:
            own = ", ".join(one.__name__ for one in STRATEGIES)
            raise BenchError(f"DP-SGD clips by {own}, not by {type(run.clipping).__name__}, whose bound is unknown.")
        positive("max_grad_norm", run.clipping.norm)
        if self._executor.exact:
            check_exact(run)
        if not 0 < run.expected_batch_size <= run.records:
            raise BenchError(
                f"the expected batch must hold between 1 and {run.records} records (the public number), not "
                f"{run.expected_batch_size}."
            )
        if run.sampling is Sampling.FIXED and type(run.expected_batch_size) is not int:
            raise BenchError(f"a fixed batch must hold a whole number of records, not {run.expected_batch_size}.")
        planned = run.event(run.steps)
        self._charge(planned)
        return planned

    def private_votes(self) -> tuple[VoteRelease, ...]:
        """Return every batch of answered votes, for data-dependent accounting; private, never released."""
        return tuple(self._votes)

    def check_sanitised(self) -> None:
        """Raise :class:`BenchError`, before any vote is cast, if :meth:`sanitised` has no sound noise."""
        if self._executor.exact:
            raise BenchError(
                "claim=sanitised has no exact sampler: its noise is scaled by a private figure. Use --noise seeded and "
                "keep the seed secret, or another claim."
            )

    def sanitised(self, delta: float) -> Claim:
        """Return one draw of the single vote batch's data-dependent cost, with noise scaled to its smooth sensitivity.

        PATE 2018, section 4 and appendix B, with :func:`bench.privacy.accounting.smooth_sensitivity.default_release`;
        the Renyi order is chosen without the votes. The draw includes its own cost; a second draw would cost again.
        Raises :class:`BenchError` unless GNMax or Confident-GNMax answered one batch, and if the noise is exact: its
        grid, scaled by the private deviation, would reveal that deviation.
        """
        self.check_sanitised()
        if len(self._votes) != 1 or isinstance(self._votes[0].event, events.LNMax):
            raise BenchError("the sanitised claim needs a single batch of votes with Gaussian noise: use GNMax.")
        release = self._votes[0]
        event = release.event
        assert isinstance(event, (events.GNMax, events.ConfidentGNMax))
        order = check_release(event, delta, release.votes.shape[1])
        found = sanitise(release.votes, event, delta, order, answered=release.answered)
        noise = self._executor.draw(lambda source: source.gaussian((1,), 1.0))
        drawn = found.mean + found.deviation * float(noise[0])
        return Claim(
            drawn,
            delta,
            "Papernot et al., ICLR 2018 (arXiv:1802.08908), section 4 and appendix B: sanitised by smooth sensitivity",
            f"one noisy draw at order {order:g}, may be published instead of the data-dependent figures; an estimate, "
            "no bound; the proven figure does not cover it",
        )

    def data_dependent(self, delta: float) -> list[Accounted]:
        """Return the data-dependent figures of the votes, themselves private; empty if anything else is charged."""
        if self._left is not None or len(self._votes) != len(self._events):
            return []
        releases = [(release.event, release.votes, release.answered) for release in self._votes]
        return release_rows(releases, delta, exact=self._executor.exact)

    def _counts(self, votes: NDArray[Any], teachers: int) -> NDArray[np.float64]:
        self._refuse_again()
        return check_votes(votes, teachers)

    def _charge_votes(
        self,
        event: events.LNMax | events.GNMax | events.ConfidentGNMax,
        counts: NDArray[np.float64],
        release: Callable[[Noise], NDArray[np.int64]],
    ) -> NDArray[np.int64]:
        """Charge `event`, return the answers, and keep the votes for the data-dependent accountants."""
        self._charge(event)
        answers = self._ask(release)
        kept = VoteRelease(event, counts.copy(), answers != mechanisms.UNANSWERED)
        kept.votes.flags.writeable = kept.answered.flags.writeable = False  # the caller keeps its own arrays
        self._votes.append(kept)
        return answers

    def _labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        given = np.asarray(labels)
        return np.zeros_like(given) if self._again else given
