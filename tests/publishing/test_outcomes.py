"""A publication that was stopped continues where it was."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from bench.core.progress import Progress
from bench.publishing.outcomes import Outcomes
from bench.publishing.publish import Fate, Item, Publication
from bench.publishing.verify import verify
from bench.results.record import Record
from bench.storage.interrupts import Stopped
from helpers.publishing import all_pass_the_check
from helpers.records import asked
from helpers.records import record as made


def test_a_stopped_publication_repeats_nothing_that_passed(tmp_path: Path) -> None:
    pate, dpsd = made(key="a", method="pate"), made(key="b", method="dpsd")
    tried: list[str] = []

    def once(method: str, *records: Record, fate: Fate = Fate.PASSED, stopped: bool = False) -> Item:
        def make() -> Item:
            tried.append(method)
            if stopped:
                raise Stopped(15)
            return Item("check", method, fate, "why")

        return Outcomes(tmp_path).once("check", method, records, make)

    once("pate", pate)
    with pytest.raises(Stopped):
        once("dpsd", dpsd, stopped=True)
    assert once("pate", pate) == Item("check", "pate", Fate.PASSED, "why")
    once("dpsd", dpsd, fate=Fate.REFUSED)
    once("dpsd", dpsd, fate=Fate.FLAGGED)
    assert once("dpsd", dpsd).fate is Fate.FLAGGED
    assert tried == ["pate", "dpsd", "dpsd", "dpsd"]
    once("pate", pate, made(key="c", method="pate"))  # another submission, of which another cell may be chosen
    once("pate", made(key="a", method="pate", accuracy=0.5))
    with mock.patch("bench.publishing.outcomes.program_digest", return_value="edited"):
        once("pate", pate)
    for path in (tmp_path / "publishing").iterdir():
        path.write_text("{")
    once("pate", pate)
    Outcomes(tmp_path).forget()
    once("pate", pate)
    assert tried[4:] == ["pate"] * 5


def test_checks_second_runs_and_replays_are_kept(tmp_path: Path) -> None:
    """The second command can make none of the three: each raises."""
    mine = asked(made(key="mine", method="pate"), overrides={})

    def items() -> list[Item]:
        found = Publication(added={"mine": (mine, Path())})
        verify(found, Outcomes(tmp_path), Progress())
        return found.items

    again = Item("rerun", "mine", Fate.PASSED, "the same")
    with all_pass_the_check(), mock.patch("bench.publishing.verify._again", return_value=again):
        first = items()
    assert [item.kind for item in first] == ["check", "rerun", "replay"]
    gone = {name: mock.Mock(side_effect=AssertionError(name)) for name in ("checked", "_again", "replayed")}
    with mock.patch.multiple("bench.publishing.verify", **gone):
        assert items() == first
