"""A paper's table as Markdown, CSV and LaTeX, with the texts of records escaped."""

from __future__ import annotations

from collections.abc import Sequence

from bench.reports.papers.evidence import OF_ROW
from bench.reports.papers.notes import Marks, note
from bench.reports.papers.spec import Attacked, Entry, Material, Ours, TableRow, Theirs, number_text
from bench.results.text import epsilon_text


def entry_text(entry: Entry, material: Material) -> str:
    """Return an entry without its note: mean, spread and number of seeds, or the reason why it is missing."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, int | float):
        return f"{entry:g}"
    if isinstance(entry, Theirs):
        return entry.text
    missing = material.missing(entry)
    if missing is not None:
        return missing.short
    value = material.value(entry)
    assert value is not None
    if isinstance(entry, Ours) and entry.measure in OF_ROW:
        if entry.measure == "claimed":
            return epsilon_text(value.mean)
        return epsilon_text(value.mean, "down" if entry.measure == "audited" else "up")
    text = number_text(value.mean, entry.digits)
    if value.spread is not None:
        text += f" ± {value.spread:.{entry.digits}f}"
    elif value.low is not None and value.high is not None:
        text += f" [{value.low:.{entry.digits}f}, {value.high:.{entry.digits}f}]"
    if isinstance(entry, Attacked) and material.powerless(entry):
        text += " (no power)"
    if isinstance(entry, Ours) and entry.measure == "accuracy":
        found = material.find(entry.cell)
        lost = f", {found.row.collapsed} collapsed" if found is not None and found.row.collapsed else ""
        text += f" ({value.n} seed{'s' if value.n > 1 else ''}{lost})"
    return text


def noted_text(entry: Entry, material: Material) -> str:
    """Return an entry as displayed, with its note in square brackets."""
    told = note(entry, material)
    return entry_text(entry, material) + (f" [{told}]" if told else "")


def texts_of(rows: Sequence[TableRow], material: Material, marks: Marks | None = None) -> list[tuple[str, ...]]:
    """Return the texts of the rows, with `marks` for their notes, or with the notes written out if there are none."""
    return [
        tuple(noted_text(e, material) if marks is None else entry_text(e, material) + marks.of(e) for e in row.entries)
        for row in rows
    ]


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}", "±": r"$\pm$", "∞": r"$\infty$",
    "–": "--", "ε": r"$\varepsilon$", "δ": r"$\delta$", "σ": r"$\sigma$", "γ": r"$\gamma$", "β": r"$\beta$",
    "≤": r"$\le$", "≥": r"$\ge$", "×": r"$\times$", "−": "$-$",
}  # fmt: skip


def latex(text: str) -> str:
    """Return `text` escaped for LaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def latex_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], rules: Sequence[bool], caption: str, label: str,
    notes: Sequence[str] = (),
) -> str:  # fmt: skip
    """Return a LaTeX table; it needs the package booktabs."""
    wide = "*" if len(columns) > 4 else ""
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{table{wide}}}",
        "\\centering",
        f"\\caption{{{latex(caption)}}}",
        f"\\label{{tab:{label}}}",
        f"\\begin{{tabular}}{{{'l' * len(columns)}}}",
        "\\toprule",
        " & ".join(map(latex, columns)) + " \\\\",
        "\\midrule",
    ]
    for row, rule in zip(rows, rules, strict=True):
        if rule and lines[-1] != "\\midrule":
            lines.append("\\midrule")
        # LaTeX would parse a leading bracket as an argument of the previous line.
        lines.append("{}" + " & ".join(map(latex, row)) + " \\\\")
    below = [f"\\par\\footnotesize {latex('; '.join(notes))}"] if notes else []
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *below, f"\\end{{table{wide}}}", ""])
