"""The notebooks in examples/: executed, with stored outputs, and still correct."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from results.store import Store

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


def texts(notebook: Any) -> list[str]:
    """Return the printed text of every cell."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output["text"] for output in outputs if output.output_type == "stream"]


def without_numbers(printed: list[str]) -> list[str]:
    return [re.sub(r"[\d.]+", "0", text) for text in printed]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    assert len(texts(notebook)) >= 3
    assert path.stat().st_size < 200_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_the_same(path: Path, tmp_path: Path) -> None:
    """Numbers are compared on the kind of CPU of the committed results. Another kind gives other last bits."""
    stored, again = (nbformat.read(path, as_version=4) for _ in range(2))
    NotebookClient(again, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert without_numbers(texts(again)) == without_numbers(texts(stored))
    if Store("demo").runs[0]["versions"]["cpu"] == torch.backends.cpu.get_cpu_capability():
        assert texts(again) == texts(stored)
