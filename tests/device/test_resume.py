"""A run can stop on one device and resume on another, and ends with the same bits."""

from pathlib import Path
from typing import Any

import pytest

from raybcgd.experiment import run
from tests.device.conftest import on, outcome

pytestmark = pytest.mark.device

STATEFUL: dict[str, Any] = {"wire": {"codec": "topk"}, "hosts": {"state_memory_mb": 0.01}}
"""Control variates and residuals of the codec, most of them in files."""


@pytest.mark.parametrize("last", ["cpu", "gpu"])
@pytest.mark.parametrize("first", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ["scaffold", "fedbcgd+"])
def test_resume(tmp_path: Path, name: str, first: str, last: str) -> None:
    tables = {**STATEFUL, "algorithm": {"name": name, "lr": 0.05}}
    run(on(first, rounds=4, **tables), out=tmp_path / "resumed")
    resumed = run(on(last, rounds=6, **tables), out=tmp_path / "resumed", resume=True)
    whole = run(on("cpu", rounds=6, **tables), out=tmp_path / "whole")
    assert outcome(resumed) == outcome(whole)
