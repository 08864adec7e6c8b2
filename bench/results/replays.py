"""Replays of a board's runs: the file ``replays.json``, with one entry for each run that was replayed and passed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bench.core.errors import BenchError
from bench.core.plain_files import read_plain
from bench.core.rows import Row

REPLAYS = "replays.json"


class Replay(Row):
    """A run that passed :func:`bench.evaluation.check.row_replay.check_row`.

    It gave equal releases on other private data, or its ledger declares a bypass, as `outcome` says.
    """

    key: str
    """Key of the replayed record."""
    method: str
    """Its method."""
    dataset: str
    """Its data set."""
    source_sha256: str
    """SHA-256 of the method's file, or of a plug-in's files, at the time of the replay."""
    commit: str | None
    """Commit of the program that replayed it; null if unknown."""
    date: str
    """Day of the replay, as YYYY-MM-DD."""
    outcome: str
    """What the replay compared and found."""


_REPLAYS = TypeAdapter(list[Replay])


def read_replays(folder: Path) -> list[Replay]:
    """Return the replays of the board in `folder`, none without the file; raise :class:`BenchError` if damaged."""
    path = folder / REPLAYS
    try:
        return _REPLAYS.validate_json(read_plain(path))
    except FileNotFoundError:
        return []
    except (OSError, ValidationError, ValueError) as error:
        raise BenchError(f"{path} cannot be read: {str(error).splitlines()[0]}. Restore it by git.") from error


def replays_text(replays: Iterable[Replay]) -> str:
    """Return the text of ``replays.json``; of two replays of one run the later in `replays` counts."""
    last = {replay.key: replay for replay in replays}
    ordered = sorted(last.values(), key=lambda replay: (replay.dataset, replay.method, replay.key))
    return _REPLAYS.dump_json(ordered, indent=1).decode() + "\n"


def replay_of(replays: Iterable[Replay], method: str, dataset: str, keys: Iterable[str]) -> Replay | None:
    """Return the replay for a row: of one of its runs `keys`, otherwise of another run of its method on its data."""
    alike = [replay for replay in replays if (replay.method, replay.dataset) == (method, dataset)]
    own = set(keys)
    return next((replay for replay in alike if replay.key in own), alike[0] if alike else None)
