"""Records, attacks, audits and reported numbers for the tests of the site, and a reader of its pages."""

from __future__ import annotations

import json
import math
import os
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urldefrag, urlsplit

from bench.core.rows import Change, Estimated
from bench.interface import Adjacency, PrivacyUnit, PublicKind
from bench.reports.leaderboard import Source
from bench.reports.reported.numbers import Reported, Verdict
from bench.results.attack_record import AttackRecord, AuditRecord, Channel, Scores
from bench.results.record import Record, Status
from helpers.pairs import pair_audit, release
from helpers.records import failed, provenance, record

NASTY = "<script>alert(1)</script></script><!-- \"'>&amp; {{ 7*7 }}\n=HYPERLINK(1)|x"
LINKS = "`[a](http://evil.example) ![b](//evil.example/b.png) \\[c](http://evil.example) https://evil.x www.evil.x`"
"""What makes a link or an image of Markdown, on GitHub too."""
UNSEEN = frozenset({"meta", "link", "col", "img", "input", "br"})

PAPERS = (
    "https://arxiv.org/abs/", "https://doi.org/10.", "https://openreview.net/forum?id=", "https://eprint.iacr.org/",
    "https://github.com/dihjiang/DP-kernel",
)  # fmt: skip
"""Where links may lead that leave the site."""


def attack(student: str, **changes: object) -> AttackRecord:
    given: dict[str, object] = {
        "key": f"{student}--mi-face-1", "student": student, "status": Status.DONE, "attack": "mi-face",
        "attack_version": 1, "goal": "inversion", "dataset": "mnist", "preset": "quick", "config": {}, "seed": 0,
        "targets": {
            "student": Scores(
                metrics={
                    "committee top-1": Estimated(value=0.9, low=0.8, high=1.0, n=10),
                    "committee top-1 above counterfactual": Estimated(value=0.25, low=0.1, high=0.4, n=10),
                },
                accuracy=0.95,
            ),
            "counterfactual": Scores(metrics={"committee top-1": Estimated(value=0.65, n=10)}),
        },
        "provenance": provenance(),
    }  # fmt: skip
    return AttackRecord.model_validate({**given, **changes})


def audit(student: str) -> AuditRecord:
    channel = Channel(name="student", family="outlier", canaries=1000, guesses=100, correct=80, epsilon=0.7, cap=3.2)
    return AuditRecord(
        key=f"{student}--audit-1", student=student, status=Status.DONE, method="pate", dataset="mnist",
        unit=PrivacyUnit.RECORD, adjacency=Adjacency.REPLACE, delta=1e-5, confidence=0.95,
        plan={"canaries": 1000}, runs=1, channels=[channel], epsilon=0.7, claimed=10.0, allowed=4.0,
        power=[channel], provenance=provenance(),
    )  # fmt: skip


def reported(**changes: object) -> Reported:
    given: dict[str, object] = {
        "paper": "dgd", "table": "I", "row": "Our DGD", "column": "MNIST", "system": "DGD", "method": "dgd",
        "dataset": "mnist", "setting": "", "unit": "record", "public_data": "none",
        "public_kinds": (PublicKind.NONE,), "epsilon": 10.0, "delta": 1e-5,
        "measure": "accuracy", "value": 97.4, "verdict": Verdict.UNSOUND, "reason": "the generator sees a classifier",
        "source": "Section III",
    }  # fmt: skip
    return Reported(**{**given, **changes})  # type: ignore[arg-type]


def records() -> list[Record]:
    """Return rows of every kind: covered, uncovered, unbounded, refuted, of other units, failed, with nasty texts."""
    return [
        *(record(seed=seed, accuracy=0.94 + seed / 100) for seed in range(3)),
        record(method="dpsd", claimed=1.0, proven=29.0),
        record(method="far", claimed=1.0, proven=1.8e7),
        record(method="dgd", bypasses=("it saw everything",)),
        record(method="nonprivate", epsilon=None, claimed=math.inf, bypasses=("all",), accuracy=0.99),
        record(method="fed-dpsd", unit=PrivacyUnit.CLIENT),
        record(method="dpsd-label", unit=PrivacyUnit.QUERY_LABEL),
        record(
            method=NASTY, key="nasty", public_data=NASTY, bypasses=(NASTY,), config={NASTY: NASTY}, notes=[NASTY],
            reduced=[Change.of(NASTY, 1, 2)], citation=NASTY, dataset_revision=NASTY,
        ),
        failed(NASTY, method="broken", key="broken"),
    ]  # fmt: skip


def source(**changes: object) -> Source:
    found = records()
    pate, dpsd = found[0].key, found[3].key
    audits = [
        audit(pate),
        pair_audit(release(0.0, pair=NASTY, seen=NASTY, power=0.4), student="nasty", bypassed=NASTY, allowed=math.inf),
    ]
    given: dict[str, object] = {
        "records": found,
        "audits": audits,
        "attacks": [
            attack(pate),
            attack(pate, key=f"{pate}--gmi-1", attack="gmi", no_power="it does not break the baseline"),
            attack(dpsd, no_power=NASTY),
        ],
        "reported": [
            reported(),
            reported(system=NASTY, method=None, reason=NASTY, source=NASTY, verdict=Verdict.UNCLEAR, epsilon=None),
            reported(system="DP-SGD", method="dp-sgd", verdict=Verdict.SOUND, paper="pate", table="text", value=97.0),
            reported(dataset="svhn", system="PATE", method="pate", verdict=Verdict.SOUND),
            reported(system="Baseline", method="nonprivate", unit="none", epsilon=math.inf, verdict=Verdict.NONE),
            reported(measure="drop", value=1.2),
        ],
    }
    return Source(**{**given, **changes})  # type: ignore[arg-type]


class Page(HTMLParser):
    """What a browser would make of a page: elements, anchors, links and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self._texts: list[str] = []
        self.feed(text)
        self.text = "".join(self._texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append((tag, found))
        if found.get("id"):
            self.ids.append(str(found["id"]))
        for name in ("href", "src", "data"):
            if found.get(name):
                self.links.append(str(found[name]))

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


EMPTY: dict[str, Any] = {"rows": [], "rankings": {}}


def rows_of(site: Path) -> dict[str, Any]:
    """Return what the index gives its table."""
    text = (site / "index.html").read_text(encoding="utf-8")
    return json.loads(text.partition('id="data">')[2].partition("</script>")[0])


_ATTRIBUTE = re.compile(r'\s(id|href|src|data)="([^"]*)"')  # the templates escape quotes in texts


def dead_links(site: Path) -> list[str]:
    """Return every link of the site that leaves its folder, or leads to no file, place in a page or row of the table.

    Links to papers are not dead.
    """
    site = site.resolve()
    files = {str(path): path for path in site.rglob("*") if path.is_file()}
    index = site / "index.html"
    ids, links = dict[Path, set[str]](), dict[Path, set[str]]()
    for path in site.rglob("*.html"):
        found = [(name, unescape(value)) for name, value in _ATTRIBUTE.findall(path.read_text(encoding="utf-8"))]
        ids[path] = {value for name, value in found if name == "id"}
        links[path] = {value for name, value in found if name != "id" and value}
    table = rows_of(site) if "data" in ids[index] else EMPTY
    known = {
        "row": {row["id"] for row in table["rows"]},
        "method": {row["method"] for row in table["rows"]},
        "dataset": table["rankings"],
    }
    links[index].update(part[1] for row in table["rows"] for cell in _cells(row) for part in cell)

    def alive(path: Path, link: str) -> bool:
        address, fragment = urldefrag(link)
        target = files.get(os.path.normpath(path.parent / unquote(address))) if address else path
        if urlsplit(address).scheme or target is None:
            return link == "data:," or link.startswith(PAPERS)
        if target == index and "=" in fragment:
            return all(value in known[name] for name, value in parse_qsl(fragment))
        return not fragment or target not in ids or unquote(fragment) in ids[target]

    return [f"{path.name}: {link}" for path in links for link in sorted(links[path]) if not alive(path, link)]


def _cells(row: dict[str, Any]) -> list[list[list[str]]]:
    """Return the linked cells of a row of the table."""
    cells = [[["", row["href"]]] * bool(row["href"]), *(row[name] for name in row if name.endswith("Cell"))]
    cells += row["details"]
    return [[part for part in cell if isinstance(part, list)] for cell in cells if isinstance(cell, list)]
