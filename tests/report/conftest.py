"""A comparison and its report that several tests read."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from raybcgd.cli import app
from raybcgd.compare.comparison import compare
from raybcgd.config import Config
from tests.conftest import small

FIGURES = ["accuracy", "loss", "stages", "drift", "movement", "upload", "partition"]


def report(*arguments: str | Path) -> Result:
    """Run `raybcgd report` in this process."""
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three methods."""
    base = small(rounds=6, metrics={"enabled": False})
    variants = {"target": 0.2, "variants": [{"algorithm": {"name": n}} for n in ("fedavg", "fedbcgd", "fedbcgd+")]}
    config = Config.model_validate({**base.model_dump(), "compare": variants})
    return compare(config, out=tmp_path_factory.mktemp("report") / "methods").folder


@pytest.fixture(scope="session")
def page(folder: Path) -> Path:
    result = report(folder, "--png")
    assert result.exit_code == 0, result.output
    return folder / "report.html"
