"""The site in a browser, from disk: no errors or requests; filters, order, comparison, downloads, links.

Needs Chromium or Chrome; run with pytest -m browser.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.reports.leaderboard import Source
from bench.reports.reported.numbers import read_reported
from bench.reports.site.addresses import page_name
from bench.reports.site.build import write_site
from helpers.records import record
from helpers.site import NASTY, source

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Seen:
    """A page, its console messages and its requests."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1400, "height": 1000}, **options})
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, site: Path, page: str = "index.html") -> Any:
        self.page.goto(f"{site.as_uri()}/{page}")
        return self.page

    def check(self) -> None:
        """Fail on any console message, and on any request for something other than a file."""
        assert self.said == []
        assert [url for url in self.asked if not url.startswith(("file:", "data:"))] == []
        self.context.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board")
    write_site(folder, source())
    return folder / "site"


@pytest.fixture
def seen(browser: Any) -> Seen:
    return Seen(browser)


def shown(page: Any) -> list[str]:
    """Return the methods of the visible rows, in order."""
    return page.eval_on_selector_all("#table .name > :last-child", "all => all.map(one => one.firstChild.textContent)")


def count(page: Any) -> int:
    return int(page.inner_text("#count").split()[0])


def row_of(page: Any, method: str) -> Any:
    return page.locator(f'#table .tabulator-row[data-row^="row-mnist-{method}-"]')


def test_filters_are_counted_announced_and_cited(seen: Seen, site: Path) -> None:
    page = seen.open(site)
    mnist = count(page)
    assert page.get_attribute("#count", "aria-live") == "polite"
    page.select_option("[name=method]", "dpsd")
    assert shown(page) == ["dpsd"]
    assert page.url.endswith("#method=dpsd")
    page.select_option("[name=dataset]", "mnist-client")
    assert count(page) == 0
    assert "clear a filter" in page.inner_text("#table")
    page.click("button[type=reset]")
    page.wait_for_function("location.hash === '#dataset=mnist-client'")
    assert count(page) == 1
    page.select_option("[name=dataset]", "mnist-record")
    assert count(page) == mnist
    page.fill("[name=max]", "12.5")
    assert "dpsd" not in shown(page)
    assert "pate" in shown(page)
    page.select_option("[name=source]", "papers")
    assert shown(page) == ["DP-SGD"], "the only printed epsilon that is shown to hold"
    page.click("button[type=reset]")
    page.fill("[name=q]", "sees a classifier UNSOUND")
    assert count(page) == 1
    again = Seen(page.context.browser)
    view = seen.page.url.partition("index.html")[2]
    assert shown(again.open(site, f"index.html{view}")) == shown(page)
    again.check()
    page.evaluate("location.hash = '#dataset=svhn-record'")
    page.wait_for_function("document.querySelector('[name=dataset]').value === 'svhn-record'")
    assert (shown(page), page.input_value("[name=q]")) == (["PATE"], "")
    seen.check()


def test_places_are_those_of_the_board_whatever_is_filtered(browser: Any, tmp_path: Path) -> None:
    found = [
        record(method=f"m{i}", claimed=1.0, proven=0.5, accuracy=accuracy, public_kinds=[kind], seed=seed)
        for seed in range(3)
        for i, (accuracy, kind) in enumerate(
            [(0.99, "unlabelled"), (0.98, "none"), (0.9, "none"), (0.89, "unlabelled"), (0.5, "none")]
        )
    ]
    source = Source(found)
    write_site(tmp_path, source)
    seen = Seen(browser)
    page = seen.open(tmp_path / "site")
    places = "all => all.map(one => one.textContent)"
    ours = page.eval_on_selector_all("#table .place", places)
    assert ours == [row.rank for row in source.board.rows] == ["1-2", "1-2", "3-4", "3-4", "5"]
    page.select_option("[name=public]", "none")
    assert shown(page) == ["m1", "m2", "m4"]
    assert page.eval_on_selector_all("#table .place", places) == ["1-2", "3-4", "5"]
    page.select_option("[name=public]", "")
    page.fill("[name=seeds]", "4")
    assert count(page) == 0
    seen.check()


def test_headers_sort_by_mouse_and_keyboard(seen: Seen, site: Path) -> None:
    page = seen.open(site, "index.html#source=ours")
    first = shown(page)
    bands = page.locator("#table .tabulator-group")
    assert bands.count() > 2
    head = page.locator('#table .tabulator-col[tabulator-field="proven"]')
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    page.wait_for_function("!document.querySelector('#table .tabulator-group')")
    texts = page.locator("#table .tabulator-cell[tabulator-field=proven]").all_text_contents()
    values = [float(text.replace("∞", "inf")) for text in texts]
    assert values == sorted(values)
    assert len(set(values)) > 2
    page.keyboard.press("Enter")  # the button still has the focus
    assert head.get_attribute("aria-sort") == "descending"
    assert "sort=proven.desc" in page.url
    assert shown(page)[-1] == "pate"
    page.keyboard.press("Enter")
    page.wait_for_selector("#table .tabulator-group")
    assert shown(page) == first
    audited = page.locator('#table [tabulator-field="audited"] button')
    for _ in range(2):
        audited.click()
        assert shown(page)[0] == "pate", "what is missing comes last in both directions"
    seen.check()


def test_a_row_opens_by_keyboard_and_leads_to_paper_code_and_record(seen: Seen, site: Path) -> None:
    page = seen.open(site)
    button = row_of(page, "pate").locator(".more-button")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    page.wait_for_timeout(500)  # by then all rows would have been redrawn, because the table is higher
    assert button.evaluate("one => one === document.activeElement")
    more = row_of(page, "pate").locator(".more")
    assert more.bounding_box()["width"] > 1000
    links = more.locator("a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert "code/pate.py.txt" in links
    assert any(link.startswith("records/mnist-pate") for link in links)
    more.locator("a[href*='s1.html']").click()
    page.wait_for_load_state()
    assert "s1" in page.inner_text("h1")
    page.click("text=its row in the ranking")
    page.wait_for_function("document.querySelector(':target').getBoundingClientRect().top < innerHeight")
    seen.check()


def test_the_table_follows_the_width_of_the_window(seen: Seen, site: Path) -> None:
    page = seen.open(site)
    page.set_viewport_size({"width": 500, "height": 600})
    holder = "document.querySelector('.tabulator-tableholder')"
    page.wait_for_function(f"{holder}.scrollWidth <= {holder}.clientWidth")
    seen.check()


def test_two_rows_are_compared_and_the_comparison_is_cited(seen: Seen, site: Path) -> None:
    page = seen.open(site)
    for method in ("pate", "dpsd", "dgd"):
        row_of(page, method).locator("[data-compare]").first.check()
    heads = "#compare thead th"
    assert page.locator("#table .more").count() == 0, "a choice opens no row"
    assert page.locator(heads).all_text_contents() == ["pate", "dgd"], "the last two that were chosen, at most"
    assert "∞" in page.inner_text("#compare tbody tr:has(th:text-is('proven'))")
    page.reload()
    assert page.locator(heads).all_text_contents() == ["pate", "dgd"]
    assert page.locator("#table [data-compare]:checked").count() == 2
    page.click("#compare button")
    assert not page.is_visible("#compare")
    seen.check()


def test_the_view_is_downloaded_as_csv_and_json(browser: Any, tmp_path: Path) -> None:
    formula = record(method="=1+1", key="formula", claimed=1.0, proven=0.5)
    write_site(tmp_path, Source([record(accuracy=0.5, claimed=1.0, proven=0.5), formula, record(dataset="svhn")]))
    seen = Seen(browser)
    page = seen.open(tmp_path / "site", "index.html#sort=accuracy.asc")
    page.wait_for_selector("#table [aria-sort=ascending]")
    found = {}
    for kind in ("json", "csv"):
        with page.expect_download() as got:
            page.click(f"[data-save={kind}]")
        found[kind] = Path(got.value.path()).read_text()
    rows = json.loads(found["json"])
    assert [(row["dataset"], row["method"], row["place"], row["proven"]) for row in rows] == [
        ("mnist", "pate", "–", "0.50"),
        ("mnist", "=1+1", "–", "0.50"),
    ]
    lines = list(csv.DictReader(io.StringIO(found["csv"])))
    assert lines[0] == {name: "" if value is None else str(value) for name, value in rows[0].items()}
    assert lines[1]["method"] == "'=1+1", "no spreadsheet runs it"
    seen.check()


def test_the_plot_of_a_data_set_links_to_records(seen: Seen, site: Path) -> None:
    page = seen.open(site, "datasets/mnist-record.html")
    mark = page.locator(".dataset .pt[href*='mnist-pate'] .m").first
    assert "pate, asked 10 (claimed)" in page.locator(".dataset .pt[href*='mnist-pate'] title").first.text_content()
    mark.click()
    page.wait_for_url("**/records/**")
    seen.check()


@pytest.mark.parametrize("width", [390, 1330])
def test_five_columns_are_within_the_screen(browser: Any, site: Path, width: int) -> None:
    seen = Seen(browser, viewport={"width": width, "height": 844})
    page = seen.open(site)
    for field in ("label", "budget", "proven", "audited", "accuracy"):
        head = page.locator(f'#table .tabulator-col[tabulator-field="{field}"]')
        box = head.bounding_box()
        assert head.is_visible()
        assert box["x"] + box["width"] <= width, field
    page.locator("#table .tabulator-row").last.scroll_into_view_if_needed()
    assert page.locator("#table .tabulator-header").is_visible(), "the head stays"
    seen.check()


def test_without_script_the_rankings_are_plain_tables(browser: Any, site: Path) -> None:
    seen = Seen(browser, java_script_enabled=False)
    page = seen.open(site)
    assert not page.is_visible("#filters")
    assert page.is_visible("#glance svg.scatter")
    page.click("#datasets a")
    page.wait_for_load_state()
    assert page.locator(".dataset tbody tr").count() > 8
    seen.check()


def test_hostile_texts_run_nowhere(seen: Seen, site: Path) -> None:
    page = seen.page
    page.on("dialog", lambda dialog: seen.said.append("a script of a record ran"))
    for name in (
        "index.html",
        "audits.html",
        "datasets/mnist-record.html",
        "records/nasty.html",
        *(f"methods/{p.name}" for p in (site / "methods").glob("*~*")),
    ):
        seen.open(site, name)
        assert NASTY.splitlines()[0].split("{")[0].strip() in page.inner_text("body")
    seen.check()


def opened(seen: Seen, site: Path) -> Iterator[tuple[str, Any]]:
    """Open a page of each kind in turn, with all its parts unfolded; yield its name and the page."""
    record_name = f"records/{page_name(source().records[0].key)}.html"
    for name in (
        "index.html",
        "datasets/mnist-record.html",
        "audits.html",
        "meaning.html",
        "methods/pate.html",
        "records/nasty.html",
        record_name,
    ):
        page = seen.open(site, name)
        if name == "index.html":
            row_of(page, "pate").locator(".more-button").click()
            page.locator(".more [data-compare]").check()
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        yield name, page


SCREENS = pytest.mark.parametrize(("width", "scheme"), list(itertools.product((390, 1400), ("light", "dark"))))


@SCREENS
def test_nothing_is_wider_than_the_screen_or_too_pale(browser: Any, site: Path, width: int, scheme: str) -> None:
    seen = Seen(browser, viewport={"width": width, "height": 844}, color_scheme=scheme)
    for name, page in opened(seen, site):
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        low = page.evaluate(CONTRAST)
        assert low == [], (name, low[:5])
    seen.check()


@SCREENS
def test_axe_finds_no_violation(browser: Any, site: Path, width: int, scheme: str) -> None:
    rules = Path(os.environ.get("AXE_CORE", ""))
    if not rules.is_file():
        pytest.skip("AXE_CORE does not hold the path of axe.min.js (from npm's axe-core)")
    seen = Seen(browser, viewport={"width": width, "height": 844}, color_scheme=scheme)
    for name, page in opened(seen, site):
        page.evaluate(rules.read_text())
        found = page.evaluate("axe.run({preload: false})")["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], name
    seen.check()


CONTRAST = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => {
    const [R, G, B] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * R + 0.7152 * G + 0.0722 * B;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const c = parse(getComputedStyle(node).backgroundColor);
      if (c.length === 3 || c[3] > 0.5) return c;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility()) continue;
    const style = getComputedStyle(node), svg = node instanceof SVGElement;
    if (svg && node.tagName !== "text") continue;
    const [a, b] = [light(parse(svg ? style.fill : style.color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push([node.tagName, node.className.toString(), node.textContent.slice(0, 30), ratio]);
  }
  return found;
}"""
"""Returns the texts whose contrast is below the 4.5 that WCAG AA asks for."""


def test_of_five_thousand_rows_those_on_the_screen_are_drawn(browser: Any, tmp_path: Path) -> None:
    found = [
        record(
            method=f"method-{i % 40}", dataset=("mnist", "fmnist", "cifar10")[i % 3], key=f"cell-{i}", config={"i": i},
            accuracy=(i * 7919 % 1000) / 1000, claimed=0.1 + i % 17, proven=(0.05 + i % 23, 1e6, math.inf)[i % 3],
        )
        for i in range(5000)
    ]  # fmt: skip
    write_site(tmp_path, Source(found, reported=read_reported()))
    seen = Seen(browser)
    page = seen.open(tmp_path / "site", "index.html#dataset=all&source=ours")
    page.wait_for_selector("#table .name")
    assert count(page) == 5000
    assert 0 < page.locator("#table .tabulator-row").count() < 500
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(f"first contentful paint with 5,000 rows: {paint:.0f} ms")
    seen.check()
