"""Notes before a run: settings that have no effect, or that make training diverge."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch import nn

from raybcgd import Config
from raybcgd.problem import prepare
from raybcgd.problem.checks import note
from tests.conftest import small


@pytest.fixture(autouse=True)
def notes(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What was logged during the test. A note is logged once per process, so earlier ones are forgotten."""
    note.cache_clear()
    yield caplog.messages
    note.cache_clear()


@pytest.mark.parametrize(
    ("method", "title"), [("scaffold", "SCAFFOLD"), ("fedpvr", "FedPVR"), ("fedbcgd+", "FedBCGD+"), ("fedavg", None)]
)
def test_error_feedback_with_control_variates_gives_one_note(
    method: str, title: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    tables: dict[str, Any] = {"algorithm": {"name": method, "lr": 0.05}, "wire": {"codec": "topk"}}
    for _ in range(2):
        prepare(small(**tables))
    expected = (
        f"note: {title} with wire.error_feedback = true can diverge, because its control variates already compensate "
        "for unsent values; set wire.error_feedback = false"
    )
    assert caplog.messages == ([] if title is None else [expected])
    caplog.clear()
    note.cache_clear()
    prepare(small(**{**tables, "wire": {"codec": "topk", "error_feedback": False}}))
    prepare(small(**{**tables, "wire": {"codec": "raw"}}))
    assert not caplog.messages


def test_settings_that_python_objects_replace_give_a_note(caplog: pytest.LogCaptureFixture) -> None:
    x, y = np.random.default_rng(0).random((40, 6), dtype=np.float32), np.arange(40) % 2
    given: dict[str, Any] = {
        "module": nn.Linear(6, 2),
        "dataset": (x, y, x, y),
        "partition": [list(range(20)), list(range(20, 40))],
    }
    tables: dict[str, Any] = {"rounds": 1, "engine": "local", "algorithm": {"name": "fedavg", "lr": 0.1}}
    prepare(Config(**tables), **given)
    assert not caplog.messages, "these settings have their defaults"
    data = {"source": "digits", "partition": {"kind": "iid", "clients": 5}}
    config = Config(**tables, model={"name": "mlp", "options": {"hidden": [4]}}, data=data)
    problems = [prepare(config, **given)[0] for _ in range(2)]
    assert caplog.messages == [
        f"note: {setting} has no effect, because the argument {argument} replaces it; remove one of them"
        for setting, argument in (
            ("model.name", "module"),
            ("model.options", "module"),
            ("data.source", "dataset"),
            ("data.partition", "partition"),
        )
    ]
    caplog.clear()
    note.cache_clear()
    prepare(problems[0].config, **given)
    assert not caplog.messages, "the config of a run names its objects"
    prepare(Config(**tables, model={"loss": "cross_entropy"}, data={"partition": {"samples_per_client": 10}}), **given)
    assert not caplog.messages, "these settings have an effect"
