"""Results as data frames: :func:`bench.load_results` and :func:`bench.run`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.core.config import Reuse
from bench.core.errors import BenchError, UnknownNameError
from bench.core.lazy_libraries import pandas, torch
from bench.core.options import GridOptions, LaunchOptions, Names, Resources, member
from bench.core.printable import counted
from bench.core.progress import open_progress
from bench.data.own_dataset import given_dataset
from bench.experiments.noise_salt import RANDOM
from bench.reports.attacks import strongest
from bench.reports.leaderboard import build_board
from bench.reports.runs import read_runs
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.audited import by_student
from bench.results.frame import results_frame
from bench.results.published import named, need_published
from bench.results.record import Record
from bench.results.run_dir import RunDir

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    Given = Dataset[Any] | tuple[Dataset[Any], Dataset[Any]]

COLUMNS = {
    "key": "Key of the record, which names its files.",
    "method": "Name of the method.",
    "dataset": "Name of the data set; a user's folder without its path.",
    "unit": "Unit that the epsilons protect: record, label, query-label or client.",
    "adjacency": "Neighbouring relation for which `claimed` and `proven` hold: add-remove or replace.",
    "epsilon": "Target epsilon; NaN without privacy.",
    "basis": "Which epsilon the target bounds: claimed or proven.",
    "target_adjacency": "Neighbours of a proven target: replace-one, or own (the method's).",
    "delta": "Delta of every epsilon of the row.",
    "seed": "Seed.",
    "preset": "Scale of the run: paper, quick or tiny.",
    "status": "done or failed.",
    "claimed": "Epsilon by the paper's own analysis.",
    "claim": "Mark of `claimed`: holds, data-dependent, does not hold, refuted by experiment, impossible; or empty.",
    "claim_reason": "Why it has that mark.",
    "proven": "Smallest epsilon of a sound, data-independent accountant; infinite without a proof.",
    "replace_one": "`proven` for replace-one neighbours, comparable between methods.",
    "advantage": "Proven bound on the true minus the false positive rate of any membership test for one unit.",
    "tpr@0.01": "Proven bound on the true positive rate of such a test at a false positive rate of 1%.",
    "tpr@0.001": "The same at 0.1%.",
    "reconstruction@0.1": "Proven bound on the probability that anyone names a unit's value among 10 candidates.",
    "reconstruction@0.01": "The same for 100 candidates. All these bounds are 1 if `proven` is infinite.",
    "reconstruction@0.001": "The same for 1,000 candidates.",
    "named@0.1": "Lower 95% limit: how often an attacker who knew all other records named it among 10; NaN if unknown.",
    "named@0.01": "The same for 100 candidates.",
    "named@0.001": "The same for 1,000 candidates.",
    "data_dependent": "Smallest sound epsilon for the private data of this run alone: not releasable; NaN if none.",
    "record_level": "`proven` for one training record if `unit` is a label (infinite with public images), else NaN.",
    "audited": "Lower bound on epsilon by audits of this record; NaN without any, or if they show nothing.",
    "audit_power": "Largest bound that these audits could have shown; infinite for a transcript; NaN without audits.",
    "inconclusive": "Whether the audits could not have contradicted `claimed` or `proven`; None without audits.",
    "accuracy": "Accuracy of the released student on the test records, in %.",
    "accuracy_low": "Lower end of the 95% Wilson interval of `accuracy` for its test records, in %.",
    "accuracy_high": "Upper end of that interval, in %, which covers this student only: seeds differ by more.",
    "test_records": "Number of test records.",
    "official": "Accuracy on the whole official test set, in %; NaN if part of it is public, or not measured.",
    "worst_class": "Accuracy on the worst class, in %; NaN in records without answers.",
    "calibration_error": "Expected calibration error of the student, in points; NaN in records without answers.",
    "inversion": "Share that the strongest model inversion reconstructs, in points above the counterfactual's.",
    "inversion_attack": "That attack.",
    "membership": "AUC of the strongest membership inference, from 0 to 1; 0.5 is chance.",
    "membership_attack": "That attack.",
    "robustness": "Accuracy in % under the strongest attack at its smallest perturbation.",
    "robustness_attack": "That attack.",
    "wall_seconds": "Running time in seconds.",
    "row": "Equal for all seeds of one row of the board: group by it for means over seeds.",
    "noise": "seeded, or secure (exact samplers).",
    "precision": "Arithmetic of teacher ensembles.",
    "backbone": "Net that gives the features, or the public weights that teachers start from; empty if none.",
    "plugin": "Plug-in of the method, with its version; empty for methods of this project.",
    "failure": "Why the cell failed; empty if it is done.",
    "proven_by": "Accountant of `proven`.",
    "bypasses": "Where private data is used outside any mechanism, in words.",
    "impossible": "Bound on the probability of this accuracy if the claim held between any two teachers; else NaN.",
    "public_data": "Public data that the method used, in words.",
    "public_kinds": "Its kinds.",
    "reduced": "Differences from the paper's setting, in words.",
}
"""The columns of a frame of results, with their meaning."""

GOALS = ("inversion", "membership", "robustness")


def load_results(runs: str | Path | Iterable[str | Path] | None = None, *, settings: bool = False) -> pandas.DataFrame:
    """Return one row per record of the folders `runs`, with its audits and attacks, ordered by seed and key.

    Accuracies, their intervals and `robustness` are in %, `membership` is an AUC from 0 to 1, times are in seconds;
    :data:`bench.api.COLUMNS` and ``docs/fields.md`` describe all columns. With `settings`, each setting of a method has
    a column ``config.NAME``, NaN for methods without it.

    Args:
        runs: Run directories or folders of a board. None, or ``leaderboards``: the published records, from the folder
            of that name here or in the checkout that the package runs from, otherwise from the package.
        settings: Whether to add the settings.

    Raises:
        BenchError: A folder is not a run directory, no record can be read, or two results of one key differ. A single
            unreadable file gives a warning.

    Examples:
        >>> frame = bench.load_results("runs")
        >>> frame.groupby(["method", "epsilon"])[["proven", "accuracy"]].mean()
    """
    if runs is None:
        folders = [need_published()]
    else:
        given = [runs] if isinstance(runs, str | Path) or not isinstance(runs, Iterable) else list(runs)
        if not all(isinstance(path, str | Path) for path in given):
            raise BenchError(
                f"runs takes a folder, or a list of folders, not {runs!r}. Try bench.load_results('runs')."
            )
        folders = [named(Path(path)) for path in given]
    names = ", ".join(map(str, folders)) or "an empty list"
    found = read_runs(folders, f"no records in {names}. `bench.run(methods=..., out=...)` makes some.")
    for line in found.warnings:
        warnings.warn(line, stacklevel=2)
    return _frame(found.records.values(), found.audits.values(), found.attacks.values(), settings=settings)


def run(
    methods: Names,
    *,
    datasets: Names | Given = "mnist",
    eps: float | str | Iterable[float] | None = None,
    seeds: int | str | Iterable[int] = 0,
    preset: str = "quick",
    basis: str | None = None,
    adjacency: str = "replace-one",
    delta: float | None = None,
    risk: str | None = None,
    set: Mapping[str, Any] | None = None,
    noise: str = "seeded",
    noise_salt: str = RANDOM,
    precision: str = "float32",
    out: str | Path = "runs",
    reuse: str = "done",
    launcher: str = "local",
    jobs: int = 1,
    device: str = "auto",
    workers: int = 0,
    threads: int = 1,
    quiet: bool = False,
) -> pandas.DataFrame:
    """Run or resume a grid as ``python -m bench run`` does, and return its cells as :func:`load_results` does.

    Cells with a record in `out` do not run again. A failed cell becomes a row with the reason in `failure`.

    Args:
        methods: Names of methods, groups (such as ``"all"``), or paths of your own files.
        datasets: Names of data sets, ``folder:PATH`` for your own, or a ``torch.utils.data.Dataset`` or a pair
            (train, test), which is saved in the data root, readable only by you: see :func:`bench.save_dataset`.
        eps: Target epsilons, positive; None: 1 and 10.
        seeds: Training seeds, non-negative; a text may hold ranges: ``"0-4"``.
        preset: ``paper``, ``quick`` (minutes) or ``tiny`` (seconds).
        basis: The epsilon that the target bounds, ``claimed`` or ``proven``; None: claimed, or proven with `risk` or on
            your own data.
        adjacency: Neighbour relation of a proven target: ``replace-one``, or ``own`` (the method's).
        delta: The delta of (epsilon, delta), in (0, 1); None: 1e-5, or less for large data sets.
        risk: Replaces `eps` by a bound on an attacker: ``reconstruction@0.01=0.05``, ``tpr@0.01=0.1`` or
            ``advantage=0.2`` runs the largest proven epsilon that satisfies it.
        set: Settings by name, ``FIELD`` or ``METHOD.FIELD``: ``{"teachers": 100, "dp-sgd.epochs": 5}``.
        noise: ``seeded``, or ``secure`` for exact samplers, whose noise no seed reproduces.
        noise_salt: ``random``; to repeat a record, its `noise_salt`, or ``none`` if it has none.
        precision: Arithmetic of teacher ensembles: ``float32``, ``tf32`` or ``bf16``.
        out: Run directory.
        reuse: Which earlier records count as done: ``done``, ``all`` or ``none``.
        launcher: ``local`` runs cells in `jobs` separate processes. ``inline`` runs them in this process, changing its
            torch settings and random state; a script must then call this below ``if __name__ == "__main__":``.
        jobs: Processes of the local launcher; 0: one per GPU, or per core without GPUs.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        workers: Processes for the teachers of a cell; 0: the cores of its job.
        threads: CPU threads of one operation.
        quiet: Whether to hide the progress display.

    Raises:
        BenchError: A name or value is unknown or out of range, or `out` cannot be written.
        KeyboardInterrupt: The run was stopped; the same call resumes it.

    Examples:
        >>> frame = bench.run(methods=["pate", "dp-sgd"], datasets="digits", eps=[1, 10], preset="tiny")
    """
    from bench.launchers.grid import run_grid  # imports take a quarter of a second
    from bench.launchers.settings import read_cluster

    grid = GridOptions(
        methods=methods, datasets=_named(datasets), eps=eps, seeds=seeds, preset=preset, basis=basis,
        adjacency=adjacency, delta=delta, risk=risk, set_=set, noise=noise, precision=precision,
    ).grid()  # fmt: skip
    if launcher not in ("local", "inline"):
        raise UnknownNameError("launcher", launcher, ["local", "inline"], "Slurm: `python -m bench run`.")
    launch = LaunchOptions(launcher=launcher, jobs=jobs, resources=Resources(device, workers, threads))
    if not isinstance(out, str | Path) or not str(out):
        raise BenchError(f"out takes a folder, not {out!r}. The working directory is '.'.")
    folder = Path(out)
    with open_progress(quiet=quiet) as progress:
        ran = run_grid(
            grid, folder, progress, read_cluster(None, launch.flags()), launch.resources,
            reuse=member(Reuse, "reuse", reuse), noise_salt=noise_salt,
        )  # fmt: skip
    if ran.outcome.stopped is not None:
        raise KeyboardInterrupt(f"{counted(ran.outcome.left, 'cell is', 'cells are')} left; the same call resumes.")
    for line in ran.unread:
        warnings.warn(line, stacklevel=2)
    return _frame(ran.records, ran.audits, RunDir(folder).read_attacks()[0])


def _named(datasets: Names | Given) -> Names:
    """Return the names of `datasets`, a Dataset or a pair of them saved as a file."""
    if isinstance(datasets, str | list):
        return datasets
    Dataset = torch.utils.data.Dataset
    if isinstance(datasets, Dataset):
        return given_dataset(datasets)
    names = list(datasets)
    if len(names) == 2 and isinstance(train := names[0], Dataset) and isinstance(test := names[1], Dataset):
        return given_dataset(train, test)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise BenchError(f"datasets takes names, a torch Dataset or a pair (train, test) of them, not {wrong[0]!r}.")
    return [str(name) for name in names]


def _frame(
    records: Iterable[Record], audits: Iterable[AuditRecord], attacks: Iterable[AttackRecord], *, settings: bool = False
) -> pandas.DataFrame:
    records, audits = list(records), list(audits)
    frame = results_frame(records, audits)
    of_student = by_student(attacks)
    for goal in GOALS:
        best = [strongest(of_student[key], goal) for key in frame["key"]]
        scale = 1 if goal == "membership" else 100
        frame[goal] = pandas.Series([None if b is None else scale * b[0].value for b in best], dtype=float)
        frame[f"{goal}_attack"] = pandas.Series(["" if b is None else b[1].attack for b in best], dtype=str)
    board = {key: row for row in build_board(records, audits).rows for key in row.keys}
    frame["claim"] = [board[key].claim.value if key in board else "" for key in frame["key"]]
    frame["claim_reason"] = [board[key].claim_reason if key in board else "" for key in frame["key"]]
    frame = frame[list(COLUMNS)]
    if not settings:
        return frame
    configs = {record.key: record.config for record in records}
    return frame.join(pandas.DataFrame([configs[key] for key in frame["key"]]).add_prefix("config."))
