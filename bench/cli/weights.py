"""``bench weights``: which public weights there are, and how they come here."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.cli.data import progress_display
from bench.core.errors import BenchError
from bench.core.progress import print_table

if TYPE_CHECKING:
    from bench.models.weight_store import PublicWeights

app = typer.Typer(
    name="weights",
    help="List, fetch and verify public weights of timm models. They lie in weights/ below the data root.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Names = Annotated[list[str], typer.Argument(help="timm models by name.", show_default=False)]
Name = Annotated[str, typer.Argument(help="A timm model by name.", show_default=False)]
Weights = Annotated[
    str, typer.Option("--weights", help="auto (a package, else timm's hub), package, hub or file:PATH.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]


@app.command(name="list")
def list_(json_: Json = False) -> None:
    """List the backbones whose weights are in a package, and all weights that are here."""
    from bench.models.weight_packages import PACKAGES
    from bench.models.weight_store import folder, known_weights

    known = known_weights()
    rows = [_row(weights) for weights in known]
    present = {weights.backbone for weights in known if weights.origin == "package"}
    for backbone, package in PACKAGES.items():
        if backbone not in present:
            row = {"backbone": backbone, "origin": "package", "source": package.route.label, "here": False}
            rows.append({**row, "trained_on": package.trained_on, "size": package.size, "sha256": package.sha256})
    rows.sort(key=lambda row: (row["origin"] != "package", row["backbone"]))
    if json_:
        print(json.dumps({"folder": str(folder()), "weights": rows}, indent=1))
        return
    columns = ("backbone", "origin", "source", "trained on", "size", "here", "sha256")
    cells = [
        (r["backbone"], r["origin"], r["source"], r["trained_on"] or "?", str(r["size"]), "yes" if r["here"] else "no",
         r["sha256"][:12])
        for r in rows
    ]  # fmt: skip
    print_table("public weights", columns, cells)
    print(
        f"Under {folder()}. Fetch some with: python -m bench weights get NAME, for any timm model where a hub answers."
    )


def _row(found: PublicWeights) -> dict[str, Any]:
    return {
        "backbone": found.backbone,
        "origin": found.origin,
        "source": found.source,
        "trained_on": found.trained_on,
        "size": found.size,
        "sha256": found.sha256,
        "here": found.path.is_file(),
        "path": str(found.path),
    }


@app.command()
def get(names: Names, weights: Weights = "auto", quiet: Quiet = False, json_: Json = False) -> None:
    """Fetch weights that are not here; one that fails does not stop the others."""
    from bench.models.pretrained import check_backbone, find_weights

    # A misspelt name is noticed before the first byte is fetched.
    for name in names:
        check_backbone(name)
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    for name in dict.fromkeys(names):
        try:
            with progress_display(quiet) as progress:
                found = find_weights(name, weights, progress=progress)
        except BenchError as error:
            failures.append(name)
            print(f"error: {error}", file=sys.stderr)
            continue
        rows.append(_row(found))
        if not json_:
            print(f"{name}: from {found.source}, SHA-256 {found.sha256}, in {found.path}")
    if json_:
        print(json.dumps({"weights": rows, "failed": failures}, indent=1))
    if failures:
        raise typer.Exit(1)


@app.command()
def verify(name: Name, quiet: Quiet = False) -> None:
    """Hash the stored weights of a model anew; a damaged file is set aside."""
    from bench.models.pretrained import verify_weights

    with progress_display(quiet) as progress:
        found = verify_weights(name, progress)
    for weights in found:
        print(f"{name} ({weights.origin}): {weights.path} is as it was stored, SHA-256 {weights.sha256}")
