"""The largest number of queries or the least noise within a budget, by any accountant."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from scipy import optimize

from bench.core.errors import BenchError
from bench.core.types import Basis, Budget, TargetAdjacency
from bench.privacy.accounting.accountants import AccountantFunction, accountant
from bench.privacy.events.events import Event

_HUGE = 1e6
"""Cap on epsilons, so that infinity can be interpolated."""


def _epsilon(events: Sequence[Event] | None, budget: Budget, name: str | AccountantFunction) -> float:
    if events is None:  # the default of Method.charges
        raise BenchError("calibrating needs the events of a whole run, not None: define charges(), which returns them.")
    if budget.basis is Basis.PROVEN and budget.adjacency is TargetAdjacency.REPLACE_ONE:
        events = [event.replaced() for event in events]
    found = (accountant(name) if isinstance(name, str) else name)(events, budget.delta)
    if found is None:
        kinds = ", ".join(sorted({event.kind for event in events}))
        raise BenchError(f"the accountant {name!r} does not apply to {kinds}. Use 'proven'.")
    return found.epsilon


def largest_count(
    make_events: Callable[[int], Sequence[Event]], budget: Budget, *, claimed: str = "proven", most: int = 10_000_000
) -> int:
    """Return the largest count, up to `most`, whose events cost at most the budget.

    On the claimed basis the cost is from the paper's accountant `claimed` (a name in
    :data:`bench.privacy.accounting.accountants.ACCOUNTANTS`); on the proven basis it is the proven cost, in the
    budget's adjacency. It must increase with the count. Raises :class:`BenchError` with one query's cost if that is
    over budget.
    """
    epsilon, delta = budget.epsilon, budget.delta
    name = claimed if budget.basis is Basis.CLAIMED else "proven"

    def cost(count: int) -> float:
        return _epsilon(make_events(count), budget, name)

    low, low_cost = 1, cost(1)
    if low_cost > epsilon:
        raise BenchError(
            f"epsilon {epsilon:g} at delta {delta:g} is not reachable with even one query: one costs {low_cost:.6g}. "
            "Ask for a larger epsilon, or use more noise."
        )
    high, high_cost = low, low_cost
    while high_cost <= epsilon:
        low, low_cost = high, high_cost
        if low >= most:
            return most
        high = min(high * 4, most)
        high_cost = cost(high)
    halve = False
    while high - low > 1:
        # The cost is roughly a power of the count: interpolate logarithms, and bisect so that both ends converge.
        middle = (low + high) // 2
        if not halve and 0 < low_cost < high_cost < _HUGE:
            share = math.log(epsilon / low_cost) / math.log(high_cost / low_cost)
            middle = math.floor(math.exp(math.log(low) + share * math.log(high / low)))
            middle = min(max(middle, low + 1), high - 1)
        before = high - low
        middle_cost = cost(middle)
        if middle_cost <= epsilon:
            low, low_cost = middle, middle_cost
            probe = min(low + 1 + before // 100, high - 1)
        else:
            high, high_cost = middle, middle_cost
            probe = max(high - 1 - before // 100, low + 1)
        if high - low > 1 and not halve:
            probe_cost = cost(probe)
            if probe_cost <= epsilon:
                low, low_cost = probe, probe_cost
            else:
                high, high_cost = probe, probe_cost
        halve = high - low > before // 4
    return low


def smallest_noise(
    make_events: Callable[[float], Sequence[Event]],
    budget: Budget,
    *,
    claimed: str | AccountantFunction = "proven",
    sound: str = "proven",
    start: float = 1.0,
    tolerance: float = 1e-7,
) -> float:
    """Return the least noise (sigma, scale or multiplier) whose events cost at most the budget.

    The cost is from the accountant `claimed` or `sound`, by the budget's basis and adjacency as in
    :func:`largest_count`, and must fall with the noise; the search begins at `start`. The result is never too small,
    and too large by at most a relative `tolerance`, roughly. Raises :class:`BenchError` if 10^9 times `start` is too
    little.
    """
    epsilon, delta = budget.epsilon, budget.delta
    name = claimed if budget.basis is Basis.CLAIMED else sound

    @cache
    def excess(log_noise: float) -> float:
        cost = min(_epsilon(make_events(math.exp(log_noise)), budget, name), _HUGE)
        return math.log(max(cost, epsilon * 1e-3) / epsilon)

    first = math.log(start)
    if name != "rdp":
        # Renyi accounting is fast and close, so start slower accountants from its result.
        near = smallest_noise(make_events, budget, claimed="rdp", sound="rdp", start=start, tolerance=1e-3)
        first = math.log(near)
    low = high = first
    step = 1.0 if name == "rdp" else 0.02
    if excess(high) > 0:
        while excess(high := high + step) > 0:
            low, step = high, min(2 * step, 1.0)
            if high > first + 21:
                raise BenchError(
                    f"epsilon {epsilon:g} at delta {delta:g} is not reachable with noise up to {math.exp(high):.3g}. "
                    "Ask for a larger epsilon, or for fewer queries or steps."
                )
    else:
        while excess(low := low - step) <= 0:
            high, step = low, min(2 * step, 1.0)
            if low < first - 21:
                return math.exp(high)
    found = float(optimize.brentq(excess, low, high, xtol=tolerance / 2, rtol=1e-12))
    step = tolerance / 4
    while excess(found) > 0:  # the root is approximate; the answer must be safe
        found, step = found + step, 2 * step
    return math.exp(found)
