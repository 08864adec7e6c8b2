"""DPSD's tables next to our records (Liu et al., arXiv:2601.19090)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bench.core.grouping import grouped
from bench.core.types import Basis
from bench.reports.papers.dpsd_ablations import NAMES, TEXTS, TWO, shown
from bench.reports.papers.dpsd_figures import FIGURES
from bench.reports.papers.evidence import Check, Plain, Setting, WantedCell, as_preset, cell, elsewhere, proven_cell
from bench.reports.papers.spec import Entry, Material, Ours, Paper, TableRow, Theirs, number_text
from bench.reports.reported.numbers import Reported
from bench.results.record import Record
from bench.results.text import claimed_text, epsilon_text

IMAGES = ("mnist", "fmnist", "celeba-g", "celeba-h")
Place = tuple[str, float | None]
"""Data set and epsilon of a column."""


def _at(numbers: Iterable[Reported], place: Place) -> Reported | None:
    """Return the accuracy of a column; a system without privacy has one for all epsilons."""
    dataset, epsilon = place
    for number in numbers:
        there = epsilon is None or number.epsilon is None or number.epsilon in (epsilon, float("inf"))
        if there and number.measure == "accuracy" and number.dataset == dataset:
            return number
    return None


def _printed(material: Material, table: str) -> list[tuple[list[Reported], tuple[Entry, ...]]]:
    """Return the numbers of each printed row and its head: approach, unit, public data, verdict."""
    rows = grouped((number.row, number) for number in material.printed(table=table))
    found: list[tuple[list[Reported], tuple[Entry, ...]]] = []
    for label, numbers in rows.items():
        verdicts = "; ".join(dict.fromkeys(number.verdicts for number in numbers))
        found.append((numbers, (label, numbers[0].unit, numbers[0].public_data, verdicts)))
    return found


def _printed_rows(material: Material, places: Sequence[Place], table: str) -> list[TableRow]:
    return [
        TableRow((*head, *(Theirs(_at(numbers, place)) for place in places)))
        for numbers, head in _printed(material, table)
    ]


def _beside(material: Material, places: Sequence[Place], table: str, system: str = "DPSD") -> list[Reported | None]:
    return [_at(material.printed(table=table, system=system), place) for place in places]


def _ours(
    label: str, unit: str, verdict: str, cells: Sequence[WantedCell], beside: Sequence[Reported | None] = (),
    measure: str = "accuracy", *, rule: bool = False, public: str = "none",
) -> TableRow:  # fmt: skip
    printed = beside or [None] * len(cells)
    entries = (Ours(one, measure, beside=number) for one, number in zip(cells, printed, strict=True))
    return TableRow((label, unit, public, verdict, *entries), rule)


def _others(material: Material, places: Sequence[Place], table: str) -> list[TableRow]:
    """Return the rows of other papers' systems that have a record."""
    rows: list[TableRow] = []
    for numbers, _ in _printed(material, table):
        unit = numbers[0].unit
        for label, method, basis in elsewhere(numbers[0]):
            cells = [WantedCell(method, dataset, epsilon, basis) for dataset, epsilon in places]
            if not any(map(material.find, cells)):
                continue
            claimed = basis is Basis.CLAIMED
            beside = [_at(numbers, place) for place in places] if claimed else []
            rows.append(_ours(label, unit, "" if claimed else "sound", cells, beside, rule=not rows))
            rows += [_ours("its proven ε", unit, "", cells, measure="proven")] if claimed else []
    return rows


def _claimed(method: str, places: Sequence[Place]) -> list[WantedCell]:
    return [cell(method, dataset, epsilon) for dataset, epsilon in places]


def _dpsd_rows(places: Sequence[Place], beside: Sequence[Reported | None]) -> list[TableRow]:
    claimed = _claimed("dpsd", places)
    sound = [proven_cell("dpsd-sound", dataset, epsilon) for dataset, epsilon in places]
    return [
        _ours("DPSD here, ε claimed", "record", "proven > claimed", claimed, beside, rule=True),
        _ours("its proven ε", "record", "", claimed, measure="proven"),
        _ours("DPSD-sound here, ε proven", "record", "sound", sound),
    ]


TABLE_1: tuple[Place, ...] = tuple((dataset, epsilon) for dataset in IMAGES for epsilon in (1.0, 10.0))
TABLE_2: tuple[Place, ...] = tuple(
    (dataset, epsilon) for dataset in ("medmnist-pathmnist", "covidx") for epsilon in (1.0, 10.0)
)


def _table_1(material: Material) -> Sequence[TableRow]:
    baseline, dgd = (_beside(material, TABLE_1, "I", system) for system in ("Baseline", "DGD"))
    bare = [cell("nonprivate", dataset) for dataset, _ in TABLE_1]
    return [
        *_printed_rows(material, TABLE_1, "I"),
        *_others(material, TABLE_1, "I"),
        _ours("without privacy, here", "none", "no privacy", bare, baseline, rule=True),
        *_dpsd_rows(TABLE_1, _beside(material, TABLE_1, "I")),
        _ours("DGD here, ε claimed", "record", "nothing is proven", _claimed("dgd", TABLE_1), dgd),
    ]


def _found_1(material: Material) -> Mapping[str, str]:
    found = []
    for dataset, epsilon in TABLE_1:
        one = material.find(cell("dpsd", dataset, epsilon))
        sound = material.find(proven_cell("dpsd-sound", dataset, epsilon))
        if one is None:
            continue
        text = (
            f"{NAMES[dataset]}, ε {epsilon:g}: DPSD has {number_text(one.row.accuracy)} at claimed "
            f"{claimed_text(one.row.claimed, one.row.proven)}, proven {epsilon_text(one.row.proven, 'up')}, audited "
            f"{one.row.audited_text}"
        )
        if sound is not None:
            proven = epsilon_text(sound.row.proven, "up")
            text += f"; repaired, at proven {proven}, it has {number_text(sound.row.accuracy)}"
        found.append(text)
    return {"found": ". ".join(found)}


def _table_2(material: Material) -> Sequence[TableRow]:
    # The paper does not name its MedMNIST data set; ours is PathMNIST.
    printed: tuple[Place, ...] = tuple((dataset.partition("-")[0], epsilon) for dataset, epsilon in TABLE_2)
    return [*_printed_rows(material, printed, "II"), *_dpsd_rows(TABLE_2, _beside(material, TABLE_2, "II"))]


BUDGETS_3 = ((1.0, 2.0), (2.0, 3.0))
"""Our epsilons for DP-SGD on MNIST and CIFAR10: DPSD's, and the next one in the table."""


def _table_3(material: Material) -> Sequence[TableRow]:
    places: tuple[Place, ...] = (("mnist", None), ("cifar10", None))
    rows = []
    for numbers, head in _printed(material, "III"):
        each = (_at(numbers, place) for place in places)
        rows.append(TableRow((*head, *(entry for n in each for entry in (Theirs(n, "epsilon", 1), Theirs(n))))))
    for numbers, _ in _printed(material, "III"):
        printed = [_at(numbers, place) for place in places]
        for label, method, basis in elsewhere(numbers[0]):
            cells = [
                WantedCell(method, dataset, None if number is None else number.epsilon, basis)
                for (dataset, _), number in zip(places, printed, strict=True)
            ]
            if basis is Basis.CLAIMED and any(map(material.find, cells)):
                rows += [_beside_3(label, "", cells, printed), _proven_3(cells)]
    dpsd = (cell("dpsd", "mnist", 1.0), cell("dpsd", "cifar10", 2.0))
    sound = (proven_cell("dpsd-sound", "mnist", 1.0), proven_cell("dpsd-sound", "cifar10", 2.0))
    rows += [
        _beside_3("DPSD here, ε claimed", "proven > claimed", dpsd, _beside(material, places, "III"), rule=True),
        _proven_3(dpsd),
        _beside_3("DPSD-sound here, ε proven", "sound", sound),
    ]
    for first, second in BUDGETS_3:
        dp_sgd = (cell("dp-sgd", "mnist", first), cell("dp-sgd", "cifar10", second, student="tanh_cnn_cifar"))
        rows += [_beside_3("DP-SGD here", "sound", dp_sgd, rule=first == 1.0), _proven_3(dp_sgd)]
    return rows


def _beside_3(
    label: str, verdict: str, cells: Sequence[WantedCell], beside: Sequence[Reported | None] = (None, None), *,
    rule: bool = False,
) -> TableRow:  # fmt: skip
    pairs = ((f"{one.epsilon:.1f}", Ours(one, beside=number)) for one, number in zip(cells, beside, strict=True))
    return TableRow((label, "record", "none", verdict, *(entry for pair in pairs for entry in pair)), rule)


def _proven_3(cells: Sequence[WantedCell]) -> TableRow:
    pairs = ((Ours(one, "replace_one"), "") for one in cells)
    return TableRow(("its proven ε, replace-one", "record", "none", "", *(entry for pair in pairs for entry in pair)))


def _found_3(material: Material) -> Mapping[str, str]:
    found = []
    for epsilon in (1.0, 2.0):
        text = shown(material, cell("dp-sgd", "mnist", epsilon), f" on MNIST at claimed ε {epsilon:g} and proven ")
        found += [f"DP-SGD with a tanh net has {text}"] if text else []
    text = shown(material, cell("dpsd", "mnist", 1.0), " at claimed ε 1, proven ")
    return {"found": ". ".join([*found, *([f"DPSD has {text}"] if text else [])])}


TABLE_4: tuple[Place, ...] = (
    ("mnist", 1.0), ("fmnist", 1.0), ("celeba-h", 1.0), ("celeba-h", 2.0), ("celeba-g", 3.0), ("celeba-g", 8.0),
)  # fmt: skip


def _table_4(material: Material) -> Sequence[TableRow]:
    rows = []
    for numbers, head in _printed(material, "IV"):
        unknown = ", ".join(number_text(number.value) for number in numbers if number.dataset not in IMAGES)
        rows.append(TableRow((*head, *(Theirs(_at(numbers, place)) for place in TABLE_4), unknown or "–")))
    cells = _claimed("dpsd-label", TABLE_4)
    label, beside = "DPSD(L) here, ε of a query's label", _beside(material, TABLE_4, "IV", "DPSD(L)")
    ours = [
        _ours(label, "query-label", "sound for a query's label", cells, beside, rule=True),
        _ours("its proven ε", "query-label", "", cells, measure="proven"),
    ]
    rows += [TableRow((*row.entries, "–"), row.rule) for row in (*_others(material, TABLE_4, "IV"), *ours)]
    levels = [_record_level(material, one) for one in cells]
    return [*rows, TableRow(("ε of a training record there", "record", "none", "", *levels, "–"), rule=True)]


def _record_level(material: Material, wanted: WantedCell) -> str:
    found = material.find(wanted)
    if found is None:
        return "not run"
    levels = [r.privacy.record_level.epsilon for r in found.records if r.privacy and r.privacy.record_level]
    return epsilon_text(max(levels), "up") if levels else "–"


FEDERATED = (
    ("FedAVG", "fedavg"), ("FedDAFL", "fed-dafl"), ("FedDF", "feddf"), ("FedADI", "fed-adi"), ("DENSE", "dense"),
)  # fmt: skip
TABLE_5: tuple[Place, ...] = tuple((dataset, None) for dataset in ("mnist", "fmnist", "cifar10", "imagenet"))


def _table_5(material: Material) -> Sequence[TableRow]:
    cells = [cell("fed-dpsd", dataset, 10.0) for dataset, _ in TABLE_5]
    beside = _beside(material, TABLE_5, "V", "FedDPSD")
    bare = [
        _ours(
            f"{system} here", "none", "no privacy", [cell(method, dataset) for dataset, _ in TABLE_5],
            _beside(material, TABLE_5, "V", system), rule=method == "fedavg",
            public="unlabelled images" if method == "feddf" else "none",
        )
        for system, method in FEDERATED
    ]  # fmt: skip
    private = [proven_cell("dp-fedavg", dataset, 10.0) for dataset, _ in TABLE_5]
    return [
        *_printed_rows(material, TABLE_5, "V"),
        *bare,
        _ours("FedDPSD here, ε 10 claimed", "client", "proven > claimed", cells, beside, rule=True),
        _ours("its proven ε", "client", "", cells, measure="proven"),
        _ours("DP-FedAvg here, 1,000 clients, ε proven", "client", "sound", private),
    ]


TERMS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("", {}),
    ("without CE", {"one_hot_loss": False}),
    ("without IE", {"entropy_loss": False}),
    ("without NORM", {"activation_loss": False}),
)
"""Ablations of Eq. 8 in table VI: printed setting and our settings."""
SYSTEMS_6 = (("DPSD", "dpsd"), ("DPSD(L)", "dpsd-label"))


def _term(material: Material, system: str, dataset: str, setting: str) -> Reported | None:
    return material.one(table="VI", dataset=dataset, system=system, setting=setting)


def _table_6(material: Material) -> Sequence[TableRow]:
    rows = []
    for dataset in TWO:
        for setting, change in TERMS:
            entries: list[Entry] = [NAMES[dataset]]
            entries += ["yes" if f"without {term}" != setting else "–" for term in ("CE", "IE", "NORM")]
            for system, method in SYSTEMS_6:
                theirs = _term(material, system, dataset, setting)
                entries += [Theirs(theirs), Ours(cell(method, dataset, 10.0, **change), beside=theirs)]
            rows.append(TableRow(tuple(entries), rule=not setting))
    return rows


def _found_6(material: Material) -> Mapping[str, str]:
    lines = []
    for dataset in TWO:
        for system, method in SYSTEMS_6:
            whole, printed = material.find(cell(method, dataset, 10.0)), _term(material, system, dataset, "")
            for setting, change in TERMS[1:]:
                found = material.find(cell(method, dataset, 10.0, **change))
                theirs = _term(material, system, dataset, setting)
                if whole and found and printed and theirs:
                    lines.append(
                        f"{NAMES[dataset]}, {system}, {setting}: {found.row.accuracy - whole.row.accuracy:+.2f} points "
                        f"here, {theirs.value - printed.value:+.2f} in the paper"
                    )
    return {"found": "; ".join(lines)}


_QUICK: dict[str, Setting] = {"beta": 1e-4, "iterations": 300, "random_share": 0.75, "teacher": "small_cnn"}
_CLASSES = {"celeba-g": 2, "celeba-h": 3, "covidx": 3, "cifar100": 100, "imagenet": 1000, "medmnist-pathmnist": 9}
_ABLATED = (
    "iterations", "k", "amount", "one_hot_loss", "entropy_loss", "activation_loss", "generator_loss", "train_latents",
    "random_share", "teacher", "student", "batch", "optimizer",
)  # fmt: skip
_DATA_SENSITIVE = ("beta", "sigma", "calibrate", "distillation", "non_target_weight", "bounding", "stability", "eq3")


def _usual(fields: Iterable[str], quick: Mapping[str, Setting]) -> dict[str, Check]:
    """Return, for each field, a check that it has the preset's value; `quick` lists the values of that preset."""
    return {name: as_preset(name, **({"quick": quick[name]} if name in quick else {})) for name in fields}


def _by_classes(name: str, few: Setting | None, many: Setting, record: Record) -> bool:
    """Return whether `name` has the quick preset's value, which is `many` from 1,000 classes on."""
    return as_preset(name, quick=many if _CLASSES.get(record.dataset, 10) >= 1000 else few)(record)


def _clients(record: Record) -> bool:
    """Return whether dp-fedavg has the preset's number of clients: in quick, at most one per 50 CIFAR10 records."""
    return as_preset("clients", **({"quick": 800} if record.dataset == "cifar10" else {}))(record)


def _all_classes(record: Record) -> bool:
    """Return whether k has the preset's value: all classes in quick, otherwise the value in section IV-A."""
    if record.preset == "quick":
        return record.config.get("k") == _CLASSES.get(record.dataset, 10)
    return as_preset("k")(record)


PLAIN: Plain = {
    "dpsd": _usual((*_ABLATED, *_DATA_SENSITIVE), _QUICK),
    "dpsd-t": _usual((*_ABLATED, *_DATA_SENSITIVE), _QUICK),
    "fed-dpsd": _usual((*_ABLATED, *_DATA_SENSITIVE, "clients", "concentration"), {**_QUICK, "iterations": 200})
    | {"beta": partial(_by_classes, "beta", 1e-4, 1e-6), "amount": partial(_by_classes, "amount", None, 4096)},
    "dpsd-label": {**_usual((*_ABLATED, "outside"), _QUICK), "k": _all_classes},
    "dpsd-sound": _usual(("answer", "rounds", "random_share", "distillation", "k", "teacher", "student"), {}),
    "nonprivate": {"records": as_preset("records")},
    **{method: _usual(("clients", "concentration", "student"), {}) for _, method in FEDERATED},
    "dp-fedavg": {**_usual(("concentration", "student"), {}), "clients": _clients},
}

TABLES = (
    TEXTS.table("I", _table_1, _found_1),
    TEXTS.table("II", _table_2),
    TEXTS.table("III", _table_3, _found_3),
    TEXTS.table("IV", _table_4),
    TEXTS.table("V", _table_5),
    TEXTS.table("VI", _table_6, _found_6),
)

PAPER = Paper("dpsd", "DPSD (Liu et al., model transcription)", tables=TABLES, figures=FIGURES, plain=PLAIN)
