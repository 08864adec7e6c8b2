"""``bench weights``: list, fetch and verify public weights of timm models."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.cli.data import fetch_each, progress_display
from bench.cli.options import Json, Quiet
from bench.core.errors import UnknownNameError
from bench.core.lazy_libraries import torch
from bench.core.progress import echo, open_progress, print_json, print_table

if TYPE_CHECKING:
    from bench.core.fetch_progress import Progress
    from bench.models.weight_store import PublicWeights

app = typer.Typer(
    name="weights",
    help="List, fetch and verify public weights of timm models. They are stored in weights/ under the data root.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Names = Annotated[list[str], typer.Argument(help="timm models by name.", show_default=False)]
Name = Annotated[str, typer.Argument(help="A timm model by name.", show_default=False)]
Weights = Annotated[
    str, typer.Option("--weights", help="auto (a package, else timm's hub), package, hub or file:PATH.")
]

FaceSets = Annotated[list[str], typer.Argument(help="Data sets of people: att-faces-a, att-faces-b.")]

FACTS = ("backbone", "origin", "source", "trained_on", "size", "sha256")


@app.command(name="list")
def list_(json_: Json = False) -> None:
    """List the backbones whose weights are in a package, and all weights on this machine."""
    from bench.models.weight_packages import PACKAGES
    from bench.models.weight_store import folder, known_weights

    known = known_weights()
    rows = [_row(weights) for weights in known]
    present = {weights.backbone for weights in known if weights.origin == "package"}
    for backbone, package in PACKAGES.items():
        if backbone not in present:
            facts = ("package", package.route.label, package.trained_on, package.size, package.sha256)
            rows.append({**dict(zip(FACTS, (backbone, *facts), strict=True)), "here": False})
    rows.sort(key=lambda row: (row["origin"] != "package", row["backbone"]))
    if json_:
        print_json({"folder": str(folder()), "weights": rows})
        return
    cells = [
        (*(str(row[name] or "?") for name in FACTS[:-1]), row["sha256"][:12], "yes" if row["here"] else "no")
        for row in rows
    ]
    print_table(f"public weights under {folder()}", (*FACTS, "here"), cells)
    echo("Fetch weights with: python -m bench weights get NAME, for any timm model if the hub is reachable.")


def _row(found: PublicWeights) -> dict[str, Any]:
    facts = {name: getattr(found, name) for name in FACTS}
    return {**facts, "here": found.path.is_file(), "path": str(found.path)}


@app.command()
def get(names: Names, weights: Weights = "auto", quiet: Quiet = False, json_: Json = False) -> None:
    """Fetch missing weights; if one fails, continue with the others."""
    from bench.models.pretrained import check_backbone, find_weights

    for name in names:
        check_backbone(name)

    def fetch(name: str, progress: Progress) -> tuple[dict[str, Any], str]:
        found = find_weights(name, weights, progress=progress)
        return _row(found), f"{name}: from {found.source}, SHA-256 {found.sha256}, in {found.path}"

    fetch_each(names, fetch, "weights", quiet, json_)


@app.command()
def verify(name: Name, quiet: Quiet = False) -> None:
    """Rehash the stored weights of a model; move damaged files aside."""
    from bench.models.pretrained import verify_weights

    with progress_display(quiet) as progress:
        found = verify_weights(name, progress)
    for weights in found:
        echo(f"{name} ({weights.origin}): {weights.path} is unchanged, SHA-256 {weights.sha256}")


@app.command()
def faces(names: FaceSets, json_: Json = False) -> None:
    """Test on real photographs how well the face embedding's distance distinguishes people (ROC)."""
    from bench.evaluation.attack.data_roles import OTHER_PEOPLE
    from bench.evaluation.attack.face_judge import verification
    from bench.experiments.data_source import DataSource

    for name in names:
        if name not in OTHER_PEOPLE:
            raise UnknownNameError("data set of people", name, OTHER_PEOPLE)
    with open_progress(quiet=json_) as progress:
        source = DataSource(progress)
        materials = {name: source.material(name) for name in names}
    found = {
        name: verification(
            torch.cat([held.private.images, held.test_images]), torch.cat([held.private.labels, held.test_labels]),
            torch.device("cpu"),
        )
        for name, held in materials.items()
    }  # fmt: skip
    if json_:
        print_json({name: asdict(result) for name, result in found.items()})
        return
    cells = [
        (name, f"{result.pairs[0]:,}/{result.pairs[1]:,}", f"{result.area:.3f}",
         *(f"{100 * right:.1f}" for _, right in result.points))
        for name, result in found.items()
    ]  # fmt: skip
    rates = [f"{100 * rate:g}% FPR" for rate, _ in next(iter(found.values())).points]
    print_table("pairs of one person found by distance, in %", ("data set", "pairs: one/two", "AUC", *rates), cells)
