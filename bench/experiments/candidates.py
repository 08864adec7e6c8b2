"""The candidates of a tuning: their cells, the cost of a trial, and the epsilon per trial for a given total."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.core.config import Grid, Preset, build_config, parse_overrides, values_of
from bench.core.errors import BenchError
from bench.core.tuning import Tuning
from bench.core.types import Claim, Facts, PrivacyUnit, PublicKind, Score, TargetAdjacency
from bench.experiments.calibration_cache import Calibrations
from bench.experiments.plan import Cell, Dataset, bound_method, expand
from bench.interface.method import Method
from bench.interface.registry import METHODS
from bench.privacy.accounting.accountants import Accounted, proven, replace_one
from bench.privacy.accounting.distributions import merged
from bench.privacy.events.events import Event, Gaussian, RepeatAndSelect

CLOSE = 1e-3
"""How far a total may fall short of its target, as a share."""
SOURCES = {
    "selection-profile": "Koskela, Redberg and Wang, ICML 2024 (arXiv:2402.06701), including tuning",
    "rdp": "Papernot and Steinke, ICLR 2022 (arXiv:2110.03620), theorem 2, including tuning",
}


def candidate_cells(
    grid: Grid, tuning: Tuning, describe: Callable[[str], Dataset], calibrations: Calibrations | None = None
) -> list[Cell]:
    """Return the cell of each candidate on `grid`, which names a single cell.

    Raises :class:`BenchError` for an unknown setting, a refused candidate, or two candidates with equal settings.
    """
    (method,) = (METHODS.get(name).name for name in grid.methods)
    cells = []
    for candidate in tuning.candidates:
        values = tuple(f"{method}.{name}={value}" for name, value in candidate.items())
        cells += expand(replace(grid, overrides=(*grid.overrides, *values)), describe, calibrations, tuning=tuning)
        if cells[-1].refused:
            raise BenchError(cells[-1].refused)
    if len({cell.key for cell in cells}) < len(cells):
        raise BenchError("two candidates give the same settings. List each candidate once.")
    return cells


def candidates_of(cell: Cell) -> list[Cell]:
    """Return the cells from which the tuned `cell` was chosen; raise :class:`BenchError` if it is not among them."""
    tuning = cell.spec.tuning
    assert tuning is not None
    grid = cell.spec.grid()
    fixed = [text for text in grid.overrides if text.partition("=")[0] not in tuning.candidates[0]]
    dataset = Dataset(cell.dataset, cell.facts, cell.dataset_revision)
    cells = candidate_cells(replace(grid, overrides=tuple(fixed)), tuning, lambda _: dataset)
    if cell.key not in {other.key for other in cells}:
        raise BenchError(f"{cell.key} is not among the candidates that its tuning states.")
    return cells


def trial_events(cell: Cell) -> tuple[Event, ...]:
    """Return what a trial of `cell` is charged for: training and, if it is noisy, the score."""
    method, tuning = METHODS.get(cell.method), cell.spec.tuning
    assert tuning is not None
    events = list(bound_method(cell).charges() or ())
    if tuning.score_noise is not None:
        events.append(Gaussian(tuning.score_noise, unit=method.unit, adjacency=method.adjacency))
    return tuple(merged(events))


def tuned_event(cells: Sequence[Cell]) -> RepeatAndSelect:
    """Return the event of tuning over the candidates `cells`."""
    method, tuning = METHODS.get(cells[0].method), cells[0].spec.tuning
    assert tuning is not None
    return RepeatAndSelect(
        tuple(map(trial_events, cells)), tuning.trials_mean, tuning.law.shape, unit=method.unit,
        adjacency=method.adjacency,
    )  # fmt: skip


def tuned_claim(claim: Claim, figure: Accounted) -> Claim:
    """Return the claim of a tuned cell, proven by `figure`; the paper's `claim` is for one run with fixed settings."""
    source = SOURCES.get(figure.name, f"{figure.name}, including tuning")
    return Claim(figure.epsilon, claim.delta, source, f"one trial: {claim.epsilon:.6g} by {claim.source}")


def public_kinds_of(cell: Cell) -> tuple[PublicKind, ...]:
    """Return the kinds of public data of `cell`, including the labels by which tuning chose."""
    kinds = bound_method(cell).public_kinds()
    if cell.spec.tuning is None or cell.spec.tuning.score is not Score.PUBLIC or PublicKind.LABELLED in kinds:
        return kinds
    return (*(kind for kind in kinds if kind is not PublicKind.NONE), PublicKind.LABELLED)


def public_words_of(cell: Cell) -> str:
    """Return a description of the public data of `cell`."""
    method, facts = METHODS.get(cell.method), cell.facts
    words = bound_method(cell).public_words()
    if method.public_data != "none" and not facts.public_benchmark:
        words = f"{words}: {facts.public_records} records of the data itself, taken as public"
    if cell.spec.tuning is None or cell.spec.tuning.score is not Score.PUBLIC:
        return words
    chosen = f"labels of the {facts.public_records} public records, to choose settings"
    return chosen if words == "none" else f"{words}; {chosen}"


def check_tunable(method: type[Method], facts: Facts, tuning: Tuning) -> None:
    """Raise :class:`BenchError` unless `tuning` can tune `method` on data with these `facts`."""
    name = method.name
    if not method.private:
        raise BenchError(f"{name} is not private, so tuning costs nothing: choose its settings with `bench run --set`.")
    if method.bypass:
        raise BenchError(f"{name} has no finite proven epsilon: {method.bypass}. Tune a method that has one.")
    if method(build_config(method, Preset.QUICK, facts)[0], facts).charges() is None:
        raise BenchError(f"{name} does not state its cost before a run, so tuning cannot be accounted for.")
    if method.unit is PrivacyUnit.QUERY_LABEL:
        raise BenchError(f"{name} protects labels of queries, which every trial would query again. Use `bench run`.")
    if tuning.score is Score.PUBLIC and not (facts.disclosure.pool_labels and facts.public_records):
        raise BenchError(
            f"{facts.dataset} has no public records with public labels. Use --score noisy --score-noise RECORDS."
        )
    if tuning.score is Score.NOISY and method.unit is PrivacyUnit.CLIENT:
        raise BenchError(f"{name} protects a client, who may change any number of right answers. Use --score public.")


def fit_epsilon(
    grid: Grid, tuning: Tuning, describe: Callable[[str], Dataset], calibrations: Calibrations
) -> tuple[Tuning, list[Cell]]:
    """Return `tuning` with the largest epsilon per trial whose total meets `grid`'s epsilon, and the candidates' cells.

    Raises :class:`BenchError` if a candidate cannot be calibrated.
    """
    (target,), replaced = grid.epsilons, grid.adjacency is TargetAdjacency.REPLACE_ONE

    def total(one: float, candidates: Sequence[dict[str, str]]) -> tuple[float, Tuning, list[Cell]]:
        asked = tuning.model_copy(update={"epsilon": one, "candidates": list(candidates)})
        cells = candidate_cells(grid, asked, describe, calibrations)
        return (replace_one if replaced else proven)([tuned_event(cells)], cells[0].delta).epsilon, asked, cells

    def search(candidates: Sequence[dict[str, str]]) -> float:
        low, high = 0.0, target  # tuning only adds to the cost
        one = target * 0.55
        while True:
            cost = total(one, candidates)[0]
            if target * (1 - CLOSE) <= cost <= target:
                return one
            low, high = (one, high) if cost < target else (low, one)
            if high - low < 1e-6 * target:
                if low == 0:
                    raise BenchError(
                        f"epsilon {target:g} is not reachable with {tuning.trials_mean:g} trials. Use fewer."
                    )
                return low
            # The total is nearly proportional to `one`; bisect if the guess leaves the bracket.
            guess = one * target * (1 - CLOSE / 2) / cost
            one = guess if low < guess < high else (low + high) / 2

    # Candidates that cost the same before calibration are mostly calibrated alike, so searching with one is enough.
    found = total(search(_differing(grid, tuning, describe(grid.datasets[0]).facts)), tuning.candidates)
    if found[0] > target:
        found = total(search(tuning.candidates), tuning.candidates)
    return found[1], found[2]


def _differing(grid: Grid, tuning: Tuning, facts: Facts) -> list[dict[str, str]]:
    """Return the candidates without those that, before calibration, cost the same as an earlier one."""
    method = METHODS.get(grid.methods[0])
    found: dict[tuple[Event, ...], dict[str, str]] = {}
    for candidate in tuning.candidates:
        values = (*grid.overrides, *(f"{method.name}.{name}={value}" for name, value in candidate.items()))
        config, _ = build_config(method, grid.preset, facts, values_of(parse_overrides(method, values)))
        events = tuple(method(config, facts).charges() or ())
        found.setdefault(events, candidate)
    return list(found.values())
