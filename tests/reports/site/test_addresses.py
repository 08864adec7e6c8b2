"""Addresses that the site links to."""

from __future__ import annotations

from bench.interface.registry import METHODS
from bench.reports.reported.systems import PAPERS
from bench.reports.site.addresses import paper_href


def test_every_paper_of_a_method_or_a_printed_number_has_an_address() -> None:
    methods = [METHODS.get(name) for name in METHODS.names()]
    cited = [method.citation for method in methods if method.__module__.startswith("methods.")]
    without = ("baseline", "DIET-PATE", "ours")  # known by its code; of nobody
    for citation in (*PAPERS.values(), *(text for text in cited if not any(word in text for word in without))):
        assert paper_href(citation).startswith("https://"), citation
    assert paper_href("after Ge et al. 2023; Papernot et al. 2018").endswith("2409.02404"), "the first one"
    assert paper_href("nobody 1999") == ""
