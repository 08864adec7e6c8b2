"""The leaderboard's site: rows and pages are made from records alone, links work, and text is escaped."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from zipfile import ZipFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench.cli.main import app
from bench.core.types import Adjacency
from bench.interface.registry import METHODS
from bench.reports.leaderboard import Source, build_board, to_markdown
from bench.reports.reported.numbers import Verdict
from bench.reports.site import record_pages as site_pages
from bench.reports.site.addresses import page_name
from bench.reports.site.build import build_site, write_site
from bench.reports.site.front_page import answer, failing, glance, small_print
from bench.reports.site.rows import attack_figure, rankings
from bench.reports.site.svg import axis_of, row_picture, row_place
from bench.results.attack_record import Scores
from bench.results.record import ImageGrid, Record
from bench.results.run_dir import RunDir
from bench.results.text import epsilon_text, ledger_table
from helpers.paths import ROOT
from helpers.records import record
from helpers.site import NASTY, Page, attack, audit, dead_links, records, reported, rows_of, source


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board")
    write_site(folder, source())
    return folder / "site"


def test_every_link_leads_to_a_file_and_a_place_in_it(site: Path) -> None:
    assert dead_links(site) == []
    assert len(list(site.rglob("*.html"))) > 12


def test_every_number_of_ours_leads_to_its_record(site: Path) -> None:
    for ranking in rankings(source()):
        for row in ranking.rows:
            if row.ours:
                assert all(f.href.startswith("records/") for f in (row.claimed, row.proven, row.cost, *row.seeds))
    row = next(row for ranking in rankings(source()) for row in ranking.rows if row.name == "pate" and row.ours)
    assert [seed.text for seed in row.seeds] == ["0", "1", "2"]
    assert len({seed.href for seed in row.seeds}) == 3
    assert row.drop.href == "records/" + page_name("mnist-nonprivate-None-s0") + ".html"
    (line,) = [line for line in source().board.rows if line.method == "pate"]
    assert line.audited
    assert row.audited.text == epsilon_text(line.audited, "down")
    assert row.audited.href.endswith("#audits")


def test_units_never_share_a_ranking() -> None:
    found = {(r.dataset, r.unit): {row.name for row in r.rows} for r in rankings(source())}
    assert set(found) == {("mnist", "record"), ("mnist", "client"), ("mnist", "query-label"), ("svhn", "record")}
    assert found["mnist", "client"] == {"fed-dpsd"}
    assert found["mnist", "query-label"] == {"dpsd-label"}


def test_reported_rows_are_told_apart_and_have_no_place(site: Path) -> None:
    (ranking,) = [r for r in rankings(source()) if (r.dataset, r.unit) == ("mnist", "record")]
    theirs = [row for row in ranking.rows if not row.ours]
    assert len(theirs) == 4  # the drop is not an accuracy, and svhn is another ranking
    assert {row.place for row in theirs} == {"–"}
    assert [row.replaced.text for row in theirs if row.replaced.text != "–"] == ["10.00"], "only DP-SGD's is shown"
    found = {row["id"]: row for row in rows_of(site)["rows"]}
    said = str([found[row.id] for row in theirs])
    assert all(text in said for text in ("DGD Tab.\\xa0I", "PATE, text", "sees a classifier (Section III)"))


def test_the_table_has_every_row_with_the_marks_and_places_of_the_board(site: Path) -> None:
    table = rows_of(site)
    found = {row["id"]: row for row in table["rows"]}
    every = [row for ranking in rankings(source()) for row in ranking.rows]
    assert list(found) == [row.id for row in every]
    for line in source().board.rows:
        row = found[f"row-{page_name(line.keys[0])}"]
        assert (row["place"], row["fails"]) == (line.rank, line.claim.bad)
        assert (row["low"], row["high"]) == (round(line.low, 2), round(line.high, 2))
        details = dict(zip(table["details"], row["details"], strict=True))
        assert (details["claim"] or "").startswith(line.claim)
        assert len(details["seed"]) == len(line.keys)
    assert found[f"row-{page_name(records()[5].key)}"]["proven"] == "Infinity"


def test_claims_that_fail_are_named_first_with_the_strongest_contradiction() -> None:
    found = [
        record(method="dpsd", claimed=1.0, proven=29.0),
        record(method="dpsd", claimed=10.0, proven=11.0, epsilon=2.0),
        record(method="dgd", bypasses=("it saw everything",)),
        record(method="pate"),
    ]
    one, other = failing(rankings(Source(found)))
    assert (one[0].name, one[0].replaced.text, one[1]) == ("dgd", "∞", 1)
    assert (other[0].name, other[0].replaced.text, other[1]) == ("dpsd", "29.00", 2)


def test_a_claim_that_is_not_covered_differs_in_shape_and_colour() -> None:
    def picture(claimed: float, proven: float) -> str:
        return row_picture("", claimed=claimed, proven=proven, covered=proven <= claimed)

    assert 'class="c"' in picture(10.0, 4.0)
    assert "<circle" in picture(10.0, 4.0)
    assert 'class="u"' in picture(1.0, 29.0)
    assert "<circle" not in picture(1.0, 29.0)
    assert "open" in picture(1.0, math.inf)
    assert "open" not in picture(1.0, 1.8e7), "finite, however large, is not none"
    rows = {row.name: row for ranking in rankings(source()) for row in ranking.rows if row.ours}
    assert (rows["pate"].fails, rows["dpsd"].fails, rows["dgd"].fails) == (False, True, True)
    assert not rows["nonprivate"].fails, "it claims nothing"


def test_epsilon_has_its_place_on_the_axis() -> None:
    assert row_place(0.0) == row_place(0.01) < row_place(0.1) < row_place(1000.0) < row_place(1001.0)
    assert row_place(10.0) - row_place(1.0) == pytest.approx(row_place(1.0) - row_place(0.1))
    axis = axis_of([0.5, 29.0, 1.8e7, math.inf])
    assert (axis.low, axis.high, axis.beyond) == (-1, 3, True)
    assert axis.place(10.0) == pytest.approx(1.0)
    assert axis.high < axis.place(1.8e7) < axis.place(math.inf) < axis.end
    assert axis_of([]).beyond is False
    assert axis_of([1e308]) == axis_of([1e6])  # a forged epsilon


def test_texts_of_records_stay_text(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = Page(path.read_text())
        scripts = {str(a.get("src") or a.get("type")).rsplit("/", 1)[-1] for a in page.of("script")}
        table = {"tabulator.min.js", "board.js", "json"} if path == site / "index.html" else set()
        assert scripts == {"page.js"} | table, path
        assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes), path
        assert "49" not in page.text.split("=HYPERLINK")[0][-40:], "a template ran inside a text"
    method = Page((site / "methods" / f"{page_name(NASTY)}.html").read_text())
    assert "<script>alert(1)</script></script><!-- " in method.text
    record_page = Page((site / "records" / "nasty.html").read_text())
    assert record_page.text.count("{{ 7*7 }}") >= 6


@given(st.text(max_size=20), st.text(max_size=20))
@settings(max_examples=50)
def test_names_of_pages_are_safe_and_differ(one: str, other: str) -> None:
    for name in (page_name(one), page_name(other)):
        assert 0 < len(name) <= 150
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._+-~")
        assert not name.startswith(".")
    assert (page_name(one) == page_name(other)) == (one == other)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a/b", "..", ".", "", "con\\aux", "A", "x" * 400, "naïve", "a\0b"]
)
def test_hostile_names_stay_in_their_folder(name: str, tmp_path: Path) -> None:
    found = [record(method=name, key=name or "none")]
    write_site(tmp_path / "board", Source(found))
    assert dead_links(tmp_path / "board" / "site") == []
    assert {path.name for path in tmp_path.iterdir()} == {"board"}
    assert {path.name for path in (tmp_path / "board").iterdir()} == {"site"}


def test_same_records_give_the_same_bytes() -> None:
    one = dict(build_site(source()))
    turned = source()
    turned.records, turned.attacks = turned.records[::-1], turned.attacks[::-1]
    other = dict(build_site(turned))
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []


def test_pages_of_a_former_build_are_removed_and_nothing_else(tmp_path: Path) -> None:
    write_site(tmp_path, source())
    mine = tmp_path / "site" / "mine.html"
    mine.write_text("mine")
    names = write_site(tmp_path, Source([record(method="alone")]))
    assert mine.exists()
    mine.unlink()
    assert {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.*")} == set(names)
    assert "records/nasty.html" not in names


def test_the_folder_of_the_site_is_whole_without_the_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs").create()
    found = [record(), record(method="b")]
    for one in found:
        (run.records_path / f"{one.key}.json").write_text(one.to_json())
    write_site(run.path, Source(found, homes={one.key: run.path for one in found}))
    (run.path / "site").rename(tmp_path / "hosted")
    page = Page((tmp_path / "hosted" / "records" / f"{page_name(found[0].key)}.html").read_text())
    (raw,) = [link for link in page.links if link.endswith(".zip")]
    with ZipFile(tmp_path / "hosted" / "records" / raw) as archive:
        assert sorted(archive.namelist()) == sorted(f"records/{page_name(one.key)}.json" for one in found)
        assert archive.read(f"records/{page_name(found[0].key)}.json").decode() == found[0].to_json()
    assert dead_links(tmp_path / "hosted") == []


@pytest.mark.parametrize(("honest", "shown"), [(True, 1), (False, 0)])
def test_released_images_are_copied_where_they_are_what_the_record_says(
    honest: bool, shown: int, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "runs").create()
    data = b"\x89PNG of no image"
    (run.released_path / "a.png").write_bytes(data)
    digest = hashlib.sha256(data if honest else b"another").hexdigest()
    found = [record(image_grid=ImageGrid(file="released/a.png", sha256=digest))]
    write_site(run.path, Source(found, homes={found[0].key: run.path}))
    assert len(list((run.path / "site").glob("images/*.png"))) == shown
    page = Page((run.path / "site" / "methods" / "pate.html").read_text())
    assert len(page.of("img")) == shown
    assert all(image["alt"] for image in page.of("img"))


def test_attacks_show_the_strongest_with_power_or_say_that_none_has() -> None:
    everything = source()
    pate, dpsd = records()[0].key, records()[3].key
    attacks = {pate: everything.attacks[:2], dpsd: everything.attacks[2:]}
    strong = attack_figure("inversion", [pate], attacks)
    assert (strong.text, strong.powerless) == ("25.0", False)
    assert "[10.0, 40.0]" in strong.more
    assert "1 more without power" in strong.note
    weak = attack_figure("inversion", [dpsd], attacks)
    assert (weak.text, weak.powerless, weak.note) == ("no power", True, NASTY)
    assert attack_figure("membership", [pate], attacks).text == "–"
    broken = {pate: [attack(pate, targets={"student": Scores(metrics={})})]}
    assert attack_figure("inversion", [pate], broken).powerless


def without(one: Record, part: str) -> Record:
    return one.model_copy(update={part: None})


def test_a_record_without_an_accuracy_is_refused_by_name_and_the_rest_is_shown(tmp_path: Path) -> None:
    found = [record(), without(record(method="worse"), "utility"), without(record(method="odd"), "privacy")]
    board = build_board(found)
    assert [row.method for row in board.rows] == ["pate"]
    assert [key.split("-")[1] for key, _ in board.refused] == ["odd", "worse"]
    assert "mnist-worse-10.0-s0" in to_markdown(board)
    write_site(tmp_path, Source(found))
    index = Page((tmp_path / "site" / "index.html").read_text())
    assert "it is done, but states no accuracy" in index.text
    assert dead_links(tmp_path / "site") == []


def test_ledger_folds_events_that_repeat() -> None:
    one = record()
    assert one.privacy is not None
    events = [{"kind": "gaussian", "sigma": 1.0, "times": 300}, {"kind": "lnmax", "gamma": 0.1}]
    one = one.model_copy(update={"privacy": one.privacy.model_copy(update={"events": events})})
    assert one.privacy is not None
    rows = ledger_table(one.privacy.events_text).rows
    assert rows == (("300 ×", "gaussian", "sigma 1.0"), ("1 ×", "lnmax", "gamma 0.1"))


def test_command_is_the_recorded_one_or_says_what_it_lacks() -> None:
    command, remark = site_pages.command_of(record(method="a b", epsilon=None, overrides=None))
    assert command == ("python -m bench run --methods 'a b' --datasets mnist --seeds 0")
    assert "--set" in remark


def test_every_method_has_a_page_with_its_docstrings(site: Path) -> None:
    text = Page((site / "methods" / "dpsd-t.html").read_text()).text
    assert "The board has no run of it." in text
    assert "bench.methods.distillation.dpsd" in text
    assert METHODS.get("dpsd-t").citation in text
    assert (METHODS.get("dpsd-t").__doc__ or "").splitlines()[0].split("`")[0] in text


def test_methods_lead_to_a_copy_of_their_source(site: Path) -> None:
    (row,) = [r for ranking in rankings(source()) for r in ranking.rows if r.method == "pate" and r.ours][:1]
    assert (row.code.text, row.code.href) == ("methods/pate/pate.py", "code/pate.py.txt")
    assert 'href="../code/pate.py.txt"' in (site / "methods" / "pate.html").read_text()
    assert (site / "code" / "pate.py.txt").read_bytes() == (ROOT / "methods" / "pate" / "pate.py").read_bytes()


def test_verdicts_stand_in_the_rows_and_on_the_page_of_the_method(site: Path) -> None:
    page = Page((site / "methods" / "dgd.html").read_text())
    assert "the generator sees a classifier (Section III)" in page.text
    assert "drop 1.2" in page.text, "numbers that are no accuracies stand there too"
    row = next(
        r
        for ranking in rankings(source(reported=[reported(verdict=Verdict.IMPOSSIBLE)]))
        for r in ranking.rows
        if not r.ours
    )
    assert (row.fails, row.claim) == (True, "paper: impossible as claimed; code: not read")


def leaderboard(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["leaderboard", *words])
    return done.exit_code, done.stderr, str(done.exception or "")


def test_command_writes_the_site_and_warns_of_what_it_does_not_show(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs").create()
    for one in (record(), without(record(method="worse"), "utility")):
        (run.records_path / f"{one.key}.json").write_text(one.to_json())
    code, err, _ = leaderboard(str(run.path))
    assert code == 0
    assert "warning: mnist-worse-10.0-s0 is not shown: it is done, but states no accuracy" in err
    assert dead_links(run.path / "site") == []
    assert "DGD Tab.\u00a0I" in (run.path / "site" / "index.html").read_text()


def test_command_without_records_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    code, _, why = leaderboard(str(tmp_path / "empty"))
    assert code
    assert "no records in" in why
    assert "bench run --out" in why
    assert not (tmp_path / "empty" / "site").exists()
    monkeypatch.chdir(tmp_path)
    home = RunDir(tmp_path / "leaderboards").create()
    (home.records_path / f"{record().key}.json").write_text(record().to_json())
    assert leaderboard()[0] == 0
    assert (tmp_path / "leaderboards" / "site" / "index.html").is_file()


def test_records_that_cannot_be_read_are_named_and_stay_where_they_are(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    newer = run.records_path / f"{record().key}.json"
    newer.write_text(record().to_json().replace('"schema_version": 3', '"schema_version": 99'))
    code, _, why = leaderboard(str(run.path))
    assert code
    assert "no record can be read" in why
    assert "schema version 99, this program reads up to 3" in why
    assert newer.name in why
    assert newer.exists()
    (run.records_path / f"{record(seed=1).key}.json").write_text(record(seed=1).to_json())
    code, err, _ = leaderboard(str(run.path))
    assert code == 0
    assert f"warning: {newer.name} is damaged (schema version 99" in err
    assert newer.exists()


def test_the_first_table_has_the_best_row_within_each_budget(site: Path) -> None:
    found = [
        record(method="cheap", claimed=1.0, proven=0.9, accuracy=0.8),
        record(method="dear", claimed=10.0, proven=9.0, accuracy=0.9),
        record(method="far", claimed=1.0, proven=1.8e7, accuracy=0.99),
        record(method="dgd", bypasses=("it saw everything",), accuracy=0.98),
        record(method="nonprivate", epsilon=None, claimed=math.inf, bypasses=("all",), accuracy=0.97),
    ]
    (line,) = glance(rankings(Source(found, reported=[reported(), reported(dataset="svhn")])))
    ranking, best = line
    names = [row and row.name for row in best]
    assert names == ["cheap", None, "dear", "nonprivate"], "neither what is proven too late nor what is only claimed"
    small = [small_print(row) for row in best if row][1:]
    assert small[0].startswith("proven 9.00, claimed 10.00, 1 seed")
    assert small[1].startswith("1 seed")
    assert (ranking.dataset, len(ranking.rows) - ranking.ours) == ("mnist", 1)
    (far,) = glance(rankings(Source(found[2:3])))
    assert far[1] == [None] * 4
    assert "none proven" in (site / "index.html").read_text()


def test_the_answer_is_the_best_row_of_the_lowest_band() -> None:
    found = [
        record(method=name, claimed=1.0, proven=0.9, accuracy=accuracy, seed=seed, key=f"{name}-{seed}")
        for name, accuracy in (("worse", 0.8), ("better", 0.9))
        for seed in range(3)
    ]
    for seed in range(3):
        one = record(method="other", claimed=1.0, proven=0.9, accuracy=0.95, seed=seed, key=f"other-{seed}")
        assert one.privacy is not None
        privacy = one.privacy.model_copy(update={"adjacency": Adjacency.ADD_REMOVE})
        found.append(one.model_copy(update={"privacy": privacy}))
    row, before, after = answer(rankings(Source(found))) or pytest.fail("no answer")
    assert (row.name, before) == (
        "better", "At a proven epsilon of 1 on MNIST, the most accurate student is that of "
    )  # fmt: skip
    assert after == ("90.00% for replace-one neighbours (other: 95.00% for add-remove). It is not audited")
    assert answer(rankings(Source([record(claimed=1.0, proven=math.inf)]))) is None


def test_what_an_audit_contradicts_is_nobodys_best() -> None:
    one = record(claimed=1.0, proven=0.5)
    board = build_board([one], [audit(one.key)])
    assert board.rows[0].audited is not None
    assert board.rows[0].audited > board.rows[0].proven
    (line,) = glance(rankings(Source([one], [audit(one.key)])))
    assert line[1] == [None] * 4
