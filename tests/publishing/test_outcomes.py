"""A publication that was stopped continues where it was."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from bench.publishing.outcomes import Outcomes
from bench.publishing.publish import Fate, Item
from bench.results.record import Record
from bench.storage.interrupts import Stopped
from helpers.records import record as made


def test_a_stopped_publication_repeats_nothing_that_passed(tmp_path: Path) -> None:
    pate, dpsd = made(key="a", method="pate"), made(key="b", method="dpsd")
    tried: list[str] = []

    def once(method: str, *records: Record, fate: Fate = Fate.PASSED) -> Item:
        def make() -> Item:
            tried.append(method)
            if fate is Fate.ADDED:
                raise Stopped(15)
            return Item("check", method, fate, "why")

        return Outcomes(tmp_path).once("check", method, records, make)

    once("pate", pate)
    with pytest.raises(Stopped):
        once("dpsd", dpsd, fate=Fate.ADDED)
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
