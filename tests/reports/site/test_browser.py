"""The site in a browser, from disk: no error, no request, filters, order, links, and how soon something is seen.

Needs Chromium or Chrome; run with pytest -m browser.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.records import record
from helpers.site import NASTY, source
from reports.leaderboard import Source
from reports.reported.numbers import read_reported
from reports.site.build import write_site

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
    """A page, what its console said and what it asked for."""

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
        """Fail where the console said something, or something but a file was asked for."""
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
    """Return the methods of the rows that are seen, in their order."""
    return page.eval_on_selector_all(
        "section.ranking:not([hidden]) tbody tr:not(.budget, [hidden])", "rows => rows.map(row => row.dataset.method)"
    )


def test_filters_are_counted_announced_and_cited(seen: Seen, site: Path) -> None:
    page = seen.open(site)
    every = len(shown(page))
    page.select_option("[name=unit]", "client")
    assert shown(page) == ["fed-dpsd"]
    assert page.inner_text("#count") == f"1 of {every} rows, in 1 of 4 rankings"
    assert page.get_attribute("#count", "aria-live") == "polite"
    assert page.url.endswith("#unit=client")
    page.click("nav.parts a[href='#mnist-record']")  # a link to what is filtered away
    page.wait_for_function("document.querySelector('#mnist-record').getBoundingClientRect().top < 200")
    assert len(shown(page)) == every
    page.select_option("[name=unit]", "client")
    page.click("button[type=reset]")
    page.wait_for_function("!location.hash")
    assert len(shown(page)) == every
    page.select_option("[name=source]", "reported")
    page.fill("[name=q]", "svhn SOUND")
    assert shown(page) == ["pate"]
    page.click("button[type=reset]")
    page.fill("[name=max]", "5")
    page.wait_for_function("location.hash === '#max=5'")
    most = page.eval_on_selector_all(
        "section.ranking:not([hidden]) tbody tr:not(.budget, [hidden])[data-source=ours]",
        "rows => rows.map(r => r.dataset.proven)",
    )
    assert most
    assert max(map(float, most)) <= 5
    page.fill("[name=max]", "")
    assert len(shown(page)) == every
    again = seen.open(site, "index.html#source=reported&q=svhn+sound&sort=proven.desc")
    page.reload()
    assert shown(again) == ["pate"]
    assert again.input_value("[name=q]") == "svhn sound"
    seen.check()


def test_a_cited_view_opens_at_what_it_shows(browser: Any, site: Path) -> None:
    seen = Seen(browser, viewport={"width": 390, "height": 600})
    page = seen.open(site, "index.html#dataset=mnist&source=ours")
    page.wait_for_timeout(800)
    assert 0 <= page.locator("#filters").bounding_box()["y"] < 300
    seen.check()


@pytest.mark.parametrize("script", [True, False])
def test_a_link_to_a_place_lands_there(browser: Any, tmp_path: Path, script: bool) -> None:
    found = [
        record(dataset=name, key=f"{name}-{i}", config={"i": i}, accuracy=i / 100)
        for name in ("mnist", "fmnist", "cifar10")
        for i in range(60)
    ]
    write_site(tmp_path, Source(found))
    seen = Seen(browser, java_script_enabled=script)
    for place in ("cifar10-record", "row-fmnist-30"):
        page = seen.open(tmp_path / "site", f"index.html#{place}")
        page.wait_for_timeout(1200)
        box = page.locator(f"#{place}").bounding_box()
        assert 0 <= box["y"] < 900, (place, box)
        page.goto("about:blank")
    seen.check()


def test_headers_sort_by_mouse_and_keyboard(seen: Seen, site: Path) -> None:
    page = seen.open(site, "index.html#dataset=mnist&unit=record&source=ours")
    first = shown(page)
    head = page.locator("#mnist-record th[data-key=proven]")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    values = page.eval_on_selector_all(
        "#mnist-record tbody tr:not(.budget, [hidden])", "rows => rows.map(row => row.dataset.proven)"
    )
    numbers = [math.inf if value == "Infinity" else float(value) for value in values]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > 2
    page.keyboard.press("Enter")  # the button still has the focus
    assert head.get_attribute("aria-sort") == "descending"
    assert "sort=proven.desc" in page.url
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") is None
    assert shown(page) == first
    heads = page.locator("#mnist-record tr.budget:not([hidden])")
    assert heads.all_text_contents() == ["epsilon 10 (claimed)", "without privacy"], "none without a row that is seen"
    # What a row lacks comes last in both directions.
    audited = page.locator("#mnist-record th[data-key=audited] button")
    for _ in range(2):
        audited.click()
        assert shown(page)[0] == "pate"
    assert heads.count() == 0, "no budget holds rows that stand in another order"
    seen.check()


def test_a_click_opens_the_record_and_the_record_its_row(seen: Seen, site: Path) -> None:
    page = seen.open(site)
    page.click("#mnist-record tr[data-method=pate][data-source=ours] small a >> nth=1")
    page.wait_for_load_state()
    assert "s1" in page.inner_text("h1")
    page.click("text=its row in the ranking")
    page.wait_for_load_state()
    assert page.eval_on_selector("tr:target", "row => row.dataset.method") == "pate"
    page.click("tr:target th a")
    page.wait_for_load_state()
    assert page.inner_text("h1") == "pate"
    seen.check()


def test_plots_follow_the_filters_and_link_to_records(seen: Seen, site: Path) -> None:
    page = seen.open(site)
    assert page.is_visible("#mnist-record svg.scatter")
    marks = "#mnist-record .pt:not([hidden])"
    before = page.locator(marks).count()
    assert before == page.locator("#mnist-record tbody tr:not(.budget)").count()
    page.select_option("[name=source]", "reported")
    assert 0 < page.locator(marks).count() < before
    places = "marks => marks.map(mark => mark.getAttribute('transform'))"
    proven = page.eval_on_selector_all(marks, places)
    page.select_option("[name=x]", "claimed")
    assert page.eval_on_selector_all(marks, places) != proven
    assert page.text_content("#mnist-record .x-name") == "claimed epsilon"
    page.click("button[type=reset]")
    mark = page.locator("#mnist-record .pt[href*=pate]").first
    assert "pate, asked 10 (claimed)" in mark.locator("title").text_content()
    mark.click()
    page.wait_for_url("**/records/**")
    seen.check()


def test_without_script_the_page_is_whole(browser: Any, site: Path) -> None:
    seen = Seen(browser, java_script_enabled=False)
    page = seen.open(site)
    assert not page.is_visible("#filters")
    assert page.is_visible("#mnist-record svg.scatter")
    assert page.locator("#mnist-record tbody tr:not(.budget)").count() > 8
    seen.check()


def test_hostile_texts_run_nowhere(seen: Seen, site: Path) -> None:
    page = seen.page
    page.on("dialog", lambda dialog: seen.said.append("a script of a record ran"))
    for name in (
        "index.html",
        "audits.html",
        "records/nasty.html",
        *(f"methods/{p.name}" for p in (site / "methods").glob("*~*")),
    ):
        seen.open(site, name)
        assert NASTY.splitlines()[0].split("{")[0].strip() in page.inner_text("body")
    seen.check()


@pytest.mark.parametrize(("width", "scheme"), list(itertools.product((390, 1400), ("light", "dark"))))
def test_nothing_is_wider_than_the_screen_and_text_has_contrast(
    browser: Any, site: Path, width: int, scheme: str
) -> None:
    seen = Seen(browser, viewport={"width": width, "height": 844}, color_scheme=scheme)
    for name in ("index.html", "audits.html", "methods/pate.html", "records/nasty.html"):
        page = seen.open(site, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        low = page.evaluate(CONTRAST)
        assert low == [], (name, low[:5])
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


def test_five_thousand_rows_are_seen_within_a_second(browser: Any, tmp_path: Path) -> None:
    found = [
        record(
            method=f"method-{i % 40}", dataset=("mnist", "fmnist", "cifar10")[i % 3], key=f"cell-{i}", config={"i": i},
            accuracy=(i * 7919 % 1000) / 1000, claimed=0.1 + i % 17, proven=(0.05 + i % 23, 1e6, math.inf)[i % 3],
        )
        for i in range(5000)
    ]  # fmt: skip
    write_site(tmp_path, Source(found, reported=read_reported()))
    times = []
    for _ in range(3):
        seen = Seen(browser)
        page = seen.open(tmp_path / "site")
        times.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        assert page.locator("tr[data-source=ours]").count() == 5000
        seen.check()
    print(f"first contentful paint with 5,000 rows: {', '.join(f'{t:.0f} ms' for t in times)}")
    assert min(times) < 1000, times
