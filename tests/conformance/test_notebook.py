"""docs/results.ipynb runs as committed and reproduces its outputs."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.paths import ROOT

NOTEBOOK = ROOT / "docs" / "results.ipynb"
REFRESH = "run `jupyter execute --inplace --NotebookClient.record_timing=False docs/results.ipynb`"


def shown(notebook: Any) -> list[str]:
    """Return the texts that its cells print or display; pictures differ between versions of Matplotlib."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [output["text"] if "text" in output else output["data"]["text/plain"] for output in outputs]


@pytest.mark.slow
def test_the_notebook_shows_what_it_prints_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the kernel, which is a separate process
    committed = nbformat.read(NOTEBOOK, as_version=4)
    fresh = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(fresh, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    assert shown(fresh) == shown(committed), REFRESH
    assert any("image/png" in output.get("data", {}) for cell in committed.cells for output in cell.get("outputs", []))
