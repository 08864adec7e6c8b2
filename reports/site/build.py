"""The static site: index, method and record pages. It works offline; equal records give equal bytes."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bench.core.errors import BenchError
from bench.core.plain_files import read_plain
from bench.core.printable import page
from bench.interface.registry import METHODS
from bench.results.audited import with_audits
from bench.results.frame import row_key
from bench.results.record import Record
from bench.results.text import audited_text, epsilon_text
from bench.storage.files import writing
from reports import audits
from reports.leaderboard import Source
from reports.order import BUDGETS, ORDER, dataset_order
from reports.reported.numbers import Reported
from reports.site import record_pages
from reports.site.rows import (
    GOALS,
    Ranking,
    RowView,
    by_student,
    glance,
    method_href,
    page_name,
    rankings,
    record_href,
    small_print,
)  # fmt: skip
from reports.site.svg import ONLY_REPORTED, mark, row_axis, row_picture

HERE = Path(__file__).parent
MADE = ("records", "methods", "images", "raw")
"""Folders of generated files only."""


def write_site(folder: Path, source: Source) -> list[str]:
    """Write the site into ``folder / "site"`` and remove stale files; return its relative file names.

    Links in an older site are not followed. Raise :class:`bench.core.errors.BenchError` if the folder cannot be written
    or would be a linked one.
    """
    site = folder / "site"
    former = set(_files(site))
    names = []
    for name, data in build_site(source, folder):
        with writing(site / name):
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).unlink(missing_ok=True)
            with (site / name).open("xb") as file:
                file.write(data)
        names.append(name)
    for path in former - {site / name for name in names}:
        path.unlink()
    return names


def _files(site: Path) -> Iterator[Path]:
    """Yield the generated files of an older site, linked ones included; raise BenchError if a folder is a link."""
    tops = [site / name for name in ("assets", *MADE)]
    walked = [step for top in tops for step in os.walk(top)]
    for place in (site, *tops, *(Path(where, name) for where, folders, _ in walked for name in folders)):
        if place.is_symlink():
            raise BenchError(
                f"{place} is a link, and a site is not written through links. Remove it, or choose another folder with "
                "--out."
            )
    for where, _, files in walked:
        yield from (Path(where, name) for name in files if not where.startswith(str(tops[0])))


def build_site(source: Source, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a site for ``folder / "site"``."""
    records = {record.key: record for record in with_audits(source.shown(), source.audits)}
    every = rankings(source)
    pages = _Pages(folder.resolve(), source)
    for path in sorted((HERE / "assets").iterdir()):
        yield f"assets/{path.name}", path.read_bytes()
    methods = sorted({*METHODS.names(), *(record.method for record in records.values())})
    yield "index.html", pages.index(every, methods)
    yield "audits.html", pages.audits()
    of_method: dict[str, list[Record]] = defaultdict(list)
    seeds: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(records.values(), key=lambda r: (dataset_order(r.dataset), r.key)):
        of_method[record.method].append(record)
        seeds[row_key(record)].append(record)
    printed: dict[str, list[Reported]] = defaultdict(list)
    for number in source.reported:
        if number.method:
            printed[number.method].append(number)
    for name in sorted({*methods, *printed}):
        own = [(ranking, row) for ranking in every for row in ranking.rows if row.ours and row.name == name]
        yield f"methods/{page_name(name)}.html", pages.method(name, of_method[name], own, printed[name])
    lines = {key: f"index.html#row-{quote(page_name(row.keys[0]))}" for row in source.board.rows for key in row.keys}
    for key, record in sorted(records.items()):
        beside = sorted((r for r in seeds[row_key(record)] if r.key != key), key=lambda r: r.seed)
        yield f"records/{page_name(key)}.html", pages.record(record, beside, lines.get(key, ""))
    yield from sorted(pages.copies.items())


class _Pages:
    """Renders the pages; `copies` collects the linked files that are not beside the site."""

    def __init__(self, folder: Path, source: Source) -> None:
        self.copies: dict[str, bytes] = {}
        self._folder, self._source = folder, source
        self._audits, self._attacks = by_student(source.audits), by_student(source.attacks)
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        )  # fmt: skip
        self._environment.globals.update(
            method_href=method_href, record_href=record_href, goals=GOALS, axis=row_axis(), mark=mark,
            only_reported=ONLY_REPORTED, small_print=small_print,
        )  # fmt: skip
        self._environment.filters["paragraphs"] = record_pages.paragraphs

    def _render(self, template: str, **values: Any) -> bytes:
        return page(self._environment.get_template(template).render(**values))

    def index(self, every: Sequence[Ranking], methods: Sequence[str]) -> bytes:
        rows = [row for ranking in every for row in ranking.rows]
        choices = {
            "dataset": list(dict.fromkeys(ranking.dataset for ranking in every)),
            "unit": _distinct(ranking.unit for ranking in every),
            "public": _distinct(kind for row in rows for kind in row.public.split(" + ")),
            "preset": _distinct(row.preset for row in rows),
            "basis": _distinct(row.basis for row in rows),
        }
        return self._render(
            "index.html", root="", rankings=every, methods=methods, board=self._source.board, choices=choices,
            examples=_examples(), glance=glance(every), budgets=BUDGETS, order=ORDER,
            ours=sum(row.ours for row in rows), reported=sum(not row.ours for row in rows),
        )  # fmt: skip

    def audits(self) -> bytes:
        return self._render(
            "audits.html", root="", reading=audits.READING, tables=audits.tables(self._source.board)
        )  # fmt: skip

    def method(
        self,
        name: str,
        records: Sequence[Record],
        own: Sequence[tuple[Ranking, RowView]],
        printed: Sequence[Reported],
    ) -> bytes:
        method = METHODS.get(name) if name in METHODS else None
        done = [record for record in records if record.privacy is not None]
        shown = next(iter([*done, *records]), None)
        example = next((r for r in done if own and own[0][1].id == f"row-{page_name(r.key)}"), None)
        groups: dict[str, tuple[Ranking, list[RowView]]] = {}
        for ranking, row in own:
            groups.setdefault(ranking.id, (ranking, []))[1].append(row)
        return self._render(
            "method.html", root="../", name=name, shown=shown,
            texts=record_pages.method_texts(method) if method else (),
            facts=record_pages.method_facts(method, shown), groups=list(groups.values()),
            how=record_pages.how_to_read(own[0][1], example) if own and example else "",
            parts=record_pages.method_parts(shown),
            images=[image for record in records if (image := self._image(record))][:6],
            failed=[record for record in records if record.failure is not None],
            printed=record_pages.reported_table(printed) if printed else None,
        )  # fmt: skip

    def record(self, record: Record, beside: Sequence[Record], line: str) -> bytes:
        audits, attacks = self._audits[record.key], self._attacks[record.key]
        command, remark = record_pages.command_of(record)
        raw = [("this record", self._raw("records", record.key))]
        raw += [(f"audit {a.key.rsplit('--', 1)[-1]}", self._raw("audits", a.key)) for a in audits]
        raw += [(f"attack {a.attack}", self._raw("attacks", a.key)) for a in attacks]
        return self._render(
            "record.html", root="../", record=record, command=command, command_remark=remark, line=line, beside=beside,
            parts=record_pages.record_parts(record, audits, attacks), image=self._image(record),
            raw=[(label, href) for label, href in raw if href], picture=_picture(record),
        )  # fmt: skip

    def _raw(self, kind: str, key: str) -> str:
        home = self._source.homes.get(key)
        # Keys of audits and attacks are unchecked: read a plain file name only.
        if home is None or PurePosixPath(key).name != key:
            return ""
        path = home / kind / f"{key}.json"
        try:
            data = read_plain(path)
        except (OSError, ValueError):
            return ""
        if home.resolve() == self._folder:
            return f"../{kind}/{quote(path.name)}"
        name = f"raw/{kind}/{page_name(key)}.json"
        self.copies[name] = data
        return quote(name)

    def _image(self, record: Record) -> tuple[str, str] | None:
        """Return address and text of a record's image grid; None if it is missing or changed."""
        home = self._source.homes.get(record.key)
        if record.image_grid is None or home is None:
            return None
        name = f"images/{page_name(record.key)}.png"
        if name not in self.copies:
            path = (home / record.image_grid.file).resolve()
            if not path.is_relative_to(home.resolve()) or path.suffix != ".png":
                return None
            try:
                data = read_plain(path)
            except (OSError, ValueError):
                return None
            if hashlib.sha256(data).hexdigest() != record.image_grid.sha256:
                return None
            self.copies[name] = data
        target = "no privacy" if record.epsilon is None else f"epsilon {record.epsilon:g} {record.basis.value}"
        return quote(name), f"released images: {record.dataset}, {target}, seed {record.seed}"


def _distinct(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if value})


def _examples() -> list[tuple[Markup, str]]:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("the proof covers the claim; the audited epsilon is 0.5", dict(claimed=10.0, proven=5.0, audited=0.5)),
        ("the proof does not cover the claim", dict(claimed=1.0, proven=29.0)),
        ("proven, but beyond the axis", dict(claimed=1.0, proven=1e6)),
        ("nothing finite is proven", dict(claimed=1.0, proven=float("inf"))),
        ("reported by a paper, not run here", dict(claimed=10.0, hollow=True, covered=True)),
        ("reported, and the claim does not follow", dict(claimed=1.0, hollow=True, covered=False)),
    ]
    return [(row_picture(text, **case), text) for text, case in cases]


def _picture(record: Record) -> tuple[Markup, str] | None:
    p = record.privacy
    if p is None:
        return None
    said = (
        f"claimed {epsilon_text(p.claimed.epsilon)}, proven {epsilon_text(p.proven.epsilon, 'up')}, "
        f"audited {audited_text(p.audited)}"
    )
    if record.utility is not None:
        said += f"; accuracy {100 * record.utility.accuracy:.2f}%"
    audited = None if p.audited is None else p.audited.epsilon
    return row_picture(said, claimed=p.claimed.epsilon, proven=p.proven.epsilon, audited=audited), said
