"""Untrusted files: only regular files are read, and only up to the limit."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.core.plain_files import open_plain, read_plain
from bench.core.rows import json_object


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


STRANGE: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "socket": bound,
    "link to an endless file": lambda path: path.symlink_to("/dev/zero"),
    "link to a plain file": lambda path: path.symlink_to(__file__),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", STRANGE)
def test_what_is_no_plain_file_is_refused_at_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    path = Path("strange")
    STRANGE[kind](path)
    with pytest.raises(ValueError, match="not a regular file"), open_plain(path):
        pass


def test_a_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    assert read_plain(path, 1000) == b"x" * 1000
    os.truncate(path, 23 << 30)  # takes no space on the disk
    with pytest.raises(ValueError, match="larger than 8 MiB"):
        read_plain(path)
    with pytest.raises(FileNotFoundError):
        read_plain(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[" * 100_000, "recursion limit"),
        (b'{"a":' * 100_000, "recursion limit"),
        (b'{"a": NaN}', "expected value"),
        (b'{"a": -Infinity}', "no JSON"),
        (b'{"a": [{"b": 1e999}]}', "a number is too large"),
        (b'{"a": ' + b"9" * 250 + b"e99}", "a number is too large"),
        (b'{"a": ' + b"9" * 400 + b".0}", "a number is too large"),
        (b'{"a": "\xff"}', "invalid unicode"),
        (b'{"a": "\\ud800"}', "no JSON"),
        (b"[]", "no JSON object"),
    ],
)
def test_what_rows_are_not_made_of_is_no_json(text: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        json_object(text)
    assert "\n" not in str(caught.value)
