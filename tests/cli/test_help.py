"""Help texts: groups of options, and examples that work; an option given twice."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bench.cli.main import app
from bench.cli.run import EXAMPLES
from helpers.commands import bench


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


EVERY = dict(commands(get_command(app)))


@pytest.mark.few(8)
@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_many_options_come_in_groups_and_few_in_one(words: tuple[str, ...]) -> None:
    options = [p for p in EVERY[words].params if p.param_type_name == "option" and not p.hidden]
    done = bench(*words, "--help")
    assert done.returncode == 0
    heads = [line for line in done.stdout.splitlines() if line.endswith(":") and not line.startswith(" ")]
    groups = set(heads) - {"Arguments:", "Options:", "Examples:"}
    assert (len(groups) > 0) == (len(options) > 8)
    assert len(heads) == len(set(heads))
    for option in options:
        assert option.opts[0] in done.stdout


def test_run_groups_its_options_and_ends_with_examples() -> None:
    shown = bench("run", "--help").stdout
    heads = ["What to run:", "Records:", "Where it runs:", "Slurm:", "Options:", "Examples:"]
    assert [line for line in shown.splitlines() if line in heads] == heads
    assert all(f"  {line}" in shown.splitlines() for line in EXAMPLES.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("line", EXAMPLES.splitlines())
def test_the_examples_work(line: str, tmp_path: Path) -> None:
    python, dash_m, program, *words = shlex.split(line)
    assert (python, dash_m, program) == ("python", "-m", "bench")
    done = bench(*words, "-o", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert "digits" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "-m", "pate", "--methods", "dp-sgd"], "--methods is given 2 times. Give it once"),
        (["run", "-m", "pate", "-o", "a", "-o", "b"], "--out is given 2 times. Give it once."),
        (["audit", "--power", "--no-power"], "--power is given 2 times"),
        (["epsilon", "laplace", "--count", "1", "--noise-multiplier", "1", "--count", "2"], "--count is given 2 times"),
    ],
)
def test_an_option_of_one_value_given_twice_is_refused(words: list[str], says: str) -> None:
    done = bench(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_repeatable_options_and_flags_may_be_repeated() -> None:
    assert bench("ls", "--json", "--json").returncode == 0
    done = bench("run", "-m", "pate", "--set", "teachers=5", "--set", "teacherz=1")
    assert "teacherz" in done.stderr
