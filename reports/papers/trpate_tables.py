"""TrPATE's tables next to our records (Wang et al., IEEE Access 2019); for the findings see docs/transfer.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.reports.papers.evidence import Plain, WantedCell, as_preset, cell
from bench.reports.papers.spec import Entry, Material, Ours, Paper, TableRow, Theirs, number_text
from bench.reports.papers.trpate_figures import FIGURES, TEXTS, Settings, measured, plain_pate, transferred
from bench.reports.reported.numbers import Reported
from bench.results.text import claimed_text, epsilon_text

SPLITS = (
    ("CIFAR-10", "cifar10", transferred("trpate", "cifar10", 0.05, 1000)),
    ("STL-10", "stl10", transferred("trpate", "stl10", 0.05, 1000)),
    ("Movie Review", "movie-review", transferred("trpate", "movie-review", 0.05, 1000)),
    ("Movie Review, with SST", "movie-review", transferred("trpate", "movie-review-sst", 0.05, 1000)),
)
SOURCES = {"cifar10": "ImageNet", "stl10": "ImageNet", "movie-review": "SST"}
"""The paper's sources (its table 1)."""


def _table_1(material: Material) -> Sequence[TableRow]:
    rows = []
    for name, dataset, one in SPLITS:
        entries: list[Entry] = [name]
        for part in ("private", "public", "test"):
            theirs = material.one(table="1", dataset=dataset, setting=part)
            entries += [Theirs(theirs, digits=0), Ours(one, part, 0)]
        found = material.find(one)
        source = "not run" if found is None else found.records[0].public_data.partition("; unlabelled")[0]
        rows.append(TableRow((*entries, SOURCES[dataset], source)))
    return rows


QUERIES_2 = (1000, 500, 200, 150, 100)
QUERIES = (1000, 500, 200, 100)


def _row(
    material: Material, head: Sequence[Entry], table: str, setting: str, pate: WantedCell, trpate: WantedCell, *,
    rule: bool = False,
) -> TableRow:  # fmt: skip
    epsilon, printed_pate, printed = (
        material.one(table=table, column=column, setting=setting) for column in ("epsilon", "PATE", "TrPATE")
    )
    entries = (
        Theirs(epsilon), Ours(trpate, "claimed"), Ours(trpate, "proven"), Theirs(printed_pate),
        Ours(pate, beside=printed_pate), Theirs(printed), Ours(trpate, beside=printed), Ours(trpate, "labels", 1),
    )  # fmt: skip
    return TableRow((*head, *entries), rule)


def _baseline(head: Sequence[Entry], theirs: Reported | None, one: WantedCell) -> TableRow:
    return TableRow((*head, "∞", "∞", "∞", "–", "–", Theirs(theirs), Ours(one, beside=theirs), "–"), rule=True)


def _first(material: Material, table: str) -> Reported | None:
    return next(iter(material.printed(table=table, column="Baseline")), None)


def _table_2(material: Material) -> Sequence[TableRow]:
    rows = [
        _row(material, (str(q),), "2", f"{q} queries", plain_pate("cifar10", 0.05, q),
             transferred("trpate", "cifar10", 0.05, q))
        for q in QUERIES_2
    ]  # fmt: skip
    return [*rows, _baseline(("no privacy",), _first(material, "2"), BASELINE_2)]


BASELINE_2 = cell("nonprivate-transfer", "cifar10", preset="paper")
BASELINE_4 = cell("nonprivate-transfer", "movie-review", preset="paper")
_TRAINED_HERE: Settings = {"backbone": "resnet50", "weights": "source:imagenet", "source_epochs": 90.0}
IMAGENETS: tuple[tuple[str, Settings], ...] = (
    ("ImageNet1x", {}),
    ("ImageNet0.5x", {**_TRAINED_HERE, "source_fraction": 0.5}),
    ("ImageNet0.1x", {**_TRAINED_HERE, "source_fraction": 0.1}),
)


def _table_3(material: Material) -> Sequence[TableRow]:
    rows = []
    for source, settings in IMAGENETS:
        for number, q in enumerate(QUERIES):
            trpate = transferred("trpate", "stl10", 0.05, q, settings)
            head = (source, str(q))
            rows.append(
                _row(material, head, "3", f"{q} queries, {source}", plain_pate("stl10", 0.05, q), trpate,
                     rule=number == 0)
            )  # fmt: skip
    scratch = cell("nonprivate", "stl10", student="resnet50")
    return [*rows, _baseline(("no privacy", "from scratch"), _first(material, "3"), scratch)]


TEXT = (("movie-review", "IMDB"), ("movie-review-sst", "SST"))
"""Data sets and sources of tables 4 and 5: we use IMDB; the paper uses SST, which contains the private sentences."""


def _text_table(material: Material, table: str, model: str) -> list[TableRow]:
    rows = []
    # PATE's CNN trains all layers on a teacher's partition.
    bayes = model == "naive Bayes"
    for dataset, source in TEXT:
        for gamma in (0.05, 0.1):
            for number, q in enumerate(QUERIES):
                trpate = transferred("trpate-bayes" if bayes else "trpate", dataset, gamma, q)
                if bayes:
                    pate = transferred("pate-bayes", dataset, gamma, q)
                else:
                    pate = plain_pate(dataset, gamma, q, teachers=80, teacher="text_cnn", student="text_cnn")
                head = (source, f"{gamma:g}", str(q))
                setting = f"{model}, gamma {gamma:g}, {q} queries"
                rows.append(_row(material, head, table, setting, pate, trpate, rule=number == 0))
    return rows


def _table_4(material: Material) -> Sequence[TableRow]:
    rows = _text_table(material, "4", "CNN")
    head = ("no privacy", "IMDB features", "–")
    return [*rows, _baseline(head, _first(material, "4"), BASELINE_4)]


def _table_5(material: Material) -> Sequence[TableRow]:
    return _text_table(material, "5", "naive Bayes")


def _lower(material: Material, method: str, dataset: str) -> dict[str, str]:
    found = material.find(transferred(method, dataset, 0.05, 1000))
    if found is None:
        return {"claimed": "", "proven": ""}
    return {
        "claimed": claimed_text(found.row.claimed, found.row.proven),
        "proven": epsilon_text(found.row.proven, "up"),
    }


def _found_2(material: Material) -> Mapping[str, str]:
    gaps = []
    for q in QUERIES_2:
        here = measured(material, transferred("trpate", "cifar10", 0.05, q))
        theirs = material.one(table="2", column="TrPATE", setting=f"{q} queries")
        if here is not None and theirs is not None:
            gaps.append(here - theirs.value)
    return {"gaps": f"{min(gaps):+.2f} to {max(gaps):+.2f}" if gaps else "", **_lower(material, "trpate", "cifar10")}


def _found_3(material: Material) -> Mapping[str, str]:
    best = material.one(table="3", column="TrPATE", setting="1000 queries, ImageNet1x")
    return {"best": Theirs(best).text, "baseline": Theirs(_first(material, "3"), digits=1).text}


def _found_4(material: Material) -> Mapping[str, str]:
    each = [(measured(material, transferred("trpate", "movie-review", 0.05, q)), q) for q in QUERIES]
    whole = measured(material, BASELINE_4)
    best, queries = max(((value, q) for value, q in each if value is not None), default=(None, 0))
    return {
        "queries": str(queries),
        "best": "" if best is None else number_text(best),
        "whole": "" if whole is None else number_text(whole),
        **_lower(material, "trpate", "movie-review"),
    }


def _found_5(material: Material) -> Mapping[str, str]:
    few, many = (measured(material, transferred("trpate-bayes", "movie-review", 0.05, q)) for q in (100, 1000))
    return {
        "move": "" if few is None or many is None else f"{many - few:+.2f}",
        "baseline": Theirs(_first(material, "5")).text,
        **_lower(material, "trpate-bayes", "movie-review"),
    }


_TRANSFER = (
    "weights", "image_size", "source_fraction", "source_epochs", "teachers", "gamma", "hidden", "least_queries",
    "claim", "backbone",
)  # fmt: skip
_BAYES = ("teachers", "gamma", "alpha", "source_fraction", "source_weight", "least_queries", "claim", "backbone")

PLAIN: Plain = {
    "trpate": {name: as_preset(name) for name in _TRANSFER},
    "trpate-bayes": {name: as_preset(name) for name in _BAYES},
    "pate-bayes": {name: as_preset(name) for name in ("teachers", "gamma", "alpha", "least_queries", "claim")},
    "nonprivate": {"records": as_preset("records")},
    "nonprivate-transfer": {
        name: as_preset(name) for name in ("records", "backbone", "weights", "image_size", "source_fraction", "hidden")
    },
}

PAPER = Paper(
    "trpate",
    "TrPATE (Wang et al., IEEE Access 2019)",
    tables=(
        TEXTS.table("1", _table_1),
        TEXTS.table("2", _table_2, _found_2),
        TEXTS.table("3", _table_3, _found_3),
        TEXTS.table("4", _table_4, _found_4),
        TEXTS.table("5", _table_5, _found_5),
    ),
    figures=FIGURES,
    plain=PLAIN,
)
