"""Which records fill a cell of a paper's table or figure, and what is reported about missing ones."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import pytest

from bench.core.errors import BenchError
from bench.core.rows import Change, Estimated
from bench.core.types import Basis, PublicKind
from bench.reports.papers.evidence import Evidence, Usual, WantedCell, cell, proven_cell, read_evidence
from bench.reports.papers.notes import note
from bench.reports.papers.spec import Attacked, Material, Ours, Picture, Theirs
from bench.reports.reported.numbers import Reported, Verdict
from bench.results.attack_record import AttackRecord, Scores
from bench.results.record import ImageGrid, Record, Status
from bench.results.run_dir import RunDir
from helpers.pairs import pair_audit, release
from helpers.records import asked, failed, provenance, record

PLAIN = {
    "dgd": {"images": Usual("data-free"), "synthetic": Usual(60_000, 6000), "gamma": Usual(0.05, 0.02, calibrated=True)}
}


def of(accuracy: float = 0.9, *, seed: int = 0, preset: str = "quick", **config: Any) -> Record:
    told = "-".join(f"{name}{value}" for name, value in config.items())
    return record(
        method="dgd", accuracy=accuracy, seed=seed, preset=preset, config={"images": "data-free", **config},
        key=f"mnist-dgd-{preset}-{told}-s{seed}",
    )  # fmt: skip


def mean(records: list[Record], wanted: WantedCell) -> float | None:
    found = Evidence(records).find(wanted, PLAIN)
    value = None if found is None else found.value()
    return None if value is None else round(value.mean, 6)


def number(value: float, **changes: Any) -> Reported:
    given: dict[str, Any] = {
        "paper": "dgd", "table": "I", "row": "r", "column": "c", "system": "DGD", "method": "dgd", "dataset": "mnist",
        "setting": "", "unit": "record", "public_data": "none",
        "public_kinds": (PublicKind.NONE,), "epsilon": 10.0, "delta": 1e-5, "measure": "accuracy",
        "value": value, "verdict": Verdict.UNSOUND, "reason": "because", "source": "there",
    }  # fmt: skip
    return Reported(**{**given, **changes})


# --- matching ---------------------------------------------------------------------------------------------------------


def test_seeds_of_one_row_are_one_number() -> None:
    found = Evidence([of(0.9), of(0.7, seed=1)]).find(cell("dgd", "mnist", 10.0))
    assert found is not None
    value = found.value()
    assert value is not None
    assert (round(value.mean, 6), round(value.spread or 0, 4), value.n) == (80.0, 14.1421, 2)
    assert found.value("proven").mean == 4.0  # type: ignore[union-attr]
    assert found.value("labels") is None


@pytest.mark.parametrize(
    "wanted",
    [
        cell("pate", "mnist", 10.0),
        cell("dgd", "fmnist", 10.0),
        cell("dgd", "mnist", 10.1),
        cell("dgd", "mnist"),
        proven_cell("dgd", "mnist", 10.0),
        cell("dgd", "mnist", 10.0, images="private"),
        cell("dgd", "mnist", 10.0, teachers=100),
        WantedCell("dgd", "mnist", 10.0, preset="paper"),
        WantedCell("dgd", "mnist", 10.0, delta=1e-6),
    ],
)
def test_another_cell_is_not_answered(wanted: WantedCell) -> None:
    records = [of()]
    assert mean(records, cell("dgd", "mnist", 10.0)) == 90.0
    assert mean(records, wanted) is None


def test_presets_do_not_mix_and_the_papers_comes_first() -> None:
    records = [*(of(0.5, seed=seed) for seed in range(3)), of(0.8, preset="paper"), of(0.1, seed=9, preset="tiny")]
    assert mean(records, cell("dgd", "mnist", 10.0)) == 80.0
    assert mean(records[:3] + records[4:], cell("dgd", "mnist", 10.0)) == 50.0
    assert mean(records, WantedCell("dgd", "mnist", 10.0, preset="tiny")) == 10.0


def test_configs_do_not_mix_and_most_seeds_come_first() -> None:
    records = [of(0.2, lr=1.0), of(0.6, lr=2.0), of(0.8, seed=1, lr=2.0)]
    assert mean(records, cell("dgd", "mnist", 10.0)) == 70.0
    assert mean(records, cell("dgd", "mnist", 10.0, lr=1.0)) == 20.0


def test_an_ablation_never_stands_for_the_plain_method() -> None:
    """Settings that an ablation changes must have the preset's usual value in cells that do not name them."""
    ablated = [of(0.1, images="private"), of(0.2, synthetic=1000)]
    assert mean(ablated, cell("dgd", "mnist", 10.0)) is None
    assert mean(ablated, cell("dgd", "mnist", 10.0, synthetic=1000)) == 20.0
    assert mean([*ablated, of(0.3, synthetic=6000)], cell("dgd", "mnist", 10.0)) == 30.0
    # 60,000 is the usual value only in the paper's preset.
    assert mean([of(0.4, synthetic=60_000)], cell("dgd", "mnist", 10.0)) is None
    assert mean([of(0.4, preset="paper", synthetic=60_000)], cell("dgd", "mnist", 10.0)) == 40.0


def test_a_calibrated_setting_is_preferred_and_no_condition() -> None:
    assert mean([of(0.1, gamma=0.01)], cell("dgd", "mnist", 10.0)) == 10.0
    many = [of(0.1, seed=seed, gamma=0.01) for seed in range(3)]
    assert mean([*many, of(0.5, gamma=0.02)], cell("dgd", "mnist", 10.0)) == 50.0


def test_numbers_of_settings_are_compared_as_numbers() -> None:
    records = [of(0.5, rate=2e-2, flag=True, count=1)]
    assert mean(records, cell("dgd", "mnist", 10.0, rate=0.02, flag=True, count=1)) == 50.0
    assert mean(records, cell("dgd", "mnist", 10.0, flag=1)) is None
    assert mean(records, cell("dgd", "mnist", 10.0, count=True)) is None


def test_a_field_that_a_record_leaves_out_has_its_usual_value() -> None:
    bare = record(method="dgd", config={"queries": 100})
    assert mean([bare], cell("dgd", "mnist", 10.0, images="data-free")) == 95.0
    assert mean([bare], cell("dgd", "mnist", 10.0, images="private")) is None


def test_answers_do_not_depend_on_the_order_of_records() -> None:
    records = [of(0.2, lr=1.0), of(0.6, lr=2.0), of(0.7, lr=3.0)]
    assert mean(records, cell("dgd", "mnist", 10.0)) == mean(records[::-1], cell("dgd", "mnist", 10.0))


# --- settings that are not the paper's --------------------------------------------------------------------------------


def changed(*names: str, preset: str = "quick") -> Record:
    made = of(preset=preset, **dict.fromkeys(names, 1))
    return made.model_copy(update={"reduced": [Change.of(name, 2, 1) for name in names]})


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (changed("lr", "rate"), "quick preset, 2 settings differ (lr, rate)"),
        (changed("lr"), "quick preset, 1 setting differs (lr)"),
        (changed(), "quick preset, no settings differ"),
        (changed("lr", preset="paper"), "paper preset, 1 setting differs (lr)"),
        (changed(preset="paper"), ""),
    ],
)
def test_a_number_says_how_many_settings_differ(run: Record, told: str) -> None:
    material = Material(Evidence([run]), [])
    assert note(Ours(cell("dgd", "mnist", 10.0)), material) == told
    assert note(Ours(cell("dgd", "fmnist", 10.0)), material) == ""
    assert note(3.0, material) == note("text", material) == note(Theirs(number(1.0)), material) == ""


def test_what_a_figure_varies_itself_does_not_count() -> None:
    material = Material(Evidence([changed("lr", "rate")]), [])
    assert note(Ours(cell("dgd", "mnist", 10.0, lr=1)), material) == "quick preset, 1 setting differs (rate)"


def test_an_attacks_number_tells_of_the_student_and_of_the_attack() -> None:
    run = changed("lr", preset="paper")
    struck = attack(run, reduced=["steps 100, not 1000", "queries 5, not 10"])
    material = Material(Evidence([run], attacks=[struck]), [])
    assert note(Attacked(cell("dgd", "mnist", 10.0), "mi-face", "top"), material) == (
        "student: paper preset, 1 setting differs (lr); attack: quick preset, 2 settings differ"
    )


def test_the_nearest_epsilon_is_nearest_in_ratio() -> None:
    def near(wanted: WantedCell) -> float | None:
        found = Evidence(runs).nearest(wanted, PLAIN)
        return None if found is None else found.epsilon

    runs = [of().model_copy(update={"key": str(e), "cell": asked(of(), epsilon=e).cell}) for e in (1.0, 10.0)]
    assert [near(cell("dgd", "mnist", e)) for e in (0.1, 3.0, 3.3, 20.0)] == [1.0, 1.0, 10.0, 10.0]
    assert near(cell("dgd", "fmnist", 1.0)) is None
    assert near(cell("dgd", "mnist", 1.0, images="private")) is None
    assert near(cell("dgd", "mnist")) is None


# --- what is missing --------------------------------------------------------------------------------------------------


def missing(records: list[Record], wanted: WantedCell, measure: str = "accuracy") -> tuple[str, tuple[str, ...]]:
    found = Material(Evidence(records), [], PLAIN).missing(Ours(wanted, measure))
    assert found is not None
    return found.why, found.commands


def test_the_command_of_a_missing_cell() -> None:
    wanted = WantedCell(
        "dgd", "mnist", 10.0, Basis.PROVEN, (("teachers", 100), ("vae", False), ("noise_scale", 0.5)), "paper",
        seeds=(0, 1), delta=1e-6,
    )  # fmt: skip
    assert missing([of()], wanted) == (
        "not run",
        (
            "python -m bench run --methods dgd --datasets mnist --eps 10 --seeds 0,1 --basis proven --delta 1e-06 "
            "--preset paper --set teachers=100 --set vae=false --set noise_scale=0.5",
        ),
    )
    assert missing([], WantedCell("nonprivate", "fmnist"))[1] == (
        "python -m bench run --methods nonprivate --datasets fmnist --seeds 0,1,2",
    )


def test_a_command_survives_a_shell() -> None:
    wanted = cell("dgd", "folder:/some where", 1.0, student="a b;c")
    words = shlex.split(wanted.command)
    assert words[words.index("--datasets") + 1] == "folder:/some where"
    assert words[-1] == "student=a b;c"


def test_a_failed_cell_says_why_and_keeps_its_command() -> None:
    why, commands = missing([failed("no memory", method="dgd")], cell("dgd", "mnist", 10.0))
    assert why == "failed: no memory"
    assert len(commands) == 1


def test_a_cell_that_nothing_makes_has_no_command() -> None:
    assert missing([], cell("dgd", "mnist", 10.0, cannot="votes are private")) == ("votes are private", ())


def test_a_measure_that_records_do_not_hold_says_so() -> None:
    assert missing([of()], cell("dgd", "mnist", 10.0), "labels")[0] == "the records do not hold the measure 'labels'"
    why, commands = missing([of()], cell("dgd", "mnist", 10.0), "audited")
    assert (why, commands) == ("not audited", ("python -m bench audit --methods dgd",))


def test_an_audit_that_could_not_have_seen_anything_is_no_zero() -> None:
    run = of()
    audits = [pair_audit(release(0.0, 3.75, None), student=run.key)]
    material = Material(Evidence([run], audits=audits), [], PLAIN)
    found = material.missing(Ours(cell("dgd", "mnist", 10.0), "audited"))
    assert found is not None
    assert found.why == "inconclusive (sees at most 3.75)"


def test_what_is_there_is_not_missing() -> None:
    material = Material(Evidence([of()]), [], PLAIN)
    for entry in (Ours(cell("dgd", "mnist", 10.0)), Theirs(None), "text", 3.0):
        assert material.missing(entry) is None


# --- refused and damaged ----------------------------------------------------------------------------------------------


def test_damaged_and_newer_records_are_named_and_stay(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs").create()
    run_dir.write_record(of())
    bad = run_dir.records_path / "bad.json"
    bad.write_text("{")
    newer = of(seed=1)
    (run_dir.records_path / f"{newer.key}.json").write_text(
        newer.to_json().replace('"schema_version": 3', '"schema_version": 99')
    )
    (run_dir.attacks_path / "torn.json").write_text("nothing")
    evidence = read_evidence([run_dir.path])
    assert [r.key for r in evidence.records] == [of().key]
    assert len(evidence.warnings) == 3
    assert any("bad.json" in line for line in evidence.warnings)
    assert any("99" in line and newer.key in line for line in evidence.warnings)
    assert bad.exists()


def test_directories_without_records_are_refused(tmp_path: Path) -> None:
    RunDir(tmp_path / "empty").create()
    with pytest.raises(BenchError, match=r"no records in .*empty"):
        read_evidence([tmp_path / "empty"])
    with pytest.raises(BenchError, match="no such run directory"):
        read_evidence([tmp_path / "nowhere"])
    (tmp_path / "empty" / "records" / "bad.json").write_text("{")
    with pytest.raises(BenchError, match=r"no record can be read. bad.json is damaged \(no JSON"):
        read_evidence([tmp_path / "empty"])


def test_a_key_in_two_directories_is_one_record(tmp_path: Path) -> None:
    for name in ("a", "b"):
        RunDir(tmp_path / name).create().write_record(of(0.2))
    assert mean(read_evidence([tmp_path / "a", tmp_path / "b"]).records, cell("dgd", "mnist", 10.0)) == 20.0


# --- printed numbers, attacks, pictures -------------------------------------------------------------------------------


def test_printed_numbers_are_found_by_what_they_speak_of() -> None:
    material = Material(Evidence(), [number(97.4), number(73.6, epsilon=1.0), number(1.8, measure="drop")])
    assert material.one(table="I", measure="accuracy", epsilon=1.0) == number(73.6, epsilon=1.0)
    assert material.one(table="II") is None
    with pytest.raises(BenchError, match="2 reported numbers match measure='accuracy'"):
        material.one(measure="accuracy")
    assert Theirs(number(97.4), digits=1).text == "97.4"
    assert Theirs(number(97.4), "verdicts").text == "paper: unsound; code: not read"
    assert Theirs(number(97.4, epsilon=math.inf), "epsilon").text == "∞"
    assert Theirs(None).text == "–"


def attack(student: Record, *, preset: str = "quick", value: float = 0.5, **changes: Any) -> AttackRecord:
    given: dict[str, Any] = {
        "key": f"{student.key}--mi-face-{preset}", "student": student.key, "status": Status.DONE, "attack": "mi-face",
        "attack_version": 1, "goal": "inversion", "dataset": "mnist", "preset": preset, "config": {}, "seed": 0,
        "targets": {"student": Scores(metrics={"top": Estimated(value=value, low=0.25, high=0.75, n=10)})},
        "provenance": provenance(),
    }  # fmt: skip
    return AttackRecord(**{**given, **changes})


def test_attacks_are_numbers_with_intervals_or_spreads() -> None:
    first, second = of(), of(seed=1)
    entry = Attacked(cell("dgd", "mnist", 10.0), "mi-face", "top")
    one = Material(Evidence([first, second], attacks=[attack(first)]), []).value(entry)
    assert one is not None
    assert (one.mean, one.low, one.high, one.n) == (50.0, 25.0, 75.0, 1)
    both = [attack(first, value=0.4), attack(second, value=0.6), attack(first, preset="tiny", value=0.0)]
    two = Material(Evidence([first, second], attacks=both), []).value(entry)
    assert two is not None
    assert (round(two.mean, 6), two.n, two.low) == (50.0, 2, None)


def test_missing_attacks_have_both_commands() -> None:
    entry = Attacked(cell("dgd", "mnist", 10.0), "mi-face", "top", "prior")
    none = Material(Evidence(), []).missing(entry)
    assert none is not None
    assert [words.split()[3] for words in none.commands] == ["run", "attack"]
    other = Material(Evidence([of()], attacks=[attack(of())]), []).missing(entry)
    assert other is not None
    assert "does not hold it" in other.why
    powerless = Material(Evidence([of()], attacks=[attack(of(), no_power="it breaks nothing")]), [])
    assert powerless.powerless(entry) == "it breaks nothing"


def test_pictures_lie_beside_records_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"x")
    for file, there in (("released/a.png", True), ("../secret.png", False), (str(tmp_path / "secret.png"), False)):
        run_dir = RunDir(tmp_path / "runs").create()
        (run_dir.released_path / "a.png").write_bytes(b"x")
        run_dir.write_record(of().model_copy(update={"image_grid": ImageGrid(file=file, sha256="0")}))
        material = Material(read_evidence([run_dir.path]), [])
        picture = Picture("sheet", cell("dgd", "mnist", 10.0))
        assert (material.picture(picture) is not None) is there
        assert (material.missing(picture) is None) is there
