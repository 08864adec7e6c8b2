"""The static site of the leaderboard: an index with every ranking, a page for each method and one for each record.

It opens from disk and asks no network. The same records give the same bytes. Every text of a record is escaped by the
templates; the names of pages come from :func:`reports.site.rows.page_name`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bench.results.attack_record import AttackRecord, AuditRecord, R
from bench.results.audited import with_audits
from bench.results.record import Record
from bench.results.text import epsilon_text
from bench.storage.files import writing
from reports.leaderboard import Board, row_key
from reports.order import ORDER, dataset_order
from reports.reported.numbers import Reported
from reports.site import record_pages as site_pages
from reports.site.best_rows import BUDGETS, glance
from reports.site.method_docs import MethodSource, method_sources
from reports.site.rows import GOALS, Material, Ranking, RowView, method_href, page_name, rankings, record_href
from reports.site.svg import ONLY_REPORTED, mark, row_axis, row_picture

HERE = Path(__file__).parent
ASSETS = ("board.css", "board.js")
PLOTLY = "assets/plotly.min.js"
PLOTLY_IS_HERE = "assets/plotly.txt"
"""A site may be committed without these two; its plots are then the drawn ones. The script asks for the small one."""
LIST = "files.json"
"""Names every file of the site, so that the next build knows which it may remove."""


@dataclass(slots=True)
class Source:
    """What a site is built from. `homes` says in which run directory the record, audit or attack of a key lies."""

    board: Board
    records: Sequence[Record]
    audits: Sequence[AuditRecord] = ()
    attacks: Sequence[AttackRecord] = ()
    reported: Sequence[Reported] = ()
    homes: dict[str, Path] = field(default_factory=dict)


def write_site(folder: Path, source: Source) -> list[str]:
    """Write the site into ``folder / "site"``; return the names of its files, relative to it.

    A file that is there with the same bytes is left alone. Files of a former build that this one does not have are
    removed, and nothing else. Raises :class:`bench.core.errors.BenchError` where the folder cannot be written.
    """
    site = folder / "site"
    former = _listed(site)
    names = []
    for name, data in build_site(source, folder):
        _write(site / name, data)
        names.append(name)
    listed = sorted(names)
    _write(site / LIST, (json.dumps({"files": listed}, indent=0) + "\n").encode())
    for name in former - set(listed):
        (site / name).unlink(missing_ok=True)
    return [*names, LIST]


def build_site(source: Source, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a site that will lie in ``folder / "site"``."""
    refused = {key for key, _ in source.board.refused}
    shown = [record for record in source.records if record.key not in refused]
    records = {record.key: record for record in with_audits(shown, source.audits)}
    audits, attacks = _by_student(source.audits), _by_student(source.attacks)
    material = Material(source.board, records, attacks, frozenset(audits), source.reported)
    every = rankings(material)
    sources = method_sources()
    pages = _Pages(folder, source.homes)
    for name in ASSETS:
        yield f"assets/{name}", (HERE / "assets" / name).read_bytes()
    yield PLOTLY, _plotly()
    yield PLOTLY_IS_HERE, b"plotly.min.js lies beside this file\n"
    methods = sorted({*sources, *(record.method for record in records.values())})
    yield "index.html", pages.index(every, methods, source.board)
    of_method: dict[str, list[Record]] = defaultdict(list)
    seeds: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(records.values(), key=lambda r: (dataset_order(r.dataset), r.key)):
        of_method[record.method].append(record)
        seeds[row_key(record)].append(record)
    printed: dict[str, list[Reported]] = defaultdict(list)
    for number in source.reported:
        if number.method:
            printed[number.method].append(number)
    rows: dict[str, list[tuple[Ranking, RowView]]] = defaultdict(list)
    for ranking in every:
        for row in ranking.rows:
            rows[row.name].append((ranking, row))
    for name in sorted({*methods, *printed}):
        yield (
            f"methods/{page_name(name)}.html",
            pages.method(name, sources.get(name), of_method[name], rows[name], printed[name]),
        )
    lines = {key: f"index.html#row-{quote(page_name(row.keys[0]))}" for row in source.board.rows for key in row.keys}
    for key, record in sorted(records.items()):
        beside = sorted((r for r in seeds[row_key(record)] if r.key != key), key=lambda r: r.seed)
        page = pages.record(record, audits[key], attacks[key], beside, lines.get(key, ""))
        yield f"records/{page_name(key)}.html", page
    yield from pages.copied()


class _Pages:
    """Renders the pages; remembers which files they link to that have to be copied into the site."""

    def __init__(self, folder: Path, homes: dict[str, Path]) -> None:
        self._folder, self._homes = folder.resolve(), homes
        self._copies: dict[str, Path] = {}
        self._images: dict[str, bytes] = {}
        environment = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        )  # fmt: skip
        environment.globals.update(
            method_href=method_href, record_href=record_href, goals=GOALS, axis=row_axis(), mark=mark,
            only_reported=ONLY_REPORTED,
        )  # fmt: skip
        environment.filters["paragraphs"] = site_pages.paragraphs
        environment.tests["link"] = lambda cell: isinstance(cell, site_pages.Link)
        self._index = environment.get_template("index.html")
        self._method = environment.get_template("method.html")
        self._record = environment.get_template("record.html")

    def index(self, every: Sequence[Ranking], methods: Sequence[str], board: Board) -> bytes:
        rows = [row for ranking in every for row in ranking.rows]
        choices = {
            "dataset": list(dict.fromkeys(ranking.dataset for ranking in every)),
            "unit": _distinct(ranking.unit for ranking in every),
            "public": _distinct(kind for row in rows for kind in row.public.split(" + ")),
            "preset": _distinct(row.preset for row in rows),
            "basis": _distinct(row.basis for row in rows),
        }
        text = self._index.render(
            root="", rankings=every, methods=methods, board=board, choices=choices, examples=_examples(),
            glance=glance(every), budgets=BUDGETS, order=ORDER,
            ours=sum(row.ours for row in rows), reported=sum(not row.ours for row in rows),
        )  # fmt: skip
        return text.encode("utf-8", "replace")

    def method(
        self,
        name: str,
        source: MethodSource | None,
        records: Sequence[Record],
        rows: Sequence[tuple[Ranking, RowView]],
        printed: Sequence[Reported],
    ) -> bytes:
        done = [record for record in records if record.privacy is not None]
        shown = done[0] if done else records[0] if records else None
        own = [(ranking, row) for ranking, row in rows if row.ours]
        example = next((r for r in done if own and own[0][1].id == f"row-{page_name(r.key)}"), None)
        sections = []
        if shown is not None and shown.privacy is not None:
            epsilons = site_pages.record_sections(shown, (), (), ())[1]
            ledger = site_pages.Section("ledger", "Ledger of one run", (site_pages.ledger_table(shown),))
            sections = [site_pages.Section("epsilons", "Epsilons of one run", epsilons.tables), ledger]
        groups: dict[str, tuple[Ranking, list[RowView]]] = {}
        for ranking, row in own:
            groups.setdefault(ranking.id, (ranking, []))[1].append(row)
        text = self._method.render(
            root="../", name=name, source=source, facts=site_pages.method_facts(name, source, shown), shown=shown,
            how=site_pages.how_to_read(own[0][1], example) if own and example else "", groups=list(groups.values()),
            sections=sections, images=[image for record in records if (image := self._image(record))][:6],
            failed=[record for record in records if record.failure is not None],
            printed=site_pages.reported_table(printed) if printed else None,
        )  # fmt: skip
        return text.encode("utf-8", "replace")

    def record(
        self,
        record: Record,
        audits: Sequence[AuditRecord],
        attacks: Sequence[AttackRecord],
        beside: Sequence[Record],
        line: str,
    ) -> bytes:
        command, remark = site_pages.command_of(record)
        raw = [("this record", self._raw("records", record.key))]
        raw += [(f"audit {a.key.rsplit('--', 1)[-1]}", self._raw("audits", a.key)) for a in audits]
        raw += [(f"attack {a.attack}", self._raw("attacks", a.key)) for a in attacks]
        text = self._record.render(
            root="../", record=record, command=command, command_remark=remark, image=self._image(record), line=line,
            sections=site_pages.record_sections(record, audits, attacks, beside),
            raw=[(label, href) for label, href in raw if href], picture=_picture(record),
        )  # fmt: skip
        return text.encode("utf-8", "replace")

    def copied(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files that pages link to and that do not lie beside the site."""
        for name, path in sorted(self._copies.items()):
            yield name, path.read_bytes()
        yield from sorted(self._images.items())

    def _raw(self, kind: str, key: str) -> str:
        """Return the address of the JSON of `key`, relative to the site; empty where there is no such file."""
        home = self._homes.get(key)
        # The key of an audit or attack is not checked against its file: it must be the plain name of one.
        if home is None or PurePosixPath(key).name != key:
            return ""
        path = home / kind / f"{key}.json"
        if not path.is_file():
            return ""
        if home.resolve() == self._folder:
            return f"../{kind}/{quote(path.name)}"
        name = f"raw/{kind}/{page_name(key)}.json"
        self._copies[name] = path
        return quote(name)

    def _image(self, record: Record) -> tuple[str, str] | None:
        """Return address and text of a record's image grid of released images; None where it is not whole."""
        home = self._homes.get(record.key)
        if record.image_grid is None or home is None:
            return None
        name = f"images/{page_name(record.key)}.png"
        if name not in self._images:
            path = (home / record.image_grid.file).resolve()
            if not path.is_relative_to(home.resolve()) or path.suffix != ".png" or not path.is_file():
                return None
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != record.image_grid.sha256:
                return None
            self._images[name] = data
        asked = "no privacy" if record.epsilon is None else f"epsilon {record.epsilon:g} {record.basis.value}"
        return quote(name), f"released images: {record.dataset}, {asked}, seed {record.seed}"


def _by_student(rows: Iterable[R]) -> dict[str, list[R]]:
    found: dict[str, list[R]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.key):
        found[row.student].append(row)
    return found


def _distinct(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if value})


def _examples() -> list[tuple[object, str]]:
    """Return the pictures of the legend, each with what it means."""
    inf = float("inf")
    cases: list[tuple[dict[str, float | None], str]] = [
        (dict(claimed=10.0, proven=5.0, audited=0.5), "the proof covers the claim; an audit has seen 0.5"),
        (dict(claimed=1.0, proven=29.0, audited=None), "the proof does not cover the claim"),
        (dict(claimed=1.0, proven=1e6, audited=None), "proven, but beyond the axis"),
        (dict(claimed=1.0, proven=inf, audited=None), "nothing finite is proven"),
    ]
    pictures: list[tuple[object, str]] = []
    for case, said in cases:
        picture = row_picture(said, claimed=case["claimed"], proven=case["proven"], audited=case["audited"])
        pictures.append((picture, said))
    said = "reported by a paper, not run here"
    pictures.append((row_picture(said, claimed=10.0, proven=None, audited=None, hollow=True, covered=True), said))
    said = "reported, and the claim does not follow"
    pictures.append((row_picture(said, claimed=1.0, proven=None, audited=None, hollow=True, covered=False), said))
    return pictures


def _picture(record: Record) -> tuple[object, str] | None:
    """Return the picture of a record's three epsilons, and the same in words; None where it has none."""
    p = record.privacy
    if p is None:
        return None
    audited = None if p.audited is None else p.audited.epsilon
    said = (
        f"claimed {epsilon_text(p.claimed.epsilon)}, proven {epsilon_text(p.proven.epsilon, 'up')}, "
        f"audited {epsilon_text(audited, 'down')}"
    )
    if record.utility is not None:
        said += f"; accuracy {100 * record.utility.accuracy:.2f}%"
    return row_picture(said, claimed=p.claimed.epsilon, proven=p.proven.epsilon, audited=audited), said


def _plotly() -> bytes:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).encode()


def _write(path: Path, data: bytes) -> None:
    """Write a file that can be made again at any time: whole, but not synced, as there may be thousands."""
    with writing(path):
        if path.is_file() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{hashlib.sha256(path.name.encode()).hexdigest()[:12]}.tmp")
        aside.write_bytes(data)
        os.replace(aside, path)


def _listed(site: Path) -> set[str]:
    """Return the files that a former build lists and that are within the site."""
    try:
        names = json.loads((site / LIST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    if not isinstance(names, list):
        return set()
    parts = [(name, PurePosixPath(name).parts) for name in names if isinstance(name, str)]
    return {name for name, part in parts if part and ".." not in part and not name.startswith("/")}
