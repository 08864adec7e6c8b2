"""``bench new``: write the file of a method that runs, to start from."""

from __future__ import annotations

import keyword
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench.core.errors import BenchError
from bench.core.progress import echo
from bench.storage.files import writing


class Kind(StrEnum):
    """What the method starts from."""

    PATE = "pate"
    DP_SGD = "dp-sgd"


NAMES = {
    Kind.PATE: ('"centroid-pate"', "CentroidPATE", "CentroidConfig"),
    Kind.DP_SGD: ('"layered-adam"', "LayeredAdam", "LayeredConfig"),
}
"""The names of a template's method, class and config."""

File = Annotated[Path, typer.Argument(help="The new file, such as my_method.py; the method gets its name.")]
From = Annotated[
    Kind, typer.Option("--from", "-f", help="pate: labels by a noisy vote of teachers. dp-sgd: noisy gradients.")
]


def new(file: File, kind: From = Kind.PATE) -> None:
    """Write a small method that passes the check, for you to change; CONTRIBUTING.md explains its parts."""
    from bench.interface.registry import METHODS

    words = re.split(r"[_-]+", file.stem)
    if file.suffix != ".py" or not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", file.stem):
        raise BenchError(f"{file} does not name a method. Use lower-case words, digits and underscores: my_method.py.")
    name, title = "-".join(words), "".join(map(str.capitalize, words))
    if name in METHODS or keyword.iskeyword(file.stem):
        raise BenchError(f"the name {name} is taken. Give the file another one.")
    if file.exists():
        raise BenchError(f"{file} exists. Give another name, or delete it first.")
    text = Path(__file__).with_name("templates").joinpath(f"{kind}.txt").read_text(encoding="utf-8")
    for old, mine in zip(NAMES[kind], (f'"{name}"', title, f"{title}Config"), strict=True):
        text = text.replace(old, mine)
    with writing(file), file.open("x", encoding="utf-8") as stream:
        stream.write(text)
    echo(f"wrote {file}, the method {name}. Next:")
    echo(f"  python -m bench check {file} --seconds 1")
    echo(f"  python -m bench run -m {file},nonprivate -d digits -e 1,10")
    echo(f"  python -m bench audit {file} --minutes 2")
