"""Addresses of the site's pages (relative to the site) and of papers."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

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


_PAPERS = {
    "Abadi et al. 2016": "1607.00133",
    "Papernot et al. 2017": "1610.05755",
    "Papernot et al., ICLR 2017": "1610.05755",
    "Papernot et al. 2018": "1802.08908",
    "De et al. 2022": "2204.13650",
    "McMahan et al. 2018": "1812.06210",
    "Yu et al. 2019": "1904.02200",
    "Papernot et al. 2021": "2007.14191",
    "Fu et al. 2024": "2311.14056",
    "Feng et al. 2023": "2307.13231",
    "Wang et al. 2021": "2103.11109",
    "Yu et al., ICML 2021": "2106.09352",
    "Yu et al., ICLR 2021": "2102.12677",
    "Mehta et al. 2022": "2211.13403",
    "Wahdany et al. 2024": "2406.08039",
    "Malek et al. 2021": "2106.03408",
    "Ghazi et al. 2021": "2102.06062",
    "Esfandiari et al. 2022": "2110.02159",
    "Yuan et al. 2021": "https://eprint.iacr.org/2021/835",
    "McMahan et al. 2017": "1602.05629",
    "Lin et al. 2020": "2006.07242",
    "Zhang et al. 2022": "2112.12371",
    "Yin et al. 2020": "1912.08795",
    "Chen et al. 2019": "1904.01186",
    "Harder et al. 2021": "2002.11603",
    "Jiang et al. 2023": "https://github.com/dihjiang/DP-kernel",
    "Bie et al. 2023": "2302.02936",
    "Xie et al. 2018": "1802.06739",
    "Chen et al. 2020": "2006.08265",
    "Liu et al., IJCAI 2023": "2304.12528",
    "Chen et al. 2022": "2211.04446",
    "Takagi et al. 2021": "2006.12101",
    "Cao et al. 2021": "2111.01177",
    "Lin et al. 2025": "2502.05505",
    "Jordon et al. 2019": "https://openreview.net/forum?id=S1zk9iRqF7",
    "Long et al. 2021": "1906.09338",
    "Zhu et al. 2020": "https://doi.org/10.1109/CVPR42600.2020.01187",
    "Ge et al. 2023": "2409.02404",
    "Ge et al., IEEE TIP 2023": "2409.02404",
    "Wang et al. 2019": "https://doi.org/10.1109/ACCESS.2019.2910885",
    "Wang et al., IEEE Access 2019": "https://doi.org/10.1109/ACCESS.2019.2910885",
    "Tramer and Boneh 2021": "2011.11660",
    "Privacy-Preserving Model Transcription": "2601.19090",
    "arXiv:2601.19090": "2601.19090",
}
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
