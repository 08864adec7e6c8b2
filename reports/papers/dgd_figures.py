"""DGD's figures: Ge et al., IEEE TIP 2023."""

from __future__ import annotations

from collections.abc import Sequence

from reports.papers.evidence import Cell, cell
from reports.papers.spec import (
    Attacked,
    FigureSpec,
    Material,
    Ours,
    Panel,
    Picture,
    PicturePanel,
    Point,
    Series,
    Theirs,
)
from reports.papers.vote_accounting import noise_panel, queries_panel

QUERIES = (27, 750, 1000, 3000)
"""Section IV-B, label query."""
QUERY_TICKS = (27, 100, 300, 1000, 3000)
GENERATORS = {"data-free": "data-free", "acgan": "ACGAN", "wgan": "WGAN", "infogan": "InfoGAN", "private": "RAW"}
"""Our setting `images` to the name in Fig. 4."""
AMOUNTS = (1000, 2000, 5000, 10_000, 20_000, 40_000, 60_000, 80_000)
"""Ours: the text says that there are 8 amounts, and names 60,000."""
EPSILONS = (1.0, 2.0, 4.0, 8.0, 10.0)
"""Ours: the text does not name the epsilons of Fig. 7 and 8."""
TEACHERS = (50, 100, 150, 200, 250, 300)
"""Ours: the text does not name the numbers of Fig. 8."""
ATTACKS = {"data-free": "data-free [62]", "mi-face": "MI-Face [7]", "inversion-network": "inversion network [8]"}
ROLES = {
    "student": "student",
    "non-private": "same net without privacy",
    "counterfactual": "trained on other records",
    "prior": "not trained",
}
"""Role of a target in a record of an attack to what it is."""
SHEET = (0.0, 0.045, 0.77, 0.52)
"""Of an attack's image grid: its first five classes without the private records that it compares with."""
NAMES = {"mnist": "MNIST", "fmnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}


def _figure_3(material: Material) -> Sequence[Panel]:
    cells = {queries: cell("dgd", "mnist", 10.0, count="given", queries=queries) for queries in QUERIES}
    printed = [n for n in material.printed(table="text", system="DGD", measure="accuracy") if "queries" in n.setting]
    theirs = tuple(Point(float(n.setting.partition(" ")[0]), Theirs(n)) for n in printed)
    # What the preset asks for at other epsilons, at the same noise.
    others = [Cell("dgd", "mnist", epsilon) for epsilon in EPSILONS[1:]]
    points = (
        *(Point(float(q), Ours(c)) for q, c in cells.items()),
        *(Point(Ours(c, "queries"), Ours(c)) for c in others),
    )
    costs = (
        *(Point(float(q), Ours(c, "claimed")) for q, c in cells.items()),
        *(Point(Ours(c, "queries"), Ours(c, "claimed")) for c in others),
    )
    accuracy = (
        Series("DGD, here", points, 0),
        Series("DGD, printed", theirs, 0, "theirs"),
    )
    cost = queries_panel(QUERIES, scale=40.0)
    ran = Series("claimed of our runs", costs, 3)
    return [
        Panel("after training", "label queries", "accuracy (%)", accuracy, x_scale="log", x_ticks=QUERY_TICKS),
        Panel(
            "cost of the queries alone", cost.x_label, cost.y_label, (*cost.series, ran), x_scale="log",
            y_scale="log", x_ticks=QUERY_TICKS,
        ),
    ]  # fmt: skip


def _says_3(material: Material) -> Sequence[str]:
    return (
        "Records hold the accuracy of the released student, not a curve over its training: a student that is looked "
        "at while it trains is chosen by test records. So the left panel has the end of each curve, and no command "
        "gives the rest. Beside the paper's numbers of queries stand those of the preset at other epsilons.",
        "The right panel is accounting of noise scale 40: the paper's formula, and what a sound accountant says of "
        "the same queries. Neither counts the generator, by which the proven epsilon of the whole is infinite.",
    )


def _images(images: str) -> tuple[tuple[str, str | float], ...]:
    """Return the settings of a student on images of this kind; those of a GAN are not mixed with random ones."""
    return (("images", images), *((("random_share", 0.0),) if images.endswith("gan") else ()))


def _figure_4(material: Material) -> Sequence[Panel]:
    series = []
    for slot, dataset in enumerate(("mnist", "fmnist", "cifar10")):
        extra = (("teachers", 100),) if dataset == "cifar10" else ()
        points = tuple(
            Point(name, Ours(Cell("dgd", dataset, 10.0, settings=(*_images(images), *extra))))
            for images, name in GENERATORS.items()
        )
        series.append(Series(NAMES[dataset], points, slot))
    return [Panel("", "images from", "accuracy (%)", tuple(series), form="bars", y_limits=(0, 105))]


def _figure_5(material: Material) -> Sequence[PicturePanel]:
    part = (0.0, 0.0, 0.5, 0.5)  # 25 of 100 images: enough to see, and large enough in print
    return [
        PicturePanel(
            NAMES[dataset],
            tuple(
                Picture(name, Cell("dgd", dataset, 10.0, settings=_images(images)), crop=part)
                for images, name in GENERATORS.items()
                if images != "private"
            ),
        )
        for dataset in ("mnist", "fmnist")
    ]


def _figure_6(material: Material) -> Sequence[Panel]:
    points = tuple(Point(float(n), Ours(cell("dgd", "mnist", 10.0, synthetic=n))) for n in AMOUNTS)
    base = Cell("nonprivate", "mnist")
    baseline = tuple(Point(float(n), Ours(base)) for n in (AMOUNTS[0], AMOUNTS[-1]))
    usual = Point(6000.0, Ours(cell("dgd", "mnist", 10.0, synthetic=6000)))
    told = material.one(table="I", system="Baseline", dataset="mnist", measure="accuracy")
    printed = material.one(table="I", system="DGD", dataset="mnist", measure="accuracy", epsilon=10.0)
    return [
        Panel(
            "", "synthetic images", "accuracy (%)",
            (
                Series("DGD, here", tuple(sorted((*points, usual), key=lambda p: float(str(p.x)))), 0),
                Series("DGD, printed (Table I)", (Point(60_000.0, Theirs(printed)),), 0, "theirs"),
                Series("baseline, here", baseline, 1),
                Series("baseline, printed", (Point(60_000.0, Theirs(told)),), 1, "theirs"),
            ),
            x_scale="log", x_ticks=(1000, 6000, 20_000, 60_000), y_limits=(0, 105),
        )
    ]  # fmt: skip


def _figure_7(material: Material) -> Sequence[Panel]:
    kinds = [
        ("PATE", "pate", {}), ("PATE+", "pate-gnmax", {}),
        ("DGD", "dgd", {"images": "private"}), ("DGD+", "dgd-plus", {"images": "private"}),
    ]  # fmt: skip
    panels = []
    for dataset in ("mnist", "svhn"):
        series = [
            Series(
                f"{name}, here",
                tuple(Point(f"{e:g}", Ours(cell(method, dataset, e, **extra))) for e in EPSILONS),
                slot,
            )
            for slot, (name, method, extra) in enumerate(kinds)
        ]
        for number in material.printed(table="fig 7", dataset=dataset, measure="accuracy"):
            slot = next((s for s, (name, *_) in enumerate(kinds) if name == number.system), len(kinds))
            point = Point("printed", Theirs(number))
            series.append(Series(f"{number.system}, printed", (point,), slot, "theirs"))
        panels.append(Panel(NAMES[dataset], "claimed ε", "accuracy (%)", tuple(series), form="bars", y_limits=(0, 105)))
    return panels


def _says_7(material: Material) -> Sequence[str]:
    return (
        "In this comparison the paper gives DGD and DGD+ private images in place of a generator's: the proven epsilon "
        "is infinite there. Our PATE and PATE+ are pate and pate-gnmax, whose unlabelled images are the public part "
        "of the test set.",
        "Text and figure give no epsilon for the printed numbers; they stand in a column of their own.",
    )


def _figure_8(material: Material) -> Sequence[Panel]:
    ensembles = tuple(
        Series(
            NAMES[dataset],
            tuple(Point(float(n), Ours(cell("pate", dataset, 10.0, teachers=n), "labels")) for n in TEACHERS),
            slot,
        )
        for slot, dataset in enumerate(("mnist", "fmnist", "svhn"))
    )
    students = tuple(
        Series(
            f"{name}, {NAMES[dataset]}",
            tuple(Point(e, Ours(Cell(method, dataset, e))) for e in EPSILONS),
            slot,
        )
        for slot, (method, name, dataset) in enumerate(
            (method, name, dataset)
            for dataset in ("mnist", "fmnist")
            for method, name in (("dgd", "DGD"), ("dgd-plus", "DGD+"))
        )
    )
    points = tuple(
        Series(
            f"printed, {kind}",
            tuple(
                Point(float(n.setting.partition(" ")[0]), Theirs(n))
                for n in material.printed(table="fig 8", measure="epsilon")
                if n.setting.endswith(kind)
            ),
            slot,
            "theirs",
        )
        for slot, kind in enumerate(("advanced composition", "moments accountant"))
    )
    told = tuple(series for series in points if series.points)
    by_queries = queries_panel((10, 27, 50, 100, 200, 400, 750, 1000, 2000, 3000), scale=40.0)
    return [
        Panel("answers of the ensemble", "teachers", "answers right (%)", ensembles, y_limits=(0, 105)),
        Panel("student", "claimed ε", "accuracy (%)", students, y_limits=(0, 105)),
        noise_panel(1000),
        Panel(
            by_queries.title, by_queries.x_label, by_queries.y_label, (*by_queries.series, *told),
            x_scale=by_queries.x_scale, y_scale=by_queries.y_scale,
        ),
    ]  # fmt: skip


def _says_8(material: Material) -> Sequence[str]:
    return (
        "Records of DGD do not say how many answers are right: its queries are synthetic and have no true class. The "
        "top left panel has the same teachers' answers to PATE's public queries, with the noise that epsilon 10 buys.",
        "The bottom panels are accounting, without records: the paper's formula (advanced composition), and for the "
        "same noise the moments accountant of PATE 2017, without votes, and privacy loss distributions. "
        "The paper sees a rise in the middle of the curve over the noise scale and suspects its accountant; with "
        "these accountants there is none. None of them counts the generator.",
        "The paper's 8.03 for 1,000 queries is what PATE prints for its votes at Lap(20), half the noise.",
    )


def _figure_9(material: Material) -> Sequence[Panel | PicturePanel]:
    panels: list[Panel | PicturePanel] = []
    for wanted, title in (
        (Cell("dgd", "mnist", 10.0, seeds=(0,)), "DGD on MNIST, ε 10"),
        (Cell("dgd", "mnist-01", 10.0, seeds=(0,)), "DGD on MNIST 0 and 1, ε 10"),
    ):
        names = ATTACKS if wanted.dataset == "mnist" else {"inversion-network": ATTACKS["inversion-network"]}
        series = tuple(
            Series(
                what,
                tuple(
                    Point(name.replace(" [", "\n["), Attacked(wanted, attack, "committee top-1", role))
                    for attack, name in names.items()
                ),
                slot,
            )
            for slot, (role, what) in enumerate(ROLES.items())
        )
        panels.append(Panel(title, "attack", "recognised (%)", series, form="bars", y_limits=(0, 105)))
    image_grids = [
        Picture(name, Cell("dgd", "mnist", 10.0, seeds=(0,)), attack, SHEET) for attack, name in ATTACKS.items()
    ]
    there = tuple(image_grid for image_grid in image_grids if material.picture(image_grid) is not None)
    if there:
        panels.append(PicturePanel("", there))
    return panels


def _says_9(material: Material) -> Sequence[str]:
    return (
        "The paper shows pictures and concludes from them. Here are numbers: the share of reconstructions that three "
        "independent evaluators all name, beside the same attack on the same net without privacy, on one trained on "
        "other records, and on one that was not trained. What the counterfactual net gives away too is knowledge of "
        "the class, not of the private records. Bars are 95% intervals.",
        "Columns of the pictures: three tries on the student, then one on each other net. They are shown where they "
        "lie beside the attacks' records: in a run directory, not in the committed records. DataLens and GS-WGAN are "
        "not methods here; no command gives their part.",
    )


FIGURES = (
    FigureSpec(
        "3",
        "Accuracy and privacy cost at several numbers of label queries",
        "More queries cost more privacy and give a better student; 750 are enough for a good one.",
        _figure_3,
        _says_3,
    ),
    FigureSpec(
        "4",
        "Where the student's images come from",
        "GANs trained on private images and the private images themselves give a better student, and expose "
        "privacy; the data-free generator comes close.",
        _figure_4,
        lambda material: (
            "No epsilon belongs to any of these bars: every one of the generators saw private records without "
            "noise, the data-free one through its classifier. In the quick preset three in four of the data-free "
            "bar's images are images of random processes.",
        ),
    ),
    FigureSpec(
        "5",
        "Images of four generators",
        "Images of GANs trained on private ones can be recognised; those of the data-free generator can not.",
        _figure_5,
        lambda material: (
            "The first images of each sheet that lies beside the records. In the quick preset three in four are "
            "images of random processes, not of the generator.",
        ),
        columns=1,
        height=1.9,
        wide=True,
    ),
    FigureSpec(
        "6",
        "Accuracy by the number of synthetic images",
        "Accuracy rises with the number of images and hardly any more beyond 60,000.",
        _figure_6,
        lambda material: (
            "The text does not name the eight numbers; ours are chosen. The quick preset's own number is 6,000.",
        ),
    ),
    FigureSpec(
        "7",
        "What the VAE adds, with Laplacian and with Gaussian noise",
        "Students regularised along a VAE are better than PATE's at the same epsilon, and Gaussian noise is "
        "better than Laplacian.",
        _figure_7,
        _says_7,
    ),
    FigureSpec(
        "8",
        "Teachers, privacy budget, noise and queries",
        "There is a best number of teachers; accuracy rises fast with the budget and then slowly; the cost falls "
        "with the noise scale and rises with the queries.",
        _figure_8,
        _says_8,
        columns=2,
    ),
    FigureSpec(
        "9",
        "Reconstruction attacks on the student",
        "Reconstructions from DGD's student cannot be recognised, those from other methods' can.",
        _figure_9,
        _says_9,
        columns=2,
        height=2.6,
    ),
)
