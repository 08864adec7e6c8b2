"""Untrusted YAML files: anything but plain settings is refused quickly, in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.core.yaml_files import Value, read_yaml
from helpers.commands import bench

LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(9))
TEXTS: dict[str, tuple[str | bytes, str]] = {
    "deep": ("[" * 200_000, "nested too deeply"),
    "deep mapping": ("{a: " * 50_000, "nested too deeply"),
    "date tag": ("a: !!timestamp soon", "a tag does not fit its value"),
    "date object": ("a: !!timestamp 2024-01-01", "a date is neither text"),
    "number of 5,000 digits": ("gpus: " + "9" * 5000, "cannot be read as YAML"),
    "number of 100 digits": ("gpus: " + "9" * 100, "a whole number is too large"),
    "nan": ("memory: .nan", "nan is not a finite number"),
    "infinity": ("memory: -.inf", "-inf is not a finite number"),
    "tag of a number": ("gpus: !!int x", "cannot be read as YAML"),
    "tag of a truth": ("gpus: !!bool x", "a tag does not fit its value"),
    "tag of Python": ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    "unknown tag": ("a: !mine x", "could not determine a constructor"),
    "set": ("a: !!set {b}", "a set is neither text"),
    "bytes": ("a: !!binary aGk=", "a bytes is neither text"),
    "key that is a list": ("? [a]\n: b", "cannot be read as YAML"),
    "contains itself": ("a: &a [*a]", "contains itself"),
    "laughs": (LAUGHS, "more than 100,000 values"),
    "UTF-16": ("gpus: 1".encode("utf-16"), "decode"),
    "Latin-1": ("a: é".encode("latin-1"), "decode"),
    "zero": ("a: \0", "special characters are not allowed"),
    "large": (b"#" * (1 << 20), "larger than 256 KiB"),
    "two documents": ("a: 1\n---\nb: 1", "expected a single document"),
}
FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "endless": lambda path: path.symlink_to("/dev/zero"),
}


def refused(path: Path, says: str) -> None:
    with pytest.raises(BenchError, match=says) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path} ")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", TEXTS)
def test_what_is_no_plain_yaml_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    text, says = TEXTS[kind]
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    refused(path, says)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", FILES)
def test_what_is_no_plain_file_is_named_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    FILES[kind](path)
    refused(path, "not a regular file")
    words = {"run": ["-m", "pate", "--cluster"], "tune": ["-m", "pate", "--space"]}
    for command, rest in words.items():
        done = bench(command, *rest, path, "-o", tmp_path / "runs", "-q")
        assert (done.returncode, "not a regular file" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("time: 2:00:00\nwhen: 2026-13-45", {"time": "2:00:00", "when": "2026-13-45"}),
        ("\ufeffa: [1, 2.5, true, null, é]", {"a": [1, 2.5, True, None, "é"]}),
        ('{"a": {"b": -1.0e-3}}', {"a": {"b": -0.001}}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
    ],
)
def test_values(text: str, value: Value, tmp_path: Path) -> None:
    path, link = tmp_path / "file.yaml", tmp_path / "link"
    path.write_text(text, encoding="utf-8")
    link.symlink_to(path)
    assert read_yaml(path) == read_yaml(link) == value
