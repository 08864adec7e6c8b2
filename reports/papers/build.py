"""Write the papers' tables and figures from records: files, captions and an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.core.errors import BenchError
from bench.core.printable import page
from bench.reports.leaderboard import cells_of
from bench.reports.papers.coverage import cells_of_item
from bench.reports.papers.evidence import Evidence, Found
from bench.reports.papers.notes import Left, Marks, commands_of, left_out, note, shown_panels, shown_table
from bench.reports.papers.spec import (
    Attacked,
    Entry,
    FigureSpec,
    Material,
    Missing,
    Ours,
    Panel,
    Paper,
    Picture,
    PicturePanel,
    Spec,
    TableRow,
    TableSpec,
    Theirs,
    entries_of,
    number_text,
)
from bench.reports.papers.tables import entry_text, latex_table, noted_text, texts_of
from bench.reports.reported.numbers import Reported
from bench.results.text import csv_text, markdown_list, markdown_table, md
from bench.storage.files import write_atomic


@dataclass(frozen=True, slots=True)
class Artefact:
    """A table or figure that was written: its files, and how many of its cells have records."""

    paper: str
    kind: str
    number: str
    title: str
    files: tuple[Path, ...]
    filled: int
    wanted: int
    missing: tuple[Missing, ...]
    caption: str
    body: str

    @property
    def name(self) -> str:
        """Return the artefact's name: ``dgd table I``."""
        return f"{self.paper} {self.kind} {self.number}"


def make_artefact(paper: Paper, spec: Spec, evidence: Evidence, reported: Iterable[Reported], out: Path) -> Artefact:
    """Write one table or figure below `out` and return what was written."""
    material = Material(evidence, [number for number in reported if number.paper == paper.name], paper.plain)
    kind = "table" if isinstance(spec, TableSpec) else "figure"
    stem = out / paper.name / f"{kind}-{spec.number}"
    parts: Sequence[TableRow | Panel | PicturePanel]
    if isinstance(spec, TableSpec):
        parts = rows = spec.rows(material)
        files, body, left = _write_table(paper, spec, rows, material, stem)
    else:
        parts = panels = spec.panels(material)
        files, body, left = _write_figure(spec, panels, material, stem)
    entries = list(entries_of(parts))
    there = cells_of_item(entries, material)
    wanted, filled = len(there), list(there.values()).count(None)
    missing = list(dict.fromkeys(one for one in there.values() if one is not None))
    caption = _caption(paper, spec, kind, entries, missing, (filled, wanted), left_out(left, material), material)
    aside = stem.with_name(f"{stem.name}.caption.md")
    write_atomic(aside, page(caption))
    return Artefact(
        paper.name, kind, spec.number, spec.title, (*files, aside), filled, wanted, tuple(missing), caption, body,
    )  # fmt: skip


def _write_table(
    paper: Paper, spec: TableSpec, rows: Sequence[TableRow], material: Material, stem: Path
) -> tuple[tuple[Path, ...], str, list[Left]]:
    for row in rows:
        if len(row.entries) != len(spec.columns):
            raise BenchError(
                f"{paper.name} table {spec.number}: a row has {len(row.entries)} entries, not {len(spec.columns)}."
            )
    columns, kept, left = shown_table(spec.columns, rows, material)
    marks = Marks(material)
    texts = texts_of(kept, material, marks)
    body = markdown_table(columns, texts) + "".join(f"\n{md(line)}\n" for line in marks.lines)
    rules = [row.rule for row in kept]
    title = f"{paper.title}: Table {spec.number}. {spec.title}"
    written = {
        "md": f"# {md(title)}\n\n{body}",
        "csv": csv_text(spec.columns, texts_of(rows, material)),
        "tex": latex_table(columns, texts, rules, title, f"{paper.name}-{spec.number}", marks.lines),
    }
    paths = {stem.with_name(f"{stem.name}.{form}"): text for form, text in written.items()}
    for path, text in paths.items():
        write_atomic(path, page(text))
    return tuple(paths), body, left


def _write_figure(
    spec: FigureSpec, panels: Sequence[Panel | PicturePanel], material: Material, stem: Path
) -> tuple[tuple[Path, ...], str, list[Left]]:
    from bench.reports.papers.figures import POINT_COLUMNS, draw_figure, point_rows  # matplotlib

    path = stem.with_name(f"{stem.name}.csv")
    write_atomic(path, page(csv_text(POINT_COLUMNS, point_rows(panels, material))))
    kept, left = shown_panels(panels, material)
    if kept:
        drawn = draw_figure(spec, kept, material, stem)
        return (*drawn, path), f"![{md(spec.title)}]({stem.parent.name}/{stem.name}.png)\n", left
    for form in ("pdf", "png"):  # files of an older report
        stem.with_name(f"{stem.name}.{form}").unlink(missing_ok=True)
    return (path,), "Not drawn: we have no results for it.\n", left


def _caption(
    paper: Paper, spec: Spec, kind: str, entries: Sequence[Entry | Picture], missing: Sequence[Missing],
    count: tuple[int, int], left: Sequence[str], material: Material,
) -> str:  # fmt: skip
    powerless = dict.fromkeys(material.powerless(entry) for entry in entries if isinstance(entry, Attacked))
    used = [_used_row(found) for found in _used(entries, material)]
    parts = [
        f"**{kind.capitalize()} {spec.number}, {md(paper.title)}.** {spec.title}.\n",
        f"What the paper says: {spec.says}\n",
        *(f"{sentence}\n" for sentence in spec.shows(material)),
        markdown_list("Left out, because we have no results:", left),
        markdown_list("Next to the printed numbers:", _compared(entries, material)),
        markdown_list("Attacks (95% intervals, or ± over seeds):", _attacked(entries, material)),
        markdown_list("Verdicts on the printed epsilons:", _verdicts(entries)),
        "Records:\n\n" + markdown_table(_USED_COLUMNS, used) if used else "",
        *(f"No power: {md(text)}\n" for text in powerless if text),
        f"{count[0]} of {count[1]} of our numbers are available.\n" if count[1] else "",
        missing_text(missing),
    ]
    return "\n".join(part for part in parts if part)


def missing_text(missing: Sequence[Missing]) -> str:
    """Return the missing numbers with reasons and commands as Markdown."""
    listed = markdown_list("Missing:", [f"{md(one.label)}: {md(one.why)}" for one in missing])
    commands = commands_of(missing)
    return "\n".join([listed, "```", *commands, "```\n"]) if commands else listed


def _compared(entries: Sequence[Entry | Picture], material: Material) -> list[str]:
    lines = []
    for entry in entries:
        if not isinstance(entry, Ours) or entry.beside is None:
            continue
        value = material.value(entry)
        if value is None:
            continue
        difference = value.mean - entry.beside.value
        lines.append(
            f"{md(entry.cell.label)}: here {md(noted_text(entry, material))}, "
            f"printed {number_text(entry.beside.value, entry.digits)} ({difference:+.{entry.digits}f})"
        )
    return list(dict.fromkeys(lines))


def _attacked(entries: Sequence[Entry | Picture], material: Material) -> list[str]:
    lines: dict[tuple[str, str, str, str], list[str]] = {}
    for entry in entries:
        if isinstance(entry, Attacked) and material.value(entry) is not None:
            line = lines.setdefault((entry.attack, entry.cell.label, entry.metric, note(entry, material)), [])
            line.append(f"{md(entry.role)} {md(entry_text(entry, material))}")
    return [
        f"{md(attack)} on {md(target)}, {md(metric)}: {', '.join(dict.fromkeys(line))}"
        + (f" \\[{md(told)}]" if told else "")
        for (attack, target, metric, told), line in lines.items()
    ]


def _verdicts(entries: Sequence[Entry | Picture]) -> list[str]:
    shown = (e.number for e in entries if isinstance(e, Theirs) and e.show == "verdicts" and e.number is not None)
    lines = (f"{md(n.system)}: {n.verdicts}. {md(n.reasons())}" for n in shown)
    return list(dict.fromkeys(lines))


_USED_COLUMNS = (
    "method", "data set", "target epsilon (basis)", "claimed", "proven", "proven, replace-one", "claim", "audited",
    "accuracy", "seeds", "preset", "settings", "remarks",
)  # fmt: skip


def _used(entries: Sequence[Entry | Picture], material: Material) -> list[Found]:
    used: dict[tuple[str, ...], Found] = {}
    for entry in entries:
        if isinstance(entry, Ours | Attacked | Picture):
            found = material.find(entry.cell)
            if found is not None:
                used.setdefault(found.row.keys, found)
    return list(used.values())


def _used_row(found: Found) -> tuple[str, ...]:
    texts = cells_of(found.row) | {"data set": found.row.dataset, "seeds": ", ".join(map(str, found.row.seeds))}
    texts["settings"] = ", ".join(f"{name}={value}" for name, value in found.cell.settings)
    return tuple(texts[name] for name in _USED_COLUMNS)


def index_text(artefacts: Sequence[Artefact], warnings: Sequence[str]) -> str:
    """Return the index of all artefacts as Markdown."""
    parts = [
        "# Tables and figures of the papers\n",
        "Drawn from records. Figures show printed results as hollow, dashed marks, ours as filled, solid ones; error "
        "bars are one standard deviation over seeds; a cross below the data marks a cell that was not run. A letter in "
        "brackets refers to the settings behind our number that differ from the paper's.\n",
        markdown_table(
            ("paper", "what", "title", "numbers of ours"),
            [(a.paper, f"{a.kind} {a.number}", a.title, f"{a.filled} of {a.wanted}") for a in artefacts],
        ),
    ]
    if warnings:
        parts.append(markdown_list("Left out:", [md(line) for line in warnings]))
    for artefact in artefacts:
        files = ", ".join(f"[{path.name}]({artefact.paper}/{path.name})" for path in artefact.files)
        parts += [f"## {md(artefact.name)}\n", artefact.body, artefact.caption, f"Files: {files}\n"]
    return "\n".join(parts)
