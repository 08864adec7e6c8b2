"""Publishing: records that were edited or forged are refused, each with its reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.core.types import Instrument
from bench.evaluation.audit.informed import found
from bench.interface.registry import METHODS
from bench.privacy.accounting.risk import reconstruction
from bench.privacy.auditing.bounds import many_run_epsilon
from bench.privacy.events.base_event import restored
from bench.publishing.publish import examine
from bench.results.run_dir import RunDir
from helpers.publishing import GNMAX, NONPRIVATE, PATE, Values, edit, put, refusals, values_of, with_rows

EDITS: list[tuple[str, Any, str]] = [
    ("schema_version", 99, "schema version 99, this program reads up to 3. Update this program"),
    ("nonsense", 1, "it is damaged .field nonsense"),
    ("key", "mnist-pate-eps10-quick-s0-000000000000", "it holds the record of mnist-pate-eps10-quick-s0-000000000000"),
    ("cell.method", "pat", "unknown method 'pat'. Did you mean 'pate'"),
    ("cell.method", "/nowhere/evil.py", "unknown method"),
    ("cell.method_version", 7, "version 7 of pate made it, but this is version 1"),
    ("cell.dataset", "mnisd", "unknown data set 'mnisd'"),
    ("cell.dataset_revision", "sha256:0", "it was made on revision sha256:0"),
    ("private_records", 59_999, "60000 private"),
    ("public_benchmark", False, "not a public benchmark"),
    ("noise_salt", None, "its noise has no salt"),
    ("cell.seed", 1, "its key differs from the planned one"),
    ("config.gamma", 0.04, "its key differs from the planned one"),
    ("reduced", [], "its stated differences from the paper"),
    ("public_data", "none", "its public data or citation"),
    ("public_kinds", ["none"], "its public data or citation"),
    ("public_kinds", ["every"], "it is damaged .field public_kinds"),
    ("provenance.git_dirty", True, "it ran from modified files"),
    ("provenance.git_commit", None, "did not run from a git checkout"),
    ("provenance.wall_seconds", "NaN", "it is damaged .field provenance.wall_seconds: it must be a finite number"),
    ("cell.overrides", {"teachers": "100"}, "its key differs from the planned one"),
    ("cell.overrides", {"teachers": "many"}, "its key differs from the planned one: --set pate.teachers=many"),
    ("cell.overrides", {"rm -rf": ""}, "its key differs from the planned one: unknown option"),
    ("utility.accuracy", "NaN", "it is damaged .field utility.accuracy: it must be a finite number"),
    ("utility.accuracy", "Infinity", "it is damaged .field utility.accuracy: it must be a finite number"),
    ("utility.accuracy", 1.5, "it is damaged .field utility.accuracy: it must be less than or equal to 1"),
    ("utility.accuracy", -0.1, "it is damaged .field utility.accuracy: it must be greater than or equal to 0"),
    ("utility.test_records", 10, "has 1000 test records here"),
    ("utility", None, "no student, accuracy or privacy"),
    ("queries.asked", 5, "its number of answers exceeds its queries or is negative"),
    ("privacy.proven.epsilon", 1.0, "its events cost epsilon"),
    ("privacy.proven.epsilon", -1.0, "it is damaged .field privacy.proven.epsilon"),
    ("privacy.proven.sound", False, "not sound"),
    ("privacy.claimed.epsilon", 1.0, "the method's claim is epsilon 9.9"),
    ("privacy.claimed.source", "a blog", "the method's claim is epsilon 9.9"),
    ("privacy.delta", 0.5, "its unit, adjacency or delta"),
    ("privacy.unit", "client", "its unit, adjacency or delta"),
    ("privacy.events", [], "its ledger is empty"),
    ("privacy.events.0.gamma", 0.001, "its settings have gamma"),
    ("privacy.events.0.queries", 1, "its ledger has 1 queries"),
    ("queries", None, "its ledger has 1540 queries, but 0 were asked"),
    ("queries.answered", -1, "exceeds its queries or is negative"),
    ("queries.label_accuracy", 2.0, "it is damaged .field queries.label_accuracy"),
    ("privacy.audited", {"epsilon": 0.0, "confidence": 0.95, "audit": "own"}, "it contains an audited epsilon"),
    ("privacy.accountants.0.epsilon", 0.01, "its events do not cost 0.01 by"),
    ("privacy.accountants.0.name", "magic", "by 'magic'"),
    ("privacy.proven.name", "epsilon 0.01", "its proven figure lacks the name"),
    ("privacy.proven.note", "epsilon 0.01", "its proven figure lacks the name"),
    ("privacy.claimed.note", "epsilon 0.01", "describes it differently"),
    ("privacy.plausibility", {"probability": 1.0, "threshold": 0.0, "permutations": 1.0}, "is missing or unjustified"),
    ("privacy.events.0.queries", 10**18, "its ledger cannot be accounted for"),
    ("failure", {"kind": "none", "reason": "none"}, "both a reason for failure and the status done"),
    ("student.sha256", "", "its student's SHA-256 is invalid"),
    ("student.parameters", -1, "is negative"),
    ("provenance.wall_seconds", -1.0, "is negative"),
    ("notes", ["y" * 10**6], "a text of 1000000 characters"),
    ("privacy.events.0.kind", "magic", "its ledger cannot be accounted for"),
    ("privacy.events.0", {"kind": "bypass", "reason": "none of your business"}, "its bypasses differ"),
    ("privacy.audited", {"epsilon": 9.0, "confidence": 0.95, "audit": "own"}, "audited 9 > proven 4.9"),
    ("notes", ["read from /home/alice/data/x.npy"], "notes holds '/home/alice/d"),
    ("notes", ["ask alice@example.org"], "notes holds 'alice@example.org'"),
    ("config.student", "C:\\Users\\alice", "config.student holds 'C:"),
    ("student.file", "../../etc/passwd", "its student must be in released/"),
    ("image_grid", {"file": "/etc/passwd", "sha256": "0"}, "its image grid must be in released/"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "says"), EDITS, ids=[f"{p}={str(v)[:20]}" for p, v, _ in EDITS])
def test_an_edited_record_is_refused_and_nothing_written(
    run: Path, into: Path, path: str, value: Any, says: str
) -> None:
    values = values_of(PATE)
    edit(path, value)(values)
    put(run, values, PATE)
    lines = refusals(run, into)
    assert any(says.replace(".field", "(field") in line for line in lines), lines
    assert all(line.startswith(f"runs/records/{PATE}.json: ") and "\n" not in line for line in lines)


def consistent(values: Values) -> None:
    """Recompute the proven figures from the events, as a forger would."""
    from bench.publishing.recompute import account_events, all_accountants

    privacy, events = values["privacy"], json.dumps(values["privacy"]["events"], sort_keys=True)
    figure = account_events(events, privacy["unit"], values["cell"]["delta"])[0]
    privacy["proven"] |= {"epsilon": figure.epsilon, "name": figure.name, "note": figure.note, "order": figure.order}
    names = {row.name: row.epsilon for row in all_accountants(events, values["cell"]["delta"])}
    privacy["accountants"] = [row for row in privacy["accountants"] if row["name"] in names]
    for row in privacy["accountants"]:
        row["epsilon"] = names[row["name"]]


FORGED = {
    PATE: {"queries": 1},
    GNMAX: {"queries": 1},
    # The setting is relative to one image of a step, the event to all, so they differ in an honest record.
    "fmnist-gs-wgan-eps10-quick-s0-214848a2b025": {"noise_multiplier": 1e4},
    "mnist-pate-confident-eps1-quick-s0-f3d7bb785270": {"max_answers": 1},
    "cifar10-dp-linear-eps1-paper-s0-efb4d99e709c": {"steps": 1},
    "cifar10-dp-linear-eps2.9-paper-s0-6c5094c05018": {"sampling_rate": 1e-6},
    "fmnist-dp-linear-gd-eps1-quick-s0-04a365751518": {"noise_multiplier": 1e4},
    "mnist-dgd-sound-eps10-quick-s0-16251c030ffe": {"noise_multiplier": 1e4},
    "mnist-dpsd-sound-eps10-quick-s0-ea10c8e2272f": {"noise_multiplier": 1e4},
    "fmnist-dpsd-eps1-quick-s0-0c22c07e03c0": {"noise_multiplier": 1e4},
}
"""Key to what makes every event of its ledger cost less."""


@pytest.mark.few(2)
@pytest.mark.parametrize("key", FORGED)
def test_a_ledger_that_costs_less_than_the_settings_is_refused(key: str, tmp_path: Path, into: Path) -> None:
    values = values_of(key)
    values["image_grid"] = None  # of its images
    put(tmp_path / "honest", values)
    shutil.rmtree(into / "records")
    (into / "records").mkdir()
    assert not examine([tmp_path / "honest"], into).refused
    for event in values["privacy"]["events"]:
        event |= FORGED[key]
    if "queries" in FORGED[key]:
        values["queries"] |= {"asked": 1, "answered": 1}
    consistent(values)
    put(tmp_path / "runs", values)
    lines = refusals(tmp_path / "runs", into)
    assert any("its settings cost epsilon" in line for line in lines), lines
    assert not any("its events" in line for line in lines), lines


@pytest.mark.parametrize("mixed", [False, True])
def test_an_event_of_other_noise_beside_the_planned_one_needs_a_method_that_mixes_noise(
    mixed: bool, tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = values_of("fmnist-dp-linear-gd-eps1-quick-s0-04a365751518")
    events = values["privacy"]["events"]
    events.append(events[0] | {"noise_multiplier": 1e4})
    consistent(values)
    put(tmp_path / "runs", values)
    monkeypatch.setattr(METHODS.get("dp-linear-gd"), "mixed_noise", mixed)
    refused = [item.why for item in examine([tmp_path / "runs"], into).refused]
    assert any("its settings have noise_multiplier" in why for why in refused) is not mixed, refused


VIOLATED = {"kind": "lnmax", "parameters": {}, "draws": 9, "epsilon": 2, "exact": 1, "verdict": "violated"}


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("delta", 0.1, "its method, data set, unit or delta differ"),
        ("claimed", 3.0, "it says 3.0 is claimed"),
        ("allowed", -1.0, "it is damaged (field allowed"),
        ("mechanisms", [VIOLATED], "audited > proven"),
        ("epsilon", 3.0, "differs from that of its best channel"),
        ("channels.0.epsilon", 3.0, "its counts give"),
        ("channels.0.curve", 3.0, "by curve, not 3.0"),
        ("provenance.git_dirty", True, "it ran from modified files"),
        ("notes", ["see /root/x/y"], "notes holds"),
        ("attack", "label-gab", "unknown attack 'label-gab'. Did you mean 'label-gap'?"),
        ("attack_version", 9, "version 9 of label-gap made it"),
        ("knowledge", "everything", "its knowledge is not what label-gap states"),
        ("targets.student.accuracy", "NaN", "it is damaged (field targets.student.accuracy"),
        ("student", NONPRIVATE, "its student's record is not in the same directory"),
    ],
)
def test_edited_audits_and_attacks_are_refused(run: Path, into: Path, path: str, value: Any, says: str) -> None:
    def change(values: Values) -> None:
        first = path.split(".")[0]
        if first in values:
            edit(path, value)(values)

    with_rows(run, change)
    lines = refusals(run, into)
    assert any(says in line for line in lines), lines


RELEASE = {
    "instrument": "release", "pair": "one record's label flips", "seen": "logits", "runs": [200, 200], "tests": 4,
    "errors": [90, 200, 90, 200], "epsilon": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("pairs.0.epsilon", 0.1, "its counts give 0 of"),
        ("pairs.0.cap", 5.0, "its counts give 0 of"),
        ("pairs.0.curve", 0.1, "its counts give 0.0 by curve, not 0.1"),
        ("pairs.0.tests", 1, "its counts give 0 of"),
        ("pairs.0.runs", [400, 400], "its counts give 0 of"),
        ("epsilon", 0.3, "differs from that of its best channel or pair"),
        ("epsilon", 9.0, "audited > proven"),
        ("bypassed", "the images differ", "private data outside the ledger"),
        ("unit", "client", "its method, data set, unit or delta differ"),
        ("claimed", None, "is claimed"),
    ],
)
def test_edited_pair_audits_are_refused(run: Path, into: Path, path: str, value: Any, says: str) -> None:
    def paired(values: Values) -> None:
        if "channels" in values:
            bounds = [dict(RELEASE, cap=many_run_epsilon(0, 200, 0, 200, 1e-5, 1 - 0.05 / 4).cap)]
            values.update(kind="pair", channels=[], power=[], pairs=bounds, epsilon=0.0)

    def change(values: Values) -> None:
        paired(values)
        if "pairs" in values:
            edit(path, value)(values)

    with_rows(run, paired)
    assert not examine([run], into).refused
    with_rows(run, change)
    lines = refusals(run, into)
    assert any(says in line for line in lines), lines


@pytest.mark.parametrize(("name", "value"), [("low", 0.2), ("high", 0.3), ("bound", 1.0), ("right", 5)])
def test_edited_attacks_among_candidates_are_refused(run: Path, into: Path, name: str, value: float) -> None:
    (record,) = (one for one in RunDir(run).read_records().found if "pate" in one.method)
    assert record.privacy is not None
    bound = reconstruction(restored(record.privacy.events), 0.1)
    honest = found(Instrument.TRANSCRIPT, 10, [True, *[False] * 39], bound, 0.975).model_dump(mode="json")

    def with_candidates(values: Values, **changes: float) -> None:
        if "channels" in values:
            values["candidates"] = [{**honest, **changes}]

    with_rows(run, with_candidates)
    assert not examine([run], into).refused
    with_rows(run, lambda values: with_candidates(values, **{name: value}))
    assert any("10 candidates by transcript: its counts" in line for line in refusals(run, into))
