"""What finds each cheat of this folder, and honest methods that look like them and pass."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.core.config import Grid
from bench.core.confinement import is_confinable
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.types import AuditKind, PublicKind
from bench.data.datasets import DATASETS
from bench.evaluation.audit.audit import audit_student
from bench.evaluation.audit.options import AuditOptions
from bench.evaluation.check.noninterference import CheckVerdict, check_method
from bench.evaluation.check.trials import SEEDS, random_seeds
from bench.experiments.data_source import DataSource
from bench.experiments.device import prepare_device
from bench.experiments.plan import expand
from bench.experiments.run import run_cell
from bench.interface.method import Method
from bench.interface.registry import METHODS
from bench.results.run_dir import RunDir
from cheats import (
    after_the_charge,
    between_processes,
    channels,
    choices,
    clients,
    declarations,
    elsewhere,
    figures,
    inner_functions,
    inside_dp_sgd,
    places,
    public_arguments,
    reaches,
    state,
    thresholds,
    triggers,
)  # fmt: skip
from cheats.honest import Honest, HonestCache, HonestFineTuning, HonestRate, HonestStop
from helpers.paths import CHEATS

FOUND: list[list[tuple[type[Method], str]]] = [
    [  # The private set decides.
        (choices.LearningRate, "differ in the student's hidden.weight"),
        (choices.Restarts, "differ in the student's hidden.weight"),
        (choices.FineTuning, "the two runs differ in"),
        (choices.EarlyStopping, "the two runs differ in"),
        (choices.Snapshots, "the two runs differ in"),
        (choices.Temperature, "differ in the student's head.weight"),
        (choices.BestOfTwo, "the two runs differ in"),
        (choices.LossLooks, "its call 1 of dp_sgd has another run.optimizer afterwards"),
        (choices.PrivateAnchors, "its call 1 of dp_sgd has another run.clipping"),
    ],
    [  # Private figures.
        (figures.Normalisation, "differ in the student's mean"),
        (figures.BrightestPixel, "differ in the student's deviation"),
        (figures.BatchNorm, "differ in the student's norm.running_mean"),
        (figures.ClassCounts, "the two runs differ in"),
        (figures.AbsentClasses, "differ in the student's head.bias"),
        (figures.ConstantPixels, "differ in the student's hidden.weight"),
        (figures.NearestQueries, "the two runs differ in"),
        (figures.DenseQueries, "the two runs differ in"),
    ],
    [  # Other ways out.
        (channels.FirstLabels, "differ in the released hints"),
        (channels.OneLabel, "differ in student_options"),
        (channels.Memory, "differ in the student's outputs on test images"),
        (channels.OptionOrder, "differ in student_options"),
        (channels.ExtrasOrder, "what is released differs"),
        (channels.Precision, "the two runs differ in"),
        (channels.Note, "differ in note 1"),
        (channels.ArtefactKinds, "the number of its artefacts of the kind 'mean .*' depends on private records"),
        (channels.NumberOfArtefacts, "the number of its artefacts of the kind 'part' depends on private records"),
        (channels.WordsOfClaim, "differ in the words of its claim"),
        (channels.Failure, "it fails on other private data .* too dark"),
        (channels.Votes, "differ in the released agreement"),
        (channels.Sanitised, "differ in the released cost"),
    ],
    [  # What is charged depends on private data.
        (channels.NumberOfCalls, "asks for answers of another shape|is charged differently"),
        (channels.NumberOfQueries, "its call 1 of noisy_max is charged differently"),
        (channels.Charge, "its call 1 of noisy_max has another gamma"),
        (channels.SpendsWhatRan, "what it spends depends on the answers"),
        (channels.Beside, "the student's answer to an image depends on the images beside it"),
    ],
    [  # Sensitivity near one data set only.
        (thresholds.SubsetSums, r"one record moves the values by .* \(L2\) in its call 1 of gaussian"),
        (thresholds.CappedClasses, r"one record moves the values by .* \(L2\) in its call 1 of gaussian"),
        (thresholds.SmallMeans, r"one record moves the values by .* \(L2\) in its call 1 of gaussian"),
        (thresholds.MeanNorm, r"moves? the values by .* \(L2\) in its call 1 of gaussian"),
        (thresholds.JumpingScale, r"moves? the values by .* \(L2\) in its call 1 of gaussian"),
        (thresholds.Inverts, r"moves? the values by .* \(L2\) in its call 1 of gaussian"),
        (thresholds.NearDuplicates, r"one record moves the values by .* \(L2\) in its call 1 of gaussian"),
        (figures.SkewedLabels, "differ in the student's head.bias, on other images with the same answers"),
        (thresholds.RoundedCount, r"records together move the values by 300 \(L2\) in its call 1 of gaussian"),
        (thresholds.PublicMargin, r"one record moves the values by .* \(L2\) in its call 1 of gaussian"),
        (thresholds.LocalSensitivity, "records together move the values by"),
        (thresholds.Background, "differ in the student's mean, on other images with the same answers"),
        (
            thresholds.Exposure,
            "differ in .*, on other images with the same answers of the ledger. It uses private data",
        ),
        (thresholds.Unanimous, "moves? 20 votes of one query|records together move .* votes of one query"),
    ],
    [  # A unit with several records.
        (clients.RecordsAsClients, r"one client moves the values by .* \(L2\) in its call 1 of gaussian"),
        (clients.SharedRecords, "its clients share records or leave some out"),
        (clients.BrightnessDecides, "other images of one client change which client records belong to"),
        (clients.ClassesOfClients, r"one client moves the values by .* \(L2\) in its call 1 of gaussian"),
        (clients.LabelCounts, r"one client moves the values by .* \(L2\) in its call 1 of gaussian"),
        (clients.NoClients, r"define clients\(private, context\)"),
    ],
    [  # What a run leaves behind.
        (state.ModuleGlobal, "differ in the released hints.*another cell with other noise ran in its process"),
        (state.SecondRun, "differ in the released hints.*another cell with other noise ran in its process"),
        (state.WritesPublic, "its code writes into the records that it was given"),
        (state.CacheCarries, "differ in the released hints.*another cell with other noise ran in its process"),
        (state.ShardCarries, "differ in the released hints"),
    ],
    [  # What another cell's answers leave behind.
        (state.KeepsAnswers, "another cell with other noise ran"),
        (state.AddsAnswers, "the two runs differ in"),
    ],
    [  # The public copy of the private set.
        (elsewhere.LoadsDigits, "its code opens the file digits.csv"),
        (elsewhere.LoadsByName, "its code loads digits"),
    ],
    [  # Honest in a check only.
        (places.BySize, "differ in the released hints"),
        (places.ByName, "differ in the released hints"),
        (places.BySource, "differ in the released hints"),
        (places.ByLedger, "differ in the released hints"),
        (places.ByCache, "differ in the released hints"),
        (places.DeclaredByCell, "never calls ledger.bypass"),
    ],
    [  # Private data where a mechanism takes public arguments.
        (public_arguments.NoiseScale, "its call 1 of gaussian has another sensitivity"),
        (public_arguments.OneHotPrior, "its call 1 of prior_randomized_response has another prior"),
        (public_arguments.SecondTeacher, "its call 1 of prior_randomized_response has another prior"),
        (public_arguments.SumsOfOtherLabels, r"one record moves the values by 2 \(L2\) in its call 1 of gaussian"),
    ],
    [  # Inside DP-SGD.
        (inside_dp_sgd.LargePasses, "its net and loss give different gradients for the same records"),
        (inside_dp_sgd.HeldByTorch, "its net and loss give different gradients for the same records"),
        (inside_dp_sgd.SwappedImages, "its call 1 of dp_sgd has another model"),
        (inside_dp_sgd.PrivateStart, "its call 1 of dp_sgd has another model"),
        (inside_dp_sgd.HeldByStreams, "its call 1 of dp_sgd has another model"),
        (inside_dp_sgd.HeldByLedger, "its call 1 of dp_sgd has another model"),
        (inside_dp_sgd.HeldByContext, "its call 1 of dp_sgd has another model"),
        (inside_dp_sgd.HeldByCache, "its call 1 of dp_sgd has another model"),
        (inside_dp_sgd.HeldByCheckpoint, "its call 1 of dp_sgd has another model"),
        (inside_dp_sgd.OneStep, "its call 1 of dp_sgd has another model afterwards"),
        (inside_dp_sgd.HeldBySlice, "its call 1 of dp_sgd has another model"),
        (inside_dp_sgd.HeldByTable, "its call 1 of dp_sgd has another model"),
        (inside_dp_sgd.ReplacesFormula, r"its code replaces opacus.*GRAD_SAMPLERS\[<class .*GroupNorm'>\]"),
    ],
    [  # Functions inside mechanisms.
        (
            inner_functions.EmptySample,
            "the function in its call 1 of sampled_function gives another value for the same",
        ),
        (inner_functions.FirstCall, "gives to sampled_function returns another value when it is called again"),
        (inner_functions.FirstUpdate, "gives to sampled_updates returns another value when it is called again"),
        (inner_functions.ClientsOfAll, "12 clients together move what the mechanism takes of 25 records in its call 1"),
    ],
    [  # Beside what a method is given.
        (reaches.HasBenchRead, "its code makes bench read the file README.md"),
        (reaches.ReadsVariable, "its code reads the environment variable CHEAT_MAP"),
        (reaches.CalibrateOpens, "its code opens the file"),
        (reaches.OpensFile, "its code opens the file"),
        (reaches.CalibrateLoads, "its code loads digits"),
        (reaches.ReadsFrames, "its code reads the frames of its callers"),
        (reaches.SearchesObjects, "its code searches all objects of its process"),
    ],
    [(reaches.ReplacesGaussian, "its code replaces bench.privacy.mechanisms.mechanisms.gaussian")],
    [
        (reaches.QuietNoise, "its code changes the noise that the ledger adds"),
        (reaches.KnownNoise, "its code changes the noise that the ledger adds"),
    ],
    [  # Honest until a noise or a seed comes up: silent runs differ, as the recorded answer less other data looks like noise.
        (triggers.LoudNoise, "differ in the released sums"),
        (triggers.RealNoise, "differ in the released sums"),
    ],
    [  # Charges that say less than ran.
        (after_the_charge.Rewrites, "its code changes what the ledger has charged"),
        (after_the_charge.ReplacesKind, r"its code replaces .*EVENTS\['gaussian'\]"),
    ],
    [  # Between processes, and after the end.
        (between_processes.SharedMemory, "its code (may not reach /cheat-|maps memory that other processes share)"),
        (between_processes.FileSizes, "its code writes the file cheat-"),
        (between_processes.LateThread, "its code leaves a thread running"),
        (between_processes.SecondState, "differ in what the student holds besides its weights"),
        (between_processes.ReadsTape, "differ in the released counts"),
    ],
    [  # Declarations.
        (declarations.UndeclaredBypass, "class attribute bypass is empty"),
        (declarations.UncalledBypass, "never calls ledger.bypass"),
        (declarations.CostsLess, r"its charges\(\) cost epsilon"),
        (declarations.Forgetful, "it never used the ledger"),
    ],
]
"""Of each kind the first runs in CI, and ``pytest -m slow`` runs the others."""


def named(method: type[Method]) -> str:
    return method.name


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("cheat", "why"),
    [
        pytest.param(cheat, why, id=cheat.name, marks=[pytest.mark.slow] * (place > 0))
        for kind in FOUND
        for place, (cheat, why) in enumerate(kind)
    ],
)
def test_the_check_rejects(cheat: type[Method], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        assert_passes(cheat, walks=30.0)  # as long as it takes: a busy machine must not end the walk


@pytest.mark.parametrize(
    ("cheat", "why"),
    [
        (after_the_charge.CheapMaximum, "Matches is not an event of bench"),
        (after_the_charge.GrowingNumbers, "takes arrays of numbers, not of objects"),
        (state.SharesAnswers, "the artefact 'answers' asks the ledger while it is made"),
        (state.CopiesLedger, "a ledger cannot be copied"),
        (declarations.UndeclaredPublic, "declares no public data, but reads public.images"),
        (declarations.UndeclaredWeights, "uses pretrained weights .tf_efficientnet_lite0. and does not declare them"),
    ],
    ids=["cheap maximum", "growing numbers", "shares answers", "copies ledger", "public images", "public weights"],
)
def test_a_run_refuses(cheat: type[Method], why: str) -> None:
    with pytest.raises(BenchError, match=why):
        check_method(cheat)


@pytest.mark.skipif(not is_confinable(), reason="this kernel cannot confine a process")
def test_a_library_cannot_map_a_data_set() -> None:
    DataSource(Progress()).material("digits")
    check = check_method(elsewhere.MapsLabels)
    assert check.verdict is CheckVerdict.REJECTED
    assert "its code may not reach a file" in check.reason
    assert "train_labels.npy" in check.reason


@pytest.mark.slow
def test_reading_the_data_set_of_a_row_is_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_passes(elsewhere.LoadsAnother)
    monkeypatch.setitem(DATASETS, "halves", dataclasses.replace(DATASETS["digits"], name="halves"))

    class Local(elsewhere.LoadsAnother):  # checked in this process, which knows the data set
        __module__ = elsewhere.__name__

    assert check_method(Honest, labels_of=["digits"]).ok
    assert "its code loads halves" in check_method(Local, labels_of=["halves"]).reason


@pytest.mark.few(1)
@pytest.mark.parametrize("honest", [Honest, public_arguments.HonestPrior, inside_dp_sgd.HonestDPSGD], ids=named)
def test_honest_twins_pass(honest: type[Method]) -> None:
    assert_passes(honest)


@pytest.mark.slow
@pytest.mark.parametrize(
    "honest",
    [
        HonestCache,
        HonestRate,
        HonestFineTuning,
        HonestStop,
        thresholds.HonestMeans,
        thresholds.HonestSmallMeans,
        thresholds.HonestBackground,
        clients.HonestClients,
        clients.HonestClassesOfClients,
        inner_functions.HonestFunction,
        inner_functions.HonestUpdates,
        public_arguments.HonestQueries,
        public_arguments.HonestSums,
        reaches.HonestFile,
        state.HonestKeeper,
        after_the_charge.HonestReader,
        after_the_charge.HonestMaximum,
        between_processes.HonestFileSizes,
        between_processes.HonestThread,
    ],
    ids=named,
)
def test_more_honest_twins_pass(honest: type[Method]) -> None:
    assert_passes(honest)


def test_a_search_that_ends_for_lack_of_time_is_said() -> None:
    assert "ended early for lack of time" in check_method(thresholds.HonestMeans, seeds=SEEDS[:1], seconds=0.001).reason


@pytest.mark.slow
def test_random_seeds_wake_what_sleeps_at_known_ones() -> None:
    assert check_method(triggers.LateSeeds, seeds=SEEDS).ok
    assert "differ in the released sums" in check_method(triggers.LateSeeds, seeds=random_seeds()).reason


def test_a_cell_with_another_target_runs_before_those_of_the_first_seed() -> None:
    check = check_method(state.ReadsMoreAccurateAnswers, seeds=(1, 0))
    assert "another cell with other noise ran" in check.reason


def assert_passes(method: type[Method], walks: float = 1.0) -> None:
    few = (public_arguments.SumsOfOtherLabels, figures.SkewedLabels)
    searched = method.__module__ == thresholds.__name__ or method in few
    check = check_method(method, seeds=SEEDS, seconds=walks if searched else 0.0)
    assert check.verdict is CheckVerdict.PASSED, check.reason


@pytest.mark.parametrize(
    ("name", "why"), [("virtual_teachers", "votes of one query"), ("clustered_labels", "the two runs differ in")]
)
def test_a_cheat_in_a_file_is_rejected(name: str, why: str) -> None:
    method = METHODS.get(str(CHEATS / f"{name}.py"))
    try:
        check = check_method(method)
    finally:
        del METHODS.members[method.name]
    assert check.verdict is CheckVerdict.REJECTED
    assert why in check.reason


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("line", "held"),
    [
        ('TABLE = "' + "0123456789" * 50 + '"', 500),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (f"TABLE = {list(range(500))}", 0),
                ("TABLE = 0x" + "f" * 400, 0),
                ('TABLE = ["' + '", "'.join(["x" * 30] * 20) + '"]', 600),
                ("TABLE = [1, 2]", None),
            )
        ),
        ('TABLE = "' + "plain words " * 100 + '"', None),
    ],
    ids=["text", "numbers", "one number", "pieces", "few", "language"],
)
def test_data_in_the_source_is_public_data_to_declare(tmp_path: Path, line: str, held: int | None) -> None:
    path = tmp_path / "carries.py"
    path.write_text(
        f"from bench.interface import register_method\nfrom cheats.honest import Honest\n{line}\n"
        "@register_method('carries')\nclass Carries(Honest):\n    pass\n"
    )
    method = METHODS.get(str(path))
    try:
        check = check_method(method)
        assert check.ok is (held is None)
        assert held is None or f"source holds {held or ''}" in check.reason
        assert held is None or "most of them in line 3 of carries.py" in check.reason
        method.public_data_kinds = (PublicKind.OTHER,)
        assert check_method(method).ok
    finally:
        del METHODS.members[method.name]


@pytest.mark.network
def test_a_cheat_that_passes_the_check_is_refuted_by_the_audit(tmp_path: Path) -> None:
    """On MNIST, fetched where it is not here: a thousand small digits do not give enough away. Two minutes."""
    method = METHODS.get(str(CHEATS / "output_noise.py"))
    try:
        assert check_method(method).verdict is CheckVerdict.PASSED
        source, run_dir = DataSource(Progress()), RunDir(tmp_path).create()
        (cell,) = expand(Grid((method.name,), ("mnist",), (1.0,)), source.describe)
        prepare_device()
        student = run_cell(cell, run_dir, source, Progress())
        audit = audit_student(
            student, AuditOptions(power=False, draws=0, kind=AuditKind.ONE_RUN), run_dir, source, Progress()
        )
    finally:
        del METHODS.members[method.name]
    assert audit.failure is None
    assert audit.violated
