"""The notebook ``examples/tour.ipynb``, run from the first cell to the last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


def outputs(cell: Any, kind: str) -> list[str]:
    """Return what a cell shows of a kind."""
    return [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]


def test_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(TOUR, as_version=4)
    programs = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count is None and not cell.outputs for cell in programs), "clear the outputs"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [text for cell in programs for text in outputs(cell, "text/html")]
    drawing, chart = shown
    assert drawing.startswith("<svg")
    assert "subchunk 0:" in drawing
    assert chart.count("<h4>") >= 2
    assert "ours" in chart
    assert list(tmp_path.glob("zarrs-cuda-tour-*")) == []
