"""The command line as users meet it: tables, JSON, exit states, errors without tracebacks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.core.version import __version__
from bench.results.record import parse_record
from helpers.commands import Done, bench, refused
from helpers.data import image_folder
from helpers.paths import BOARD, ROOT


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "runs"
    done = bench(
        "run", "-m", "pate,nonprivate", "-d", "digits", "-e", "1,10", "-p", "tiny", "-o", str(out), "--workers", "1"
    )
    assert done.returncode == 0, done.stderr
    for word in ("digits, unit record", "claimed", "proven", "accuracy", "pate", "nonprivate", "∞"):
        assert word in done.stdout
    return out


SLOW = ("torch", "torchvision", "timm", "numpy", "scipy", "pandas", "sklearn", "pydantic", "opacus", "matplotlib")


def imported_by(*commands: list[str]) -> tuple[set[str], str]:
    """Run commands in a separate interpreter; return the slow packages that they import, and their output."""
    code = (
        f"import sys; from bench.cli.main import app; [app(words, standalone_mode=False) for words in {commands}]; "
        f"print(*(set({SLOW}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stderr.splitlines()[-1].split()), done.stdout


def test_help_imports_nothing_slow() -> None:
    imported, printed = imported_by(["--help"])
    assert imported == set()
    for command in ("run", "ls", "show", "check", "attack", "audit", "epsilon", "data", "leaderboard"):
        assert command in printed


def test_the_list_of_methods_imports_no_library_of_numbers() -> None:
    assert imported_by(["ls"])[0] <= {"pydantic"}


@pytest.mark.parametrize(
    "words", [("status",), ("cancel",), ("ls",), ("show", "no-key"), ("attack",), ("audit",), ("export", "a")]
)
def test_out_is_the_run_directory_of_every_command(words: tuple[str, ...], tmp_path: Path) -> None:
    done = bench(*words, "-o", tmp_path / "nowhere")
    assert done.returncode == 2
    assert str(tmp_path / "nowhere") in done.stderr


def test_own_models_are_listed_before_anything_else_registered_them_and_planning_draws_and_tabulates_nothing() -> None:
    planning = ["run", "--dry-run", "-m", "pate,dp-sgd", "-d", "digits", "-e", "1", "--json"]
    imported, printed = imported_by(["ls", "models"], planning)
    models, brace, planned = printed.partition("{")
    assert "softmax_regression" in models
    assert len(json.loads(brace + planned)["cells"]) == 2
    assert not imported & {"pandas", "matplotlib"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "slow"),
    [
        ("run -m pate,dp-sgd -e 1,10", "bench.experiments.plan"),
        ("attack", "bench.evaluation.attack.attack"),
        ("audit", "bench.evaluation.audit.audit"),
        ("check pate", "bench.evaluation.check.noninterference"),
    ],
)
def test_something_is_shown_before_anything_is_imported_for_it(words: str, slow: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    code = (
        f"import sys; sys.argv = {['bench', *words.split()]}; "
        f"sys.modules['{slow}'] = None; from bench.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.startswith("starting: 0/1\n")
    assert "ImportError" in done.stderr or "ModuleNotFoundError" in done.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("words", [["ls"], ["show", "pate"], ["ls", "attacks", "--json"], ["--help"]])
def test_a_reader_that_leaves_early_is_told_nothing(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words], stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_seeds_may_be_a_range(tmp_path: Path) -> None:
    words = ("run", "-m", "nonprivate", "-d", "digits", "-s", "4,0-2,1", "-o", tmp_path, "--dry-run", "--json")
    planned = json.loads(bench(*words).stdout)["cells"]
    assert [cell["title"][-1] for cell in planned] == ["4", "0", "1", "2"]


def test_version() -> None:
    done = bench("--version")
    assert (done.returncode, done.stdout) == (0, f"private-student-bench {__version__}\n")


def test_the_entry_point_ends_with_the_commands_status() -> None:
    done = subprocess.run([sys.executable, "-m", "bench", "show", "nothing"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown method or record")


def test_dry_run_shows_states_and_reasons(runs: Path) -> None:
    dry = ("run", "--dry-run", "-m", "pate", "-d", "digits")
    done = bench(*dry, "-e", "1,10,20", "-p", "tiny", "-o", str(runs), "--json")
    cells = json.loads(done.stdout)["cells"]
    assert [cell["state"] for cell in cells] == ["to do", "done", "done"]  # what would run comes first
    assert all(cell["key"] and cell["setting"] and cell["config"] and float(cell["claimed"]) > 0 for cell in cells)
    done = bench(*dry, "-e", "0.01", "-p", "paper", "--set", "teachers=5")
    assert "refused" in done.stdout
    assert "1.44" in done.stdout


def test_ls_and_show(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    methods = bench("ls").stdout.splitlines()
    assert "pate-gnmax+" in " ".join(methods)
    assert len(methods) <= 60
    assert all(len(line) <= 80 for line in methods)
    assert "fmnist" in bench("ls", "datasets").stdout
    assert "salimans_mlp" in bench("ls", "models").stdout
    listed = bench("ls", "-o", str(runs), "--json")
    keys = [row["key"] for row in json.loads(listed.stdout)["rows"]]
    assert len(keys) == 3
    (key,) = [key for key in keys if "pate-eps10" in key]
    shown = bench("show", key, "-o", str(runs)).stdout
    for word in ("lnmax", "claimed", "Where and how it ran", "data-dependent", "paper's value"):
        assert word in shown
    record = parse_record(bench("show", key[:-4], "-o", str(runs), "--json").stdout)
    assert record.key == key
    (tmp_path / "records").mkdir()
    (tmp_path / f"records/{key}.json").write_bytes((runs / f"records/{key}.json").read_bytes())
    assert bench("show", "digits", "-o", tmp_path).stdout == shown, "the key of the only record there begins so"
    page = bench("show", "pate").stdout
    assert "PATE 2017, section 4.1" in page
    assert "Threat model" in page


def test_show_finds_published_records_by_the_beginning_of_their_key(runs: Path) -> None:
    whole = "mnist-pate-eps1-quick-s0-12aedf7fbe91"
    shown = bench("show", whole[:-5], "-o", runs)
    assert shown.stdout.startswith(whole), shown.stderr
    assert "membership" in shown.stdout, "its attacks lie on the board too"
    assert parse_record(bench("show", whole, "-o", runs, "--json").stdout).key == whole
    assert f"records in {BOARD.name} begin with 'mnist-pate-'" in refused("show", "mnist-pate-", "-o", str(runs))
    assert f"Records are read from {runs} and {BOARD.name}" in refused("show", "mnist-pat-", "-o", str(runs))


def test_record_keeps_three_epsilons_and_the_ledger(runs: Path) -> None:
    (path,) = (runs / "records").glob("*pate-eps10*")
    record = parse_record(path.read_text())
    assert record.privacy is not None
    assert record.privacy.claimed.epsilon <= 10
    assert record.privacy.proven.epsilon < record.privacy.claimed.epsilon
    assert record.privacy.proven.releasable
    assert not record.privacy.proven.data_dependent
    assert record.privacy.audited is None
    assert record.privacy.events[0]["kind"] == "lnmax"
    assert any(a.data_dependent and not a.releasable for a in record.privacy.accountants)
    assert record.queries is not None
    assert record.reduced
    (open_,) = (runs / "records").glob("*nonprivate*")
    other = parse_record(open_.read_text())
    assert other.privacy is not None
    assert other.privacy.proven.epsilon == float("inf")
    assert other.privacy.bypasses


def test_released_student_is_rebuilt(runs: Path) -> None:
    from bench.experiments.release import load_released

    (path,) = (runs / "released").glob("*pate-eps10*")
    released = load_released(path)
    assert not released.student.training
    assert set(released.extras) == {"query_indices", "query_labels"}
    assert b"seed" not in path.read_bytes()[:4096], "the seed of the noise must not be released"


def test_leaderboard_writes_markdown_and_csv(runs: Path, tmp_path: Path) -> None:
    done = bench("leaderboard", str(runs), "--into", str(tmp_path))
    assert done.returncode == 0
    assert "| pate |" in (tmp_path / "leaderboard.md").read_text()
    first = (tmp_path / "leaderboard.csv").read_bytes()
    quiet = bench("leaderboard", str(runs), "--into", str(tmp_path), "-q")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, done.stdout, "")
    assert (tmp_path / "leaderboard.csv").read_bytes() == first


def test_failures_are_rows_and_the_exit_state_says_so(tmp_path: Path) -> None:
    out = str(tmp_path / "runs")
    done = bench(
        "run", "-m", "nonprivate,pate", "-d", "digits", "-e", "0.01", "-p", "paper", "-o", out,
        "--set", "teachers=5", "--set", "epochs=1",
    )  # fmt: skip
    assert done.returncode == 1
    assert "whatever the votes" in done.stdout
    assert "nonprivate" in done.stdout
    statuses = [row["status"] for row in json.loads(bench("ls", "-o", out, "--json").stdout)["rows"]]
    assert sorted(statuses) == ["done", "failed"]


def test_a_plugin_may_register_its_net_in_training(tmp_path: Path) -> None:
    plugin = tmp_path / "late.py"
    plugin.write_text(LATE_NET)
    run = ("run", "-m", str(plugin), "-d", "digits", "-p", "tiny", "-o", str(tmp_path / "runs"))
    assert bench(*run, "--student", "late_net").returncode == 0
    assert "Did you mean 'small_cnn'?" in refused(*run, "--student", "smal_cnn")


LATE_NET = """
from bench.interface import register_method
from bench.methods.nonprivate import NonPrivate

@register_method("late")
class Late(NonPrivate):
    def train_student(self, *given):
        from timm.models import register_model
        from bench.models.classifiers import small_cnn

        def late_net(pretrained=False, num_classes=10, in_chans=3, **options):
            return small_cnn(num_classes=num_classes, in_chans=in_chans, img_size=8)

        register_model(late_net)
        return super().train_student(*given)
"""


def test_any_timm_model_may_be_the_student(tmp_path: Path) -> None:
    done = bench(
        "run", "-m", "nonprivate", "-d", "digits", "-p", "tiny", "--student", "resnet10t", "--set", "epochs=0.2",
        "-o", str(tmp_path / "runs"), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout)["records"]
    assert record["student"]["name"] == "resnet10t"


def test_votes_of_another_ensemble_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "votes.npy", np.array([[5.0, 5.0], [4.0, 5.0]]))
    said = refused("epsilon", "lnmax", "--gamma", "0.05", "--votes", str(tmp_path / "votes.npy"))
    assert "row" in said


def test_run_in_use_is_refused(tmp_path: Path) -> None:
    from bench.results.run_dir import RunDir

    with RunDir(tmp_path / "runs").create().locked():
        assert "in use by a tuning" in refused("run", "-m", "pate", "-d", "digits", "-o", str(tmp_path / "runs"))


def test_check_passes_and_fails_by_exit_state(tmp_path: Path) -> None:
    done = bench("check", "nonprivate", "--dataset", "digits", "--preset", "tiny", "--seeds", "1")
    assert done.returncode == 0
    assert "declared bypass" in done.stdout
    assert "nonprivate: 0/3" in done.stderr  # its own progress, as it is alone
    (tmp_path / "leak.py").write_text(
        "from cheats.figures import ClassCounts\n"
        "from bench.interface.registry import register_method\n"
        "register_method('leak')(ClassCounts)\n"
    )
    (tmp_path / "broken.py").write_text(
        "from bench.core.errors import BenchError\n"
        "from bench.interface.registry import register_method\n"
        "from cheats.honest import Honest\n"
        "@register_method('broken')\n"
        "class Broken(Honest):\n"
        "    def train_student(self, private, public, ledger, context):\n"
        "        raise BenchError('it has no students')\n"
    )
    every = [tmp_path / f"{name}.py" for name in ("broken", "leak", "raising")]
    raises = (
        every[0].read_text().replace("'broken'", "'raising'").replace("raise BenchError('it has no students')", "1 / 0")
    )
    every[2].write_text(raises)
    done = bench("check", *every, "--json", "--seconds", "0", "--seeds", "1")
    assert done.returncode == 1
    broken, leak, raising = json.loads(done.stdout)["checks"]
    assert raising["verdict"] == "could not be checked"
    assert "ZeroDivisionError: division by zero (raising.py, line 7, in train_student)" in raising["reason"]
    assert broken == {"method": "broken", "verdict": "could not be checked", "reason": "it has no students"}
    assert (leak["method"], leak["verdict"]) == ("leak", "rejected")


def test_own_folder_gives_nothing_private_away(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "secret-place" / "mine")

    def run(out: str, methods: str, *more: str) -> Done:
        return bench("run", "-m", methods, "-d", folder, "-p", "tiny", "-e", "10", "-o", tmp_path / out, *more)

    done = run("runs", "pate,dp-sgd", "--workers", "1")
    assert done.returncode == 0, done.stderr
    # The owner sees the class names; the number of images per class is private.
    said = done.stderr
    assert re.search(
        r"folder:mine\n +read +images, 1 x 12 x 12; .*\n +classes +2: cat, dog\n +private +\d+ records", said
    )
    (path,) = (tmp_path / "runs" / "records").glob("*-pate-*.json")
    text = path.read_text()
    assert "secret-place" not in text + path.name
    record = parse_record(text)
    assert record.dataset == "folder:mine"
    assert record.utility is not None
    assert record.utility.answers is None
    assert record.privacy is not None
    assert record.privacy.withheld
    assert not any(figure.data_dependent for figure in record.privacy.accountants)
    assert "taken as public" in record.public_data
    assert record.public_kinds == ["unlabelled"]
    assert record.queries is not None
    assert record.queries.label_accuracy is None
    # The running time may reveal something about the records, so it is in minutes.
    assert record.provenance.wall_seconds % 60 == 0
    # The noise must not follow from the record's seed alone, so it is also keyed by a secret that is deleted.
    assert not list((tmp_path / "runs").glob("**/*.noise*"))
    again = run("elsewhere", "dp-sgd", "--workers", "1")  # votes could be equal by chance
    assert again.returncode == 0, again.stderr
    places = [tmp_path / out / "released" for out in ("runs", "elsewhere")]
    released = [next(place.glob("*-dp-sgd-*")).read_bytes() for place in places]
    assert released[0] != released[1], "two runs have two secrets"
    # No record holds the folder's path: attacks and audits need it again, and a failure names its private log.
    out = str(tmp_path / "runs")
    for command in ("audit", "attack"):
        asked = bench(command, record.key, "-o", out)
        assert asked.returncode == 2
        assert "--data folder:PATH" in asked.stderr
    other = bench("audit", record.key, "-o", out, "--data", "folder:/nowhere", "--workers", "1", "-q")
    assert other.returncode == 1
    (line,) = (line for line in other.stdout.splitlines() if line.startswith("failed: "))
    log = Path(line.partition("(log: ")[2].rstrip(")"))
    assert "/nowhere is not a folder" in log.read_text()
    # A failure's message may quote records, so it stays in a private log.
    failed = run("failed", "pate", "--teacher", "vit_tiny_patch16_224")
    assert failed.returncode == 1
    (path,) = (tmp_path / "failed" / "records").glob("*.json")
    failure = parse_record(path.read_text()).failure
    assert failure is not None
    assert "vit_tiny" not in failure.reason
    assert failure.spent == [], "teachers that cannot be trained cost no budget"
    assert failure.log is not None
    assert (tmp_path / "failed" / failure.log).stat().st_mode & 0o077 == 0
