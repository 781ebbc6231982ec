"""Notes before a run: settings that have no effect, or that make training diverge."""

from collections.abc import Iterator
from typing import Any

import pytest

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
