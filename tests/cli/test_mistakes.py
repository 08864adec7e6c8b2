"""Mistakes on the command line: one clear message, before anything is read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.experiments.data_source import DataSource
from helpers.commands import refused


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "-m", "pat"], "Did you mean 'pate'?"),
        (["leaderboard", "--unit", "person"], "client, label, query-label, record"),
        (["run", "-m", "PATE"], "Did you mean 'pate'?"),
        (["run", "-m", "pate", "-d", "minst"], "mnist"),
        (["run", "-m", "pate", "-e", "0"], "positive"),
        (["run", "-m", "pate", "-e", "nan"], "positive"),
        (["run", "-m", "pate", "-e", "one"], "comma-separated numbers"),
        (["run", "-m", "pate", "--delta", "0"], "delta"),
        (["run", "-m", "pate", "--delta", "nan"], "delta"),
        (["run", "-m", "pate", "-s", "x"], "whole numbers"),
        (["run", "-m", "pate", "-d", "digits", "--noise-salt", "abc"], "64 hex digits"),
        (["run", "-m", "pate", "-d", "digits", "--noise", "secure", "--noise-salt", "none"], "cannot be drawn again"),
        (["run", "-m", "pate", "--set", "teacherz=1"], "teachers"),
        (["run", "-m", "pate", "-o", "/proc/nowhere"], "No such file or directory. Choose another place"),
        (["run", "-m", "pate", "-o", __file__], "is a file, not a directory. Choose another with --out."),
        (["run", "-m", "pate", "-o", __file__, "--dry-run"], "is a file, not a directory. Choose another"),
        (["show", "nothing-like-it"], "unknown method or record"),
        (["show", "mi-face"], "mi-face is an attack; show prints methods and records."),
        (["show", "mnist"], "mnist is a data set; show prints methods and records."),
        (["audit", "leaderboards"], "leaderboards is a folder, not a student's key."),
        (["ls", "methodz"], "methods"),
        (["check", "pat"], "pate"),
        (["check", "pate", "--set", "teacherz=1"], "Did you mean 'teacher'?"),
        (
            ["run", "-m", "pate", "--set", "teachers=abc"],
            "--set pate.teachers=abc: it must be a valid integer. The paper's value is 250.",
        ),
        (["ls", "-o", __file__], "no such run directory"),
        (["audit", "-o", "no-such-folder", "--canaries", "5"], "--kind pair takes no --canaries: leave that out"),
        (["attack", "-o", "no-such-folder"], "no such run directory: no-such-folder"),
        (["weights", "get", "no-such-net"], "one of 1,"),
        (["export", "pate", "-o", "leaderboards"], "unknown record 'pate'. Did you mean"),
        (["export", "a-key", "-o", "no-such-folder"], "no such run directory: no-such-folder"),
        (["report", "--all", "-o", "figures"], "Write the report by --into figures."),
        (["report", "--paper", "dgdd"], "unknown paper 'dgdd'. Did you mean 'dgd'?"),
        (["leaderboard", "leaderboards", "--into", __file__], "Choose another path."),
        (["run", "pate", "dp-sgd"], "pate dp-sgd is not expected here. Did you mean --methods pate,dp-sgd?"),
        (["run", "-m", "pate", "digits"], "Did you mean --datasets digits?"),
        (["run", "pate,trpate"], "Did you mean --methods pate,trpate?"),
        (["run", "--method", "pate"], "there is no option --method. Did you mean --methods?"),
        (["run", "-m", "dp-sgd", "--epochs", "5"], "epochs is a setting of a method. Give it by --set epochs=5."),
        (["check", "dp-sgd", "--batch-size=5"], "Give it by --set batch_size=5."),
        (["attack", "--images-per-class", "5"], "images_per_class is a setting of an attack."),
        (["leaderboard", "--epochs", "5"], "there is no option --epochs."),
        (["leaderboard", "--out", "pages"], "there is no option --out. `"),
        (["epsilon", "laplace", "--epsilon", "1"], "there is no option --epsilon. `"),
        (["epsilon", "gaussian", "--sigm", "2"], "there is no option --sigm. Did you mean --sigma?"),
        (["run", "-m", "pate", "-p", "big"], "'--preset' / '-p': 'big' is not one of 'paper', 'quick', 'tiny'"),
        (["run", "-m", "dp-sgd", "--set", "sigma=2"], "Did you mean 'noise_multiplier'?"),
        (["run", "-m", "dp-sgd", "--set", "dp-sgd.sigma=2"], "Did you mean 'noise_multiplier'?"),
        (["run", "-m", "pate", "--set", "teachers=3", "--set", "teachers=4"], "--set teachers is given 2 times"),
        (["run", "-m", "pate", "--student", "mlp", "--set", "student=lenet"], "--set student is given 2 times"),
        (["run", "-m", "pate", "--device", "gpu"], "--device gpu is unknown. Accepted: auto, cpu, cuda or cuda:N"),
        (["run", "-m", "nonprivate", "-e", "1", "--device", "nothing"], "torch knows no such device. Use auto"),
        (["run", "-m", "pate", "-d", "imagenet:/data"], "imagenet takes no path. If you have its files, put them into"),
        (["run", "-m", "pate", "-e", "10", "-p", "tiny", "--set", "teachers=100000"], "10 claimed: more teachers than"),
        (["run", "-m", "pate", "-s", "2-0"], "--seeds 2-0 is not a range"),
        (["run", "-m", "pate", "-s", "0-"], "--seeds 0- is not a range"),
        (["run", "-m", "pate", "-s", "-1"], "seeds must not be negative"),
        (["run", "-m", "pate", "-s", "0-99999999999"], "is not a range of at most 10,000 seeds"),
        (["run", "-m", "pate", "-o", ""], "an empty path is given for out"),
        (["bundle", "-m", "pate", "-o", ""], "an empty path is given for out"),
        (["leaderboard", ""], "an empty path is given for runs"),
        (["check", "dp-sgd", "--set", "noise_multiplier=3", "-q"], "noise_multiplier=3.0 has no effect"),
        (["check", "pate", "--seeds", "one"], "--seeds takes comma-separated whole numbers"),
        (["check", "pate", "--set", "teachers=2000", "--quiet"], "pate: more teachers than records"),
        (["leaderboard", "no-such-folder"], "no such run directory"),
        (["epsilon", "lnmax", "--gamma", "0", "--queries", "10"], "gamma"),
        (["epsilon", "lnmax", "--gamma", "0.05", "--votes", "missing.npy"], "missing.npy"),
    ],
)
def test_mistakes_get_one_clear_message(words: list[str], says: str, tmp_path: Path) -> None:
    if words[0] == "run" and "-o" not in words:
        words = [*words, "-o", str(tmp_path / "runs"), *([] if "-d" in words else ["-d", "digits"])]
    assert says in refused(*words)


@pytest.mark.parametrize("command", ["run", "tune --space x", "bundle"])
@pytest.mark.parametrize("words", ["-m pat", "-m pate -d minst", "-m pate --set teacherz=1"])
def test_a_wrong_name_is_told_before_anything_is_shown(command: str, words: str) -> None:
    assert refused(*command.split(), *words.split()).startswith("error: ")
    assert refused("check", "pat").startswith("error: ")


@pytest.mark.parametrize("words", [("status", "-o"), ("ls", "-o"), ("show", "pate", "-o"), ("audit", "-o")])
def test_an_empty_path_is_not_the_working_directory(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "an empty path is given for out" in refused(*words, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "nonprivate", "--student", "smal_cnn"),
        ("-m", "pate,dp-sgd", "--teacher", "smal_cnn"),
        ("-m", "dp-sgd,pate", "--set", "pate.teacher=smal_cnn"),
        ("-m", "dp-linear-gd", "--teacher", "smal_cnn"),
        ("-m", "pate", "--teacher", "smal_cnn", "--dry-run"),
    ],
)
def test_an_unknown_model_is_refused_before_data_are_fetched(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DataSource, "describe", lambda *_: pytest.fail("data were asked for"))
    said = refused("run", *words, "-o", str(tmp_path / "runs"))
    assert "unknown model 'smal_cnn'. Did you mean 'small_cnn'?" in said
    assert "aimv2" not in said, "the first of the alphabet are no help"
    assert not (tmp_path / "runs").exists()
