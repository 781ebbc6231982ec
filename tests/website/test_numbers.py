"""Measured numbers on the site: every page that shows some is listed here with the test that compares them.

A page that is not listed must not contain a number that looks measured: an accuracy, a time, a size, a factor.
"""

import ast
import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from benchmarks import report, scale
from website import links, methods

ROOT = Path(__file__).parents[2]

CHECKED = {
    "docs/results.md": "tests/results/test_page.py::test_the_page_is_what_the_results_say",
    "README.md": "tests/results/test_page.py::test_the_table_of_the_demo_is_what_its_runs_say",
    "docs/index.md": "tests/results/test_page.py::test_the_table_of_the_demo_is_what_its_runs_say",
    "docs/scale.md": "tests/website/test_numbers.py::test_benchmark_pages_are_what_the_measurements_say",
    "benchmarks/RESULTS.md": "tests/website/test_numbers.py::test_benchmark_pages_are_what_the_measurements_say",
    "docs/gpus.md": "tests/device/test_traffic.py::test_the_documented_copies_are_the_counted_ones",
    "examples/first-comparison.ipynb": "tests/website/test_notebooks.py::test_a_notebook_runs_and_prints_the_same",
    "examples/own-method.ipynb": "tests/website/test_notebooks.py::test_a_notebook_runs_and_prints_the_same",
    "docs/methods/*.md": "tests/website/test_site.py::test_a_method_shows_its_final_runs",
}
"""Pages with measured numbers. The pages of methods get theirs from results/ when the site is built."""
CHOSEN = {
    "jobs/configs/README.md": "budgets of the papers",
    "docs/runbook.md": "thresholds of alerts",
    "cluster/VALUES.md": "defaults and limits of settings",
    "docs/tutorial.md": "the target of the demo",
    "CHANGELOG.md": "what a release measured at its time",
}
"""Pages whose numbers are not measurements of the current version."""

_MEASURED = re.compile(r"\b\d+(?:\.\d+)? ?(?:%|x\b|times\b|[mn]?s\b|seconds\b|minutes\b|[kMG]B\b|d\b)")


def prose(path: Path) -> str:
    """Return a page without code and without the definition of the unit d."""
    return re.sub(r"^( *)```.*?^\1```|`[^`\n]+`|bytes / \(4 d\)", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("test", sorted(set(CHECKED.values())))
def test_the_check_of_a_page_exists(test: str) -> None:
    path, _, name = test.partition("::")
    functions = [node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)]
    assert name in functions


def test_no_other_page_shows_measured_numbers() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / path for path in links.OUTSIDE)]
    names = {page.relative_to(ROOT).as_posix(): page for page in pages}
    others = {name: page for name, page in names.items() if not any(fnmatch(name, one) for one in (*CHECKED, *CHOSEN))}
    found = {name: _MEASURED.findall(prose(page)) for name, page in others.items()}
    assert len(found) >= 10
    assert {name: numbers for name, numbers in found.items() if numbers} == {}
    assert _MEASURED.findall("It takes 3 s, 2.5 x less, 90 % of 4 MB.") == ["3 s", "2.5 x", "90 %", "4 MB"]


def test_benchmark_pages_are_what_the_measurements_say() -> None:
    results = json.loads(report.DATA.read_text())
    assert report.PAGE.read_text() == report.page(results), "run `make bench`"
    assert scale.PAGE.read_text() == scale.page(results["costs"]), "run `make bench ARGS='--only costs'`"
    changed = {**results["costs"], "seconds_per_float": 2 * results["costs"]["seconds_per_float"]}
    assert scale.page(changed) != scale.page(results["costs"])


def test_the_readme_shows_the_declared_uploads() -> None:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in methods.overview().splitlines()[2:]]
    declared = {row[0].strip("`"): row[-3] for row in cells}
    rows = re.findall(
        r"^\| ((?:`[\w+]+`(?:, )?)+) \|.*\| ([\d., ]+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    shown = {
        name: upload
        for names, uploads in rows
        for name, upload in zip(re.findall(r"`([\w+]+)`", names), uploads.split(", "), strict=True)
    }
    assert shown == declared
