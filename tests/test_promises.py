"""The table of promises in docs/gpus.md: each cell names a test that exists, or a reason."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADING = "## Bitwise reproducibility"


def rows() -> list[list[str]]:
    """Return the cells of the table, with the name of the promise first."""
    section = (ROOT / "docs/gpus.md").read_text().split(HEADING)[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_the_table_is_found() -> None:
    assert len(rows()) >= 8
    assert {len(row) for row in rows()} == {4}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_cell_has_a_test_or_a_reason(row: list[str]) -> None:
    named: list[str] = []
    for cell in row[1:]:
        found = re.findall(r"`(tests/[^`]+)`", cell)
        for name in found:
            path, _, function = name.partition("::")
            assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), f"{name} does not exist"
        named += found
        if cell.startswith("yes"):
            assert found or (named and "the same test" in cell), f"a promise without a test: {cell}"
        else:
            assert re.match(r"(no|not promised|does not happen), because \w+", cell), f"no reason: {cell}"
