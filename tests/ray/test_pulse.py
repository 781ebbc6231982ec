"""A host that stops is replaced, also without a deadline. A host that works for long is not."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster

from raybcgd.experiment import run
from raybcgd.record.rounds import RoundRecord
from tests.conftest import small
from tests.ray.conftest import start_cluster, stop_cluster
from tests.ray.slow import Slow
from tests.ray.test_chaos import workers

pytestmark = pytest.mark.ray

LIMIT = 4.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    started = start_cluster({"num_cpus": 2})
    yield started
    stop_cluster(started)


@pytest.mark.timeout(120)
def test_a_stopped_host_is_replaced(cluster: Cluster, tmp_path: Path) -> None:
    tables = {"rounds": 12, "local": {"epochs": 8}}
    expected = run(small(**tables), out=tmp_path / "local").summary["sha256"]

    def stop(record: RoundRecord) -> None:
        if record.round == 3:
            workers(cluster, "HostActor")[0].send_signal(signal.SIGSTOP)

    config = small(**tables, engine="ray", hosts={"count": 2, "silence_seconds": LIMIT})
    try:
        result = run(config, out=tmp_path / "ray", observe=stop)
    finally:
        for process in workers(cluster, ""):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
    assert sum(record.hosts.restarted for record in result.records) == 1
    assert result.summary["sha256"] == expected


def test_a_host_that_trains_for_longer_than_the_limit_keeps_its_pulse(cluster: Cluster, out: Path) -> None:
    config = small(
        rounds=1,
        engine="ray",
        local={"epochs": 60, "stack": 0},
        hosts={"count": 2, "silence_seconds": 2.0},
    )
    (record,) = run(config, module=Slow(), out=out).records
    assert record.timing.seconds > 6
    assert record.hosts.restarted == 0
