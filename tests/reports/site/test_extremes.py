"""Pages of unusual boards: a row with very many seeds, and numbers at the ends of their ranges."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench.reports.leaderboard import Source
from bench.reports.pages import write_pages
from helpers.records import record
from helpers.site import dead_links


def largest_record_page(folder: Path, seeds: int) -> int:
    write_pages(folder, Source([record(seed=seed) for seed in range(100_000, 100_000 + seeds)]))
    assert dead_links(folder / "site") == []
    return max(path.stat().st_size for path in (folder / "site" / "records").glob("*.html"))


@pytest.mark.slow
def test_the_page_of_a_record_does_not_grow_with_the_seeds_of_its_row(tmp_path: Path) -> None:
    assert largest_record_page(tmp_path / "many", 120) <= largest_record_page(tmp_path / "few", 40) + 10
    page = (tmp_path / "many" / "site" / "records" / "mnist-pate-10.0-s100060.html").read_text()
    for near in (100_059, 100_061):
        assert f"mnist-pate-10.0-s{near}.html" in page
    assert ">all 120</a>" in page  # links to the method's row, whose anchor dead_links checks
    method = (tmp_path / "many" / "site" / "methods" / "pate.html").read_text()
    assert all(f"mnist-pate-10.0-s{seed}.html" in method for seed in range(100_000, 100_120))


@pytest.mark.few(6)
@pytest.mark.parametrize("accuracies", [[1.0], [1.0, 1.0], [0.0], [0.0, 1.0], [0.997], [0.9955, 0.9955]], ids=str)
@pytest.mark.parametrize(
    ("claimed", "proven"), [(10.0, 4.0), (0.0, 0.0), (0.0, 4.0), (math.inf, math.inf), (1e-9, 1e-9), (1e9, 1e9)]
)
def test_figures_at_the_ends_of_their_range_have_pages(
    accuracies: list[float], claimed: float, proven: float, tmp_path: Path
) -> None:
    rows = [
        record(accuracy=accuracy, claimed=claimed, proven=proven, config={"queries": queries}, key=f"queries-{queries}")
        for queries, accuracy in enumerate(accuracies)
    ]
    write_pages(tmp_path, Source(rows))
    board = (tmp_path / "leaderboard.md").read_text()
    for accuracy in accuracies:
        assert f"| {100 * accuracy:.2f} (" in board
    assert "nan" not in (tmp_path / "mnist.svg").read_text()
