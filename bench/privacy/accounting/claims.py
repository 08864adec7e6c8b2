"""The epsilon that each paper claims for its setting; the note of a claim that does not hold gives the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from bench.core.errors import BenchError
from bench.core.types import Claim
from bench.privacy.accounting import accountants, pate
from bench.privacy.accounting.accountants import Accounted
from bench.privacy.events.base_event import Event, positive, whole
from bench.privacy.events.conversions import check_delta, check_epsilon, classic_epsilon
from bench.privacy.events.events import DPSGD, Gaussian

DGD_BYPASS = (
    "DGD trains its data-free generator against a classifier that was fitted to all private records without noise; "
    "the label queries are not all that depends on them"
)
DGD_EPS1 = 0.01
"""DGD, section IV: the epsilon added for perturbed codes; it protects synthetic images, not records."""
DPSD_LABEL_GAP = (
    "Eq. (5) as printed draws from all classes when the label is in the top-k set and from the set when it is not: an "
    "answer outside the set tells that the label was inside, so no epsilon holds. Drawn from the set in both cases it "
    "is epsilon-LabelDP"
)


def pate_2017(votes: NDArray[Any], gamma: float, delta: float) -> Claim:
    """Return PATE 2017's data-dependent figure for LNMax on `votes` (queries, classes), counting its factor 2 twice."""
    check_delta(delta)
    positive("gamma", gamma)
    epsilon, moment = pate.lnmax_epsilon_published(pate.check_votes(votes), gamma, delta)
    source = "Papernot et al., ICLR 2017 (arXiv:1610.05755), theorem 3 and table 2: moments accountant on the votes"
    note = f"moment {moment}; depends on the votes and is itself private; computed as printed, for half the noise"
    return Claim(epsilon, delta, source, note)


def pate_closed_form(gamma: float, queries: int, delta: float) -> Claim:
    """Return PATE 2017's data-independent figure: ``4 T gamma^2 + 2 gamma sqrt(2 T log(1 / delta))``."""
    source = "Papernot et al., ICLR 2017 (arXiv:1610.05755), section 3: strong composition of LNMax"
    return Claim(_advanced(2 * positive("gamma", gamma), queries, delta), delta, source, "sound, and loose")


def pate_2018(
    votes: NDArray[Any],
    sigma2: float,
    delta: float,
    threshold: float | None = None,
    sigma1: float | None = None,
    answered: ArrayLike | None = None,
) -> Claim:
    """Return PATE 2018's figure for GNMax, or for Confident-GNMax if `threshold` and `sigma1` are given.

    Data-dependent Renyi accounting, classic conversion; `answered` as in
    :func:`bench.privacy.accounting.pate.confident_rdp`.
    """
    check_delta(delta)
    counts = pate.check_votes(votes)
    if threshold is None or sigma1 is None:
        rdp, where = pate.gnmax_rdp(counts, sigma2).sum(axis=0), "theorem 6: GNMax"
    else:
        rdp = pate.confident_rdp(counts, threshold, sigma1, sigma2, answered=answered)
        where = "theorem 6 and section 4.1: Confident-GNMax"
    epsilon, order = classic_epsilon(pate.ORDERS, rdp, delta)
    source = f"Papernot et al., ICLR 2018 (arXiv:1802.08908), {where}, Renyi accounting on the votes"
    return Claim(epsilon, delta, source, f"order {order:g}; depends on the votes and is itself private")


def trpate(gamma: float, queries: int, delta: float) -> Claim:
    """Return TrPATE's Theorem 1: ``4 T gamma^2 + 2 gamma sqrt(2 T ln(1 / delta))``."""
    epsilon = _advanced(2 * positive("gamma", gamma), queries, delta)
    return Claim(epsilon, delta, "TrPATE, Theorem 1", "sound, and loose")


def dgd(eps0: float, queries: int, delta: float, eps1: float = 0.0) -> Claim:
    """Return DGD's ``T eps0^2 + eps0 sqrt(-2 T log delta) + eps1`` for T label queries of pure `eps0`.

    The noise has scale ``2 / eps0``. `eps1` is the cost of the VAE (0.01, absent from the paper's own figures).
    """
    if not (math.isfinite(eps1) and eps1 >= 0):
        raise BenchError(f"eps1 must be a finite number of at least 0, not {eps1}. The paper's is 0.01.")
    epsilon = _advanced(positive("eps0", eps0), queries, delta) + eps1
    return Claim(epsilon, delta, "DGD, section III-E (privacy analysis)", f"of the label queries alone: {DGD_BYPASS}")


def dpsd(beta: float, classes: int, batch: int, iterations: int, sigma: float, delta: float) -> Claim:
    """Return DPSD's Theorem 1 at its best q > 1.

    ``2 beta^2 c b T q / sigma^2 + log((q - 1) / q) - (log delta + log q) / (q - 1)``: gradients of length c (`classes`)
    and norm at most beta, b images per iteration (`batch`), T `iterations`. Its proof has noise of deviation ``sigma``,
    Eq. (3) ``sigma * beta``.
    """
    check_delta(delta)
    positive("beta", beta)
    positive("sigma", sigma)
    for what, value in (("classes", classes), ("batch", batch), ("iterations", iterations)):
        whole(what, value)
    slope = 2 * beta**2 * classes * batch * iterations / sigma**2

    def epsilon(log_excess: float) -> float:
        excess = math.exp(log_excess)
        q = 1 + excess
        return slope * q + math.log(excess / q) - (math.log(delta) + math.log(q)) / excess

    middle = 0.5 * math.log(-math.log(delta) / slope)
    bounds = middle - 6, middle + 6
    found = optimize.minimize_scalar(epsilon, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    gap = "does not hold: the noise of Eq. (3) is sigma * beta, so beta cancels and does not buy privacy"
    note = f"q {1 + math.exp(float(found.x)):.2f}; {gap}"
    return Claim(max(float(found.fun), 0.0), delta, "DPSD, Theorem 1", note)


def dpsd_events(batch: int, iterations: int, sigma: float, sensitivity: float = 2.0) -> list[Gaussian]:
    """Return the releases of DPSD's Eq. (3): ``batch * iterations`` Gaussian answers.

    Each is a gradient of this `sensitivity` in units of beta, 2 for arbitrary gradients of norm beta, with noise of
    deviation sigma beta; one record can change every answer. If the whole batch has norm beta, it is one answer.
    """
    whole("batch", batch)
    whole("iterations", iterations)
    return [Gaussian(positive("sigma", sigma) / positive("sensitivity", sensitivity), batch * iterations)]


def dpsd_label(epsilon: float, delta: float) -> Claim:
    """Return DPSD's Theorem 2: annotation by randomised response is (epsilon, 0)-LabelDP, however often reused."""
    check_delta(delta)
    return Claim(check_epsilon(epsilon), delta, "DPSD, Theorem 2 (delta 0)", DPSD_LABEL_GAP)


def label_response(epsilon: float, delta: float) -> Claim:
    """Return the cost of one randomised response per label, over all classes or the likeliest."""
    check_delta(delta)
    source = "Ghazi et al., NeurIPS 2021 (arXiv:2102.06062), Lemma 1: RRTop-k (delta 0)"
    return Claim(check_epsilon(epsilon), delta, source)


def alibi(scale: float, delta: float) -> Claim:
    """Return the cost of Laplace noise of `scale` on every entry of a label's one-hot code: ``2 / scale``."""
    check_delta(delta)
    source = "Malek et al., NeurIPS 2021 (arXiv:2106.03408): ALIBI; 2 sqrt(2) / deviation in lib/alibi.py (delta 0)"
    return Claim(2 / positive("scale", scale), delta, source)


def moments_accountant(events: Sequence[Event], delta: float) -> Accounted:
    """Return the moments accountant's figure: Renyi accounting with the classic conversion, looser than today's."""
    epsilon, order = classic_epsilon(accountants.ORDERS, sum(event.rdp(accountants.ORDERS) for event in events), delta)
    return Accounted("moments", epsilon, sound=True, data_dependent=False, releasable=True, order=order)


def moments_claim(events: Sequence[Event], delta: float, source: str, note: str = "sound, and loose") -> Claim:
    """Return :func:`moments_accountant`'s figure for `events` as a claim of `source`."""
    row = moments_accountant(events, delta)
    return Claim(row.epsilon, delta, source, f"order {row.order:g}; {note}")


def dp_sgd(sampling_rate: float, noise_multiplier: float, steps: int, delta: float) -> Claim:
    """Return the moments accountant's figure for DP-SGD, as Abadi et al. and Tramer and Boneh compute it."""
    check_delta(delta)
    source = "Abadi et al., CCS 2016 (arXiv:1607.00133), theorem 2: moments accountant"
    return moments_claim([DPSGD(sampling_rate, noise_multiplier, steps)], delta, source)


def zcdp_accountant(events: Sequence[Event], delta: float) -> Accounted:
    """Return the figure of Yu et al. (S&P 2019) for DP-SGD, by concentrated DP for random sampling.

    A step costs ``rho = (rate / noise)**2`` at orders up to ``1 + noise**2 log(1 / (rate * noise))``, and a Gaussian
    release's ``1 / (2 noise**2)`` above them or if less. A comment in the authors' code calls the first a heuristic,
    checked numerically.
    """
    orders, total = accountants.ORDERS, np.zeros(len(accountants.ORDERS))
    for event in events:
        assert isinstance(event, DPSGD)
        noise, rate = event.noise_multiplier, event.sampling_rate
        rho = min(rate**2, 0.5) / noise**2
        covered = orders <= 1 - noise**2 * math.log(rate * noise)
        total = total + event.steps * orders * np.where(covered, rho, 1 / (2 * noise**2))
    epsilon, order = classic_epsilon(orders, total, delta)
    return Accounted("zcdp-sampling", epsilon, sound=False, data_dependent=False, releasable=True, order=order)


def zcdp(events: Sequence[Event], delta: float) -> Claim:
    """Return the figure of :func:`zcdp_accountant` for `events` of DP-SGD."""
    check_delta(delta)
    row = zcdp_accountant(events, delta)
    source = "Yu et al., IEEE S&P 2019 (arXiv:1904.02200): concentrated DP of random sampling"
    note = "a step's bound is a heuristic, checked numerically (comment in the authors' code)"
    return Claim(row.epsilon, delta, source, f"order {row.order:g}; {note}")


def dp_sgd_improved(sampling_rate: float, noise_multiplier: float, steps: int, delta: float) -> Claim:
    """Return DP-SGD's figure by Renyi accounting with the improved conversion, as in papers since 2020."""
    check_delta(delta)
    row = accountants.rdp([DPSGD(sampling_rate, noise_multiplier, steps)], delta)
    assert row is not None  # Renyi accounting always applies
    source = "Abadi et al., CCS 2016 (arXiv:1607.00133): moments accountant, as Renyi DP with the improved conversion"
    return Claim(row.epsilon, delta, source, f"order {row.order:g}")


def advanced_largest_count(eps0: float, epsilon: float, delta: float) -> int:
    """Return the most queries of pure `eps0` (LNMax: ``2 gamma``) within `epsilon` by the PATE, TrPATE and DGD formula.

    Raises :class:`BenchError` with the cost of one query if that exceeds `epsilon`.
    """
    check_epsilon(epsilon)
    positive("eps0", eps0)
    one = _advanced(eps0, 1, delta)
    if one > epsilon:
        raise BenchError(
            f"a claimed epsilon {epsilon:g} at delta {delta:g} is not reachable with even one query: one costs "
            f"{one:.6g}. Ask for a larger epsilon, or use more noise."
        )
    slope = math.sqrt(-2 * math.log(delta))
    root = 2 * epsilon / (eps0 * (slope + math.sqrt(slope**2 + 4 * epsilon)))
    count = max(math.floor(root**2), 1)
    # Squaring may round across an integer.
    while _advanced(eps0, count + 1, delta) <= epsilon:
        count += 1
    while _advanced(eps0, count, delta) > epsilon:
        count -= 1
    return count


def dgd_largest_count(eps0: float, epsilon: float, delta: float, eps1: float = 0.0) -> int:
    """Return the most label queries within `epsilon` by DGD's closed form; see :func:`advanced_largest_count`."""
    if epsilon <= eps1:
        raise BenchError(f"a claimed epsilon {epsilon:g} is not reachable: the VAE alone costs eps1 {eps1:g}.")
    return advanced_largest_count(eps0, epsilon - eps1, delta)


def dpsd_smallest_sigma(beta: float, classes: int, batch: int, iterations: int, epsilon: float, delta: float) -> float:
    """Return the least sigma at which DPSD's Theorem 1 claims at most `epsilon`."""
    check_epsilon(epsilon)

    def excess(log_sigma: float) -> float:
        return dpsd(beta, classes, batch, iterations, math.exp(log_sigma), delta).epsilon - epsilon

    # Theorem 1 depends on sigma through one product, so claims of 0 and of thousands bracket every budget.
    middle = 0.5 * math.log(2 * beta**2 * classes * batch * iterations)
    low, high = middle - 1.0, middle + 1.0
    while excess(low) <= 0:
        low -= 1.0
    while excess(high) > 0:
        high += 1.0
    root = float(optimize.brentq(excess, low, high, xtol=1e-12))
    return math.exp(root if excess(root) <= 0 else root + 2e-12)


def _advanced(eps0: float, queries: int, delta: float) -> float:
    whole("the number of queries", queries)
    return queries * eps0**2 + eps0 * math.sqrt(-2 * queries * math.log(check_delta(delta)))
