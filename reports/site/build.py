"""The static site: index, method and record pages. It works offline; equal records give identical bytes."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from bench.core.errors import BenchError
from bench.core.grouping import grouped
from bench.core.plain_files import read_plain
from bench.core.printable import counted, page
from bench.interface.registry import METHODS
from bench.reports import audits
from bench.reports.leaderboard import Source
from bench.reports.order import BUDGETS, dataset_order
from bench.reports.reported.numbers import Reported
from bench.reports.site import meaning, record_pages
from bench.reports.site.addresses import code_href, code_of, method_href, page_name, record_href
from bench.reports.site.front_page import answer, failing, glance, small_print
from bench.reports.site.rows import GROUPS, Ranking, RowView, interval, rankings
from bench.reports.site.svg import mark, row_axis, row_picture
from bench.reports.site.table_data import table_data
from bench.reports.site.terms import TERMS, plain_table, term
from bench.results.attack_record import AttackRecord
from bench.results.audited import by_student, with_audits
from bench.results.derived import row_key
from bench.results.pictures import read_picture
from bench.results.record import Record
from bench.results.replays import replay_of
from bench.results.text import audited_text, claimed_text, epsilon_text
from bench.storage.files import writing

HERE = Path(__file__).parent
MADE = ("records", "methods", "datasets", "images", "raw", "code")
"""Folders that contain only generated files."""
NEIGHBOURS = 5
"""Links to other seeds in each direction; linking all would make the size of the site quadratic in their number."""


def write_site(folder: Path, source: Source) -> list[str]:
    """Write the site into ``folder / "site"``, remove stale files, and return its relative file names.

    Links in an older site are never followed. Raise :class:`bench.core.errors.BenchError` if the folder cannot be
    written or is a link.
    """
    site = folder / "site"
    former = set(_files(site))
    names, made = [], set[Path]()
    if source.owner_only:
        with writing(site):
            site.mkdir(parents=True, exist_ok=True)
            site.chmod(0o700)  # an older site may have been readable by everyone
    for name, data in build_site(source):
        path = site / name
        names.append(name)
        if _is_current(path, data):
            continue
        with writing(path):
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            path.unlink(missing_ok=True)
            with path.open("xb") as file:
                file.write(data)
    for path in former - {site / name for name in names}:
        path.unlink()
    return names


def _is_current(path: Path, data: bytes) -> bool:
    """Return whether the file `path`, no link, already holds `data`: most pages of an older site do."""
    with suppress(OSError):
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_size == len(data) and path.read_bytes() == data
    return False


def _files(site: Path) -> Iterator[Path]:
    """Yield the generated files of an older site, including links; raise BenchError if a folder is a link."""
    tops = [site / name for name in ("assets", *MADE)]
    walked = [step for top in tops for step in os.walk(top)]
    for place in (site, *tops, *(Path(where, name) for where, folders, _ in walked for name in folders)):
        if place.is_symlink():
            raise BenchError(
                f"{place} is a link, and the site is not written through links. Remove it, or choose "
                "another folder with --out."
            )
    for where, _, files in walked:
        yield from (Path(where, name) for name in files if not where.startswith(str(tops[0])))


def build_site(source: Source) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of the site."""
    records = {record.key: record for record in with_audits(source.shown(), source.audits)}
    every = rankings(source)
    pages = _Pages(source)
    for path in sorted((HERE / "assets").iterdir()):
        yield f"assets/{path.name}", path.read_bytes()
    methods = sorted({*METHODS.names(), *(record.method for record in records.values())})
    yield "index.html", pages.index(every, methods)
    for ranking in every:
        yield ranking.href, pages.dataset(ranking)
    yield "audits.html", pages.audits()
    yield "meaning.html", pages.meaning()
    ordered = sorted(records.values(), key=lambda r: (dataset_order(r.dataset), r.key))
    of_method = grouped((record.method, record) for record in ordered)
    seeds = grouped((row_key(record), record) for record in ordered)
    printed = grouped((number.method, number) for number in source.reported if number.method)
    for name in sorted({*methods, *printed}):
        own = [(ranking, row) for ranking in every for row in ranking.rows if row.ours and row.name == name]
        yield f"methods/{page_name(name)}.html", pages.method(name, of_method[name], own, printed[name])
    lines = {key: (ranking, row) for ranking in every for row in ranking.rows for key in row.keys}
    for group in seeds.values():
        group.sort(key=lambda record: record.seed)
        links = [(record_href(record.key), record.seed) for record in group]
        for i, record in enumerate(group):
            key, first = record.key, max(i - NEIGHBOURS, 0)
            beside = [*links[first:i], *links[i + 1 : i + 1 + NEIGHBOURS]]
            yield f"records/{page_name(key)}.html", pages.record(record, beside, len(group), lines.get(key))
    yield from sorted(pages.copies.items())
    yield from pages.archives()


class _Pages:
    """Renders the pages; `copies` collects the files that they link to."""

    def __init__(self, source: Source) -> None:
        self.copies: dict[str, bytes] = {}
        self._raw: dict[str, dict[str, bytes]] = defaultdict(dict)
        self._source = source
        self._audits, self._attacks = by_student(source.audits), by_student(source.attacks)
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        )  # fmt: skip
        self._environment.globals.update(
            method_href=method_href, record_href=record_href, axis=row_axis(), mark=mark, interval=interval,
            small_print=small_print, terms=TERMS,
        )  # fmt: skip
        self._environment.filters.update(paragraphs=record_pages.paragraphs, term=term)
        macros = vars(self._environment.get_template("macros.html").module)
        self._environment.globals.update(glossary=lru_cache(macros["glossary"]), plain_table=plain_table)

    def _render(self, template: str, **values: Any) -> bytes:
        return page(self._environment.get_template(template).render(**values))

    def index(self, every: Sequence[Ranking], methods: Sequence[str]) -> bytes:
        rows = [row for ranking in every for row in ranking.rows]
        return self._render(
            "index.html", root="", rankings=every, others=[ranking for ranking in every if not ranking.ours],
            methods=methods, names=sorted({row.name for row in rows}),
            kinds=sorted({kind for row in rows for kind in row.public}),
            presets=sorted({row.preset for row in rows if row.preset}),
            answer=answer(every), board=self._source.board, glance=glance(every), failing=failing(every),
            budgets=BUDGETS, data=table_data(every),
            ours=sum(row.ours for row in rows), printed=sum(not row.ours for row in rows),
        )  # fmt: skip

    def dataset(self, ranking: Ranking) -> bytes:
        bands = [(heading, [row for row in ranking.rows if row.group == heading]) for heading in GROUPS]
        first = answer([ranking])
        return self._render(
            "dataset.html", root="../", ranking=ranking, bands=[band for band in bands if band[1]], answer=first
        )  # fmt: skip

    def audits(self) -> bytes:
        board = self._source.board
        return self._render(
            "audits.html", root="", reading=audits.READING, tables=audits.tables(board),
            informed_reading=audits.INFORMED_READING, informed=audits.informed_tables(board),
        )  # fmt: skip

    def meaning(self) -> bytes:
        rows, found = self._source.board.rows, meaning.successes(self._source)
        return self._render(
            "meaning.html", root="", delta=meaning.DELTA, naming=meaning.naming_picture(rows),
            drawn=counted(len(meaning.drawn(rows)), "row"), table=meaning.gaussian_table(), at=meaning.said_at,
            found=found, measured=meaning.success_picture(found), counts=Counter(one.kind.name for one in found),
            above=sum(one.exceeds for one in found), measurements=counted(len(found), "measurement"),
        )  # fmt: skip

    def method(
        self, name: str, records: Sequence[Record], own: Sequence[tuple[Ranking, RowView]], printed: Sequence[Reported]
    ) -> bytes:
        if source := code_of(name):
            self.copies[code_href(name)] = source[1].encode()
        groups: dict[str, tuple[Ranking, list[RowView]]] = {}
        for ranking, row in own:
            groups.setdefault(ranking.id, (ranking, []))[1].append(row)
            groups[ranking.id][1].sort(key=lambda row: (row.asked.sort is None, row.asked.sort, row.basis))
        # Pick a typical run: the middle budget of the first data set, and the seed with the median accuracy.
        first = next(iter(groups.values()))[1] if groups else []
        middle = first[(len(first) - 1) // 2] if first else None
        keys = set(middle.keys) if middle else set()
        seeds = [record for record in records if record.key in keys]
        shown = _median(seeds) or next(iter(records), None)
        return self._render(
            "method.html", root="../", name=name, shown=shown,
            texts=record_pages.method_texts(name),
            facts=record_pages.method_facts(name, shown, code_href(name) if source else ""),
            groups=list(groups.values()), how=record_pages.how_to_read(middle, shown) if middle and shown else "",
            parts=record_pages.method_parts(shown),
            images=list(islice(filter(None, map(self._image, records)), 6)),
            failed=[record for record in records if record.failure is not None],
            printed=record_pages.reported_table(printed) if printed else None,
        )  # fmt: skip

    def record(
        self, record: Record, beside: Sequence[tuple[str, int]], seeds: int, line: tuple[Ranking, RowView] | None
    ) -> bytes:
        audits, attacks = self._audits[record.key], self._attacks[record.key]
        replay = replay_of(self._source.replays, record.method, record.dataset, [record.key])
        kept = [("records", record.key), *(("audits", a.key) for a in audits), *(("attacks", a.key) for a in attacks)]
        raw = [self._keep(record.dataset, kind, key) for kind, key in kept]
        content = record_pages.record_page(
            record, record_pages.record_parts(record, audits, attacks, replay), line, beside, seeds,
            raw=next(filter(None, raw), ""), picture=_picture(record, line[1] if line else None),
            image=self._image(record), made=list(filter(None, map(self._attack_picture, attacks))),
        )  # fmt: skip
        before, between, after = self._frame
        return page(f"{before}{escape(record.key)}, a record{between}{content}{after}")

    @cached_property
    def _frame(self) -> list[str]:
        """The parts of a page of ``records/`` before its title, between title and content, and after."""
        return self._environment.get_template("frame.html").render(root="../", title="\0", content="\0").split("\0")

    def _keep(self, dataset: str, kind: str, key: str) -> str:
        """Put a raw file into the archive of its data set, and return the archive's address, or "" without the file."""
        home = self._source.homes.get(key)
        if home is None or "/" in key:  # keys of audits and attacks are untrusted
            return ""
        try:
            data = read_plain(home / kind / f"{key}.json")
        except (OSError, ValueError):
            return ""
        name = f"raw/{page_name(dataset)}.zip"
        self._raw[name][f"{kind}/{page_name(key)}.json"] = data
        return quote(name)

    def archives(self) -> Iterator[tuple[str, bytes]]:
        """Yield the archives of raw records, audits and attacks, one per data set."""
        for name, files in sorted(self._raw.items()):
            packed = BytesIO()
            with ZipFile(packed, "w", ZIP_DEFLATED) as archive:
                for path, data in sorted(files.items()):
                    # A fixed time: equal records give equal bytes.
                    archive.writestr(ZipInfo(path), data, ZIP_DEFLATED, 1)
            yield name, packed.getvalue()

    def _image(self, record: Record) -> tuple[str, str] | None:
        """Return the address and text of a record's image grid, or None if it is missing or modified."""
        home = self._source.homes.get(record.key)
        if record.image_grid is None or home is None:
            return None
        name = f"images/{page_name(record.key)}.png"
        if name not in self.copies:
            path = home / record.image_grid.file
            if not _resolved(path.parent).is_relative_to(_resolved(home)) or path.suffix != ".png":
                return None  # a link may lead out of the run directory
            try:
                data = read_plain(path)
            except (OSError, ValueError):
                return None
            if hashlib.sha256(data).hexdigest() != record.image_grid.sha256:
                return None
            self.copies[name] = data
        target = "no privacy" if record.epsilon is None else f"epsilon {record.epsilon:g} {record.basis.value}"
        return quote(name), f"released images: {record.dataset}, {target}, seed {record.seed}"

    def _attack_picture(self, attack: AttackRecord) -> tuple[str, str] | None:
        """Return the address and text of an attack's picture, or None if it is missing or may not be published."""
        home = self._source.homes.get(attack.key)
        if home is None:
            return None
        try:
            data = read_picture(home, attack)
        except (OSError, ValueError):
            return None
        name = f"images/{page_name(attack.key)}.png"
        self.copies[name] = data
        return quote(name), f"{attack.attack} ({attack.goal}) on this student and its controls"


@lru_cache(maxsize=16)
def _resolved(folder: Path) -> Path:
    return folder.resolve()


def _median(records: Sequence[Record]) -> Record | None:
    done = sorted((r.utility.accuracy, r.key, r) for r in records if r.utility is not None)
    return done[(len(done) - 1) // 2][2] if done else None


def _picture(record: Record, row: RowView | None) -> tuple[Markup, str] | None:
    p = record.privacy
    if p is None:
        return None
    said = (
        f"claimed {claimed_text(p.claimed.epsilon, p.proven.epsilon)}, proven {epsilon_text(p.proven.epsilon, 'up')}, "
        f"audited {audited_text(p.audited)}"
    )
    if record.utility is not None:
        said += f"; accuracy {100 * record.utility.accuracy:.2f}%"
    if row is not None and row.claim:
        said += f". The claim: {row.claim} ({row.why})"
    audited = None if p.audited is None else p.audited.epsilon
    covered = row is None or not row.fails
    return row_picture(said, claimed=p.claimed.epsilon, proven=p.proven.epsilon, audited=audited, covered=covered), said
