"""Addresses of the site's pages (relative to the site) and of papers."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import yaml

from bench.core.listed import Listed
from bench.interface.registry import METHODS

_PLAIN = re.compile(r"[a-z0-9][a-z0-9._+-]{0,149}")


@lru_cache(maxsize=1024)  # cached, because pages link to their neighbours
def page_name(name: str) -> str:
    """Return a safe, case-insensitively unique file stem: `name` if it is safe, otherwise its letters and a digest."""
    if _PLAIN.fullmatch(name) and not name.endswith("."):
        return name
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    start = re.sub(r"[^a-z0-9]+", "-", letters).strip("-")[:60]
    # Plain names never contain "~", so nothing collides.
    return f"{start or 'x'}~{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


@lru_cache(maxsize=1024)
def record_href(key: str, part: str = "") -> str:
    """Return the address of a record's page, relative to the site."""
    return f"records/{quote(page_name(key))}.html{part}"


@lru_cache(maxsize=1024)
def method_href(name: str) -> str:
    """Return the address of a method's page, relative to the site."""
    return f"methods/{quote(page_name(name))}.html"


def code_href(method: str) -> str:
    """Return the address of the copied source of a method, relative to the site."""
    return f"code/{quote(page_name(method))}.py.txt"


_PAPERS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text("utf-8"))
"""arXiv numbers, or addresses of papers outside arXiv, by a substring of the citation."""


def paper_href(citation: str) -> str:
    """Return the address of the first paper in `citation` with a known address, or ""."""
    places = {citation.index(name): number for name, number in _PAPERS.items() if name in citation}
    place = places[min(places)] if places else ""
    return f"https://arxiv.org/abs/{place}" if place[:1].isdigit() else place


@lru_cache
def code_of(method: str) -> tuple[str, str] | None:
    """Return the file and source text of a method of this project, or None for others; import nothing of it."""
    entry = METHODS.index().get(method)
    home = entry.module if isinstance(entry, Listed) else entry
    found = None if home is None else find_spec(f"bench.methods.{home}")
    if home is None or found is None or found.origin is None:
        return None
    # The folder is at the top of the repository.
    return f"methods/{home.replace('.', '/')}.py", Path(found.origin).read_text(encoding="utf-8")
