"""Tables of texts as HTML."""

from __future__ import annotations

from functools import lru_cache
from html import escape

from markupsafe import Markup

from bench.reports.site.terms import term
from bench.results.text import Table


@lru_cache(maxsize=256)  # the seeds of a row share most of their tables
def plain_table(table: Table) -> Markup:
    """Return `table` as HTML, without a template: a site has a hundred cells for each record."""
    note = f"<p>{escape(table.note)}</p>\n" if table.note else ""
    if not table.rows:
        return Markup(note)
    caption = escape(table.caption)
    head = "".join(f'<th scope="col">{_term(column)}</th>' for column in table.columns)
    rows = "".join(
        f'<tr><th scope="row">{_term(first)}</th>{"".join([f"<td>{escape(text)}</td>" for text in rest])}</tr>\n'
        for first, *rest in table.rows
    )
    return Markup(
        f'{note}<div class="scroll" tabindex="0" role="group" aria-label="{caption}">\n<table class="plain">\n'
        f"<caption><span>{caption}</span></caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n"
        "</table>\n</div>\n"
    )


def _term(label: str) -> str:
    found = term(label)
    return found if isinstance(found, Markup) else escape(found)
