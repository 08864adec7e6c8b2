"""The site's glossary, and tables whose headings it explains."""

from __future__ import annotations

from functools import lru_cache
from html import escape
from pathlib import Path

import yaml
from markupsafe import Markup

from bench.results.text import Table

TERMS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("terms.yaml").read_text("utf-8"))
"""Definitions by term, for tooltips and the list of terms."""

_MARKED = {label: Markup('<abbr title="{}">{}</abbr>').format(meaning, label) for label, meaning in TERMS.items()}


def term(label: str) -> str:
    """Return `label` with its meaning as a tooltip, if the glossary has it."""
    return _MARKED.get(label, label)


@lru_cache(maxsize=256)  # the seeds of a row share most of their tables
def plain_table(table: Table) -> Markup:
    """Return `table` as HTML, without a template: a site has a hundred cells for each record."""
    note = f"<p>{escape(table.note)}</p>\n" if table.note else ""
    if not table.rows:
        return Markup(note)
    caption = escape(table.caption)
    head = "".join(f'<th scope="col">{_heading(column)}</th>' for column in table.columns)
    rows = "".join(
        f'<tr><th scope="row">{_heading(first)}</th>{"".join([f"<td>{escape(text)}</td>" for text in rest])}</tr>\n'
        for first, *rest in table.rows
    )
    return Markup(
        f'{note}<div class="scroll" tabindex="0" role="group" aria-label="{caption}">\n<table class="plain">\n'
        f"<caption><span>{caption}</span></caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n"
        "</table>\n</div>\n"
    )


def _heading(label: str) -> str:
    return _MARKED.get(label) or escape(label)
