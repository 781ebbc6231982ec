"""The Ray engine computes the same bits as the local engine, for any number of hosts and nodes."""

from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.experimental import get_object_locations

from raybcgd.engine.ray.host_actor import HostActor, submit
from raybcgd.errors import RunError
from raybcgd.experiment import run
from raybcgd.messages import ClientTask, RoundOrders
from raybcgd.problem import prepare
from tests.conftest import ONE_BY_ONE, small

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SHA-256 of the final weights of the local engine."""
    return str(run(small(), out=tmp_path_factory.mktemp("local") / "run").summary["sha256"])


@pytest.mark.parametrize(("clients_per_host", "hosts"), [(20, 1), (4, 5)])
def test_weights_and_traffic_do_not_depend_on_the_number_of_hosts(
    three_nodes: Cluster, expected: str, out: Path, clients_per_host: int, hosts: int
) -> None:
    """The clients have fixed hosts, so the rounds need all of them. Otherwise, the first one could train alone."""
    config = small(engine="ray", hosts={"clients_per_host": clients_per_host})
    result = run(config, out=out)
    assert result.summary["sha256"] == expected
    assert result.records[-1].hosts.up == hosts
    problem, _ = prepare(config)
    record = result.records[0]
    own = [problem.layout.blocks[p.block].size + problem.layout.shared.size for p in record.participants]
    assert record.traffic.upload_bytes == 4 * sum(own)
    assert record.traffic.upload_floats == sum(own) == sum(record.blocks.upload_floats)
    assert record.traffic.download_bytes == len(own) * 2 * 4 * problem.layout.size


def test_participants_judge_candidates_on_ray_as_in_one_process(three_nodes: Cluster, tmp_path: Path) -> None:
    settings = {"algorithm": {"name": "mc_psgd", "lr": 0.1}, "data": {"phases": {"count": 2, "rounds_per_phase": 2}}}
    one = run(small(**settings), out=tmp_path / "one")
    many = run(small(engine="ray", hosts={"count": 2}, **settings), out=tmp_path / "many")
    assert many.summary["sha256"] == one.summary["sha256"]


@pytest.mark.parametrize(("control_upload", "fields"), [("derived", 1), ("sent", 2)])
def test_an_upload_contains_exactly_the_declared_slices(
    three_nodes: Cluster, out: Path, control_upload: str, fields: int
) -> None:
    problem, data = prepare(small(local=ONE_BY_ONE, algorithm={"control_upload": control_upload}))
    host = HostActor.remote(problem, ray.put(data), str(out))
    zero = np.zeros(problem.layout.size, dtype=np.float32)
    for block in range(problem.num_blocks):
        shared = ({"x": zero, "c": zero}, RoundOrders(0, lr=0.05))
        ref, _ = submit(host, shared, [ClientTask(3, block)], hand_over=True)
        (outcome,) = ray.get(ref).outcomes
        own = problem.layout.blocks[block].size + problem.layout.shared.size
        assert outcome.payload.nbytes == fields * 4 * own
        # The object store adds an envelope of fixed size.
        stored = get_object_locations([ref])[ref]["object_size"]
        assert outcome.payload.nbytes <= stored <= outcome.payload.nbytes + 2000


def test_a_round_on_ray_that_every_client_misses_stops_the_run(three_nodes: Cluster, out: Path) -> None:
    slow = {"epochs": 10_000, "stack": 0}
    config = small(engine="ray", rounds=2, local=slow, cohort={"deadline_seconds": 0.5}, hosts={"count": 1})
    with pytest.raises(RunError, match=r"^all 6 clients of round 1 missed cohort\.deadline_seconds = 0\.5; raise it$"):
        run(config, out=out)
