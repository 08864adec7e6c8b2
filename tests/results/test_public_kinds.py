"""Kinds of public data: declarations of methods, texts of older records, and the site's filter."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from bench.core.types import Facts, PublicKind
from bench.interface.registry import METHODS
from bench.reports.leaderboard import Source
from bench.reports.site.build import write_site
from bench.results.record import Record
from bench.results.record_upgrades import public_kinds_of_words
from bench.results.run_dir import RunDir
from helpers.paths import ROOT
from helpers.records import record
from helpers.site import reported, rows_of


def committed() -> list[Record]:
    folders = (ROOT / "leaderboards", ROOT / "leaderboards" / "ablations")
    return [found for folder in folders for found in RunDir(folder).read_records(set_aside=False).found]


def test_words_of_older_records_have_kinds() -> None:
    of = public_kinds_of_words
    assert of("none") == ["none"]
    assert of("unlabelled images of the target's distribution") == ["unlabelled"]
    assert of("ImageNet through resnet50 (overlap: x); unlabelled images") == ["transferred", "unlabelled"]
    assert of("an untrained net", transferred=True) == of("an untrained net", "trpate") == ["transferred"]
    assert of("a prior from imdb; unlabelled records") == ["labelled", "unlabelled"]
    assert of("the images of the private records, whose labels alone are private") == ["private-images"]
    assert of("not stated by the table") == ["not-stated"]
    assert of("words of a paper") == ["other"]


def test_words_of_the_committed_records_say_what_their_methods_declare() -> None:
    found = [one for one in committed() if one.cell.plugin is None]  # a plug-in may not be installed here
    assert len(found) > 400
    for one in found:
        if one.config.get("teacher_init", "random") != "random":  # a stand-in for the config starts nothing
            own = [kind for kind in METHODS.get(one.method).public_data_kinds if kind is not PublicKind.NONE]
            assert public_kinds_of_words(one.public_data, one.method) == one.public_kinds, one.key
            assert one.public_kinds == ["transferred", *own], one.key
            continue
        facts = Facts(one.dataset, one.private_records, one.public_records, 1_000, 10, (1, 28, 28))
        declared = list(METHODS.get(one.method)(SimpleNamespace(**one.config), facts).public_kinds())
        if one.config.get("backbone") != "noise_wrn":  # it saw no data; records with it always state their kinds
            assert public_kinds_of_words(one.public_data, one.method) == declared, one.key
        assert one.public_kinds == declared, one.key


def test_a_record_keeps_what_it_states_and_the_site_filters_by_it(tmp_path: Path) -> None:
    words = "ImageNet through x (overlap: private records may lie in it)"
    stated = record(method="new", public_data=words, public_kinds=[PublicKind.OTHER, PublicKind.UNLABELLED])
    assert Record.model_validate_json(stated.to_json()).public_kinds == ["other", "unlabelled"]
    older = record(method="old", public_data=words, public_kinds=public_kinds_of_words(words))
    theirs = [reported(public_data=words, public_kinds=(PublicKind.NONE,))]
    write_site(tmp_path, Source([stated, older], reported=theirs))
    kinds = {row["method"]: row["public"] for row in rows_of(tmp_path / "site")["rows"]}
    assert kinds == {"new": ["other", "unlabelled"], "old": ["transferred", "private-images"], "dgd": ["none"]}
