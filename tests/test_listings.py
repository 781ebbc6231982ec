"""What the README and the commands without a config list."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.cli import app
from raybcgd.cli.list_settings import own_settings, tables
from raybcgd.server.settings import EvaluationConfig
from tests.conftest import small


def raybcgd(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_plan_is_a_hidden_alias_of_blocks() -> None:
    assert raybcgd("plan", "--model", "lenet5").stdout == raybcgd("blocks", "--model", "lenet5").stdout
    assert "plan" not in raybcgd("--help").stdout.split()


@pytest.mark.parametrize(("stack", "says"), [(0, "1 client at a time"), (4, "4 clients at a time")])
def test_blocks_counts_the_clients_and_explains_the_weights(stack: int, says: str, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(small().to_toml())
    result = raybcgd("blocks", path, "--memory", "--set", f"local.stack={stack}")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    assert f"Device memory per host, {says} " in shown
    assert "weights: entries of weight matrices and kernels, without biases and norm layers" in shown


def test_methods_lists_every_method() -> None:
    result = raybcgd("methods")
    assert result.exit_code == 0, result.output
    assert all(f" {name} " in result.stdout for name in ALGORITHMS)


def test_version() -> None:
    result = raybcgd("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("raybcgd ")


def test_the_python_code_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    code = readme.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), scope)
    assert len(scope["result"].records) == 5


def test_the_comparison_of_the_page_about_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parent.parent / "docs/api/index.md").read_text()
    code = page.split("## Compare methods")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(compile(code, "index.md", "exec"), scope)
    assert (len(scope["result"].standings), len(scope["result"].runs), scope["result"].failures) == (3, 9, {})


def test_the_readme_lists_every_method() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    assert [name for name in ALGORITHMS if f"`{name}`" not in readme] == []


def test_help_and_settings_define_the_terms_of_the_tables() -> None:
    assert "distance from iid compares" in " ".join(raybcgd("data", "inspect", "--help").stdout.split())
    assert "A method selects every variant" in re.sub(r"[│\s]+", " ", raybcgd("compare", "--help").stdout)
    evaluated = EvaluationConfig.model_fields["clients"].description or ""
    assert "rounded down, but at least of one" in " ".join(evaluated.split())


def test_settings_lists_every_setting_with_its_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raybcgd.cli.list_settings.out", Console(file=(written := io.StringIO()), width=300))
    assert raybcgd("settings").exit_code == 0
    shown = written.getvalue()
    for name, kind in tables():
        table, _, choice = name.partition(" ")
        assert not name or f"[{table}] {choice}" in shown
        for key in own_settings(kind):
            words = (kind.model_fields[key].description or "").split()
            assert words, f"{name}.{key} has no docstring"
            assert " ".join(words[:3]) in shown
    written.truncate(0)
    raybcgd("settings", "cohort")
    one = written.getvalue()
    assert "clients_per_round" in one
    assert "epochs" not in one


def test_settings_refuses_an_unknown_table() -> None:
    result = raybcgd("settings", "cohorts")
    assert result.exit_code == 2
    assert "cohorts is not a table of a config; use one of data, data.partition" in result.stderr
