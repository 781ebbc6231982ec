"""Clients that hang or end their process: the run goes on without them, or stops and names them."""

from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from raybcgd.config import Config
from raybcgd.errors import RunError
from raybcgd.experiment import RunResult, run
from tests.conftest import small
from tests.ray.misbehaving import CLIENTS, CULPRIT, ByIndex, Misbehaving, Unstartable, marked

pytestmark = pytest.mark.ray


def config(cohort: dict[str, Any], rounds: int = 1, max_retries: int = 5, hosts: int = 1) -> Config:
    return small(
        engine="ray",
        rounds=rounds,
        data={"partition": ByIndex(clients=CLIENTS)},
        blocks={"count": 1, "shared": "none"},
        algorithm={"name": "fedavg", "lr": 0.1},
        local={"stack": 0},
        cohort={"clients_per_round": CLIENTS, "clients_per_block": None, **cohort},
        hosts={"count": hosts, "max_retries": max_retries},
        metrics={"enabled": False},
    )


def go(how: str, out: Path, rounds: int = 1, max_retries: int = 5, hosts: int = 1, **cohort: Any) -> RunResult:
    return run(config(cohort, rounds, max_retries, hosts), module=Misbehaving(how), dataset=marked(), out=out)


def test_the_host_of_a_client_that_hangs_is_replaced_after_the_deadline(one_node: Cluster, out: Path) -> None:
    result = go("hang", out, rounds=2, hosts=2, deadline_seconds=4)
    assert [record.round for record in result.records] == [0, 1]
    for record in result.records:
        assert (CULPRIT, "deadline") in [(dropped.client, dropped.reason) for dropped in record.dropped]
        assert record.participants
        assert record.quality.accuracy is not None
    assert sum(record.hosts.restarted for record in result.records) >= 1


def test_a_client_that_ends_its_process_is_found_and_dropped(one_node: Cluster, out: Path) -> None:
    (record,) = go("die", out, hosts=2, on_client_error="drop").records
    (dropped,) = record.dropped
    assert dropped.client == CULPRIT
    assert dropped.reason.startswith("its process died 3 times (")
    assert len(record.participants) == CLIENTS - 1


def test_a_client_that_ends_its_process_is_named(one_node: Cluster, out: Path) -> None:
    with pytest.raises(RunError, match=rf"^client {CULPRIT} failed in round 1: its process died once \(.*\); fix it"):
        go("die", out, max_retries=1)


def test_a_coordinator_and_hosts_that_fail_to_start_are_started_again(
    one_node: Cluster, out: Path, tmp_path: Path
) -> None:
    """As on a very busy machine, where Ray gives up on new processes."""
    failures = tmp_path / "failures"
    failures.mkdir()
    for k in range(3):
        (failures / str(k)).touch()
    result = run(config({}, hosts=2), module=Unstartable(str(failures)), dataset=marked(), out=out)
    assert list(failures.iterdir()) == []
    assert len(result.records[0].participants) == CLIENTS


@pytest.mark.parametrize(("how", "error"), [("exit", "SystemExit: 3"), ("interrupt", "KeyboardInterrupt")])
def test_exits_and_interrupts_in_client_code_are_failures_of_the_client(
    one_node: Cluster, out: Path, how: str, error: str
) -> None:
    with pytest.raises(RunError, match=rf"^client {CULPRIT} failed in round 1: {error}"):
        go(how, out)
