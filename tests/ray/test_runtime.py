"""Balance, memory, elasticity and one actor per client on a real cluster."""

import contextlib
from pathlib import Path

import numpy as np
import psutil
import pytest
from ray.cluster_utils import Cluster

from raybcgd import Config, Dataset
from raybcgd.experiment import Observer, run
from raybcgd.record.rounds import RoundRecord
from tests.conftest import small
from tests.ray.conftest import Clusters
from tests.ray.test_chaos import workers

pytestmark = pytest.mark.ray


@pytest.fixture
def two_cpus(clusters: Clusters) -> Cluster:
    return clusters.get({"num_cpus": 2})


def random_data(samples: int, features: int, classes: int = 10) -> Dataset:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(samples + 50, features)).astype(np.float32)
    targets = rng.integers(classes, size=samples + 50)
    return Dataset.from_tensors(
        inputs[:samples], targets[:samples], inputs[samples:], targets[samples:], classes=classes
    )


@pytest.mark.alone
def test_log_normal_clients_are_balanced_over_two_hosts(two_cpus: Cluster, out: Path) -> None:
    """After the first rounds, a round takes at most 1.15 times half the total work."""
    config = small(
        engine="ray",
        rounds=12,
        data={"partition": {"kind": "lognormal", "sigma": 1.0, "clients": 60}},
        model={"name": "mlp", "options": {"hidden": [512, 512, 512]}},
        algorithm={"name": "fedavg", "lr": 0.01},
        local={"epochs": 3, "batch_size": 10, "stack": 0},
        cohort={"clients_per_block": None, "clients_per_round": 40},
        hosts={"count": 2},
        evaluation={"every": 100},
        checkpoint={"every": 0},
    )
    records = run(config, dataset=random_data(4000, 256), out=out).records
    # The last round is left out: no later round overlaps its evaluation.
    ratios = [r.timing.seconds / (sum(p.seconds for p in r.participants) / 2) for r in records[4:-1]]
    assert np.median(ratios) <= 1.15, ratios


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_state_cache_stays_within_its_budget(two_cpus: Cluster, tmp_path: Path) -> None:
    """2 000 clients x 100 000 parameters: 800 MB of control variates with a budget of 200 MB per host."""
    peaks: dict[str, int] = {}

    def watch(name: str) -> Observer:
        def observe(record: RoundRecord) -> None:
            for process in workers(two_cpus, "HostActor"):
                with contextlib.suppress(psutil.NoSuchProcess):  # hosts stop after the last round
                    peaks[name] = max(peaks.get(name, 0), process.memory_full_info().uss)

        return observe

    def config(budget: float, engine: str = "ray") -> Config:
        return small(
            engine=engine,
            rounds=15,
            data={"partition": {"kind": "iid", "clients": 2000}},
            model={"name": "mlp", "options": {"hidden": [250, 250]}},
            blocks={"count": 2, "division": "balanced"},
            cohort={"clients_per_block": 200},
            local={"epochs": 1, "batch_size": 2, "stack": 8},
            hosts={"count": 2, "state_memory_mb": budget},
            checkpoint={"every": 5, "keep": 1},
        )

    dataset = random_data(4000, 128)
    bounded = run(config(200), dataset=dataset, out=tmp_path / "bounded", observe=watch("bounded"))
    none = run(config(1), dataset=dataset, out=tmp_path / "none", observe=watch("none"))
    assert bounded.summary["parameters"] >= 95_000
    files = sum(path.stat().st_size for path in (tmp_path / "bounded" / "states").rglob("*.safetensors"))
    assert files >= 700e6
    print(f"peak memory of a host, budget 200 MB and 1 MB: {[round(peak / 2**20) for peak in peaks.values()]} MB")
    # Everything else in a host (torch, Ray, the model, a stack of clients) takes the same memory in both runs.
    assert peaks["bounded"] - peaks["none"] < 1.15 * 200 * 2**20, peaks
    unbounded = run(config(4000, "local"), dataset=dataset, out=tmp_path / "unbounded")
    assert bounded.summary["sha256"] == none.summary["sha256"] == unbounded.summary["sha256"]


@pytest.mark.slow
def test_new_nodes_are_used_and_lost_nodes_do_not_stop_the_run(clusters: Clusters, out: Path, tmp_path: Path) -> None:
    tables = {"rounds": 60, "local": {"epochs": 30, "stack": 0}}  # work for three hosts
    expected = run(small(**tables), out=tmp_path / "local").summary["sha256"]
    cluster = clusters.get({"num_cpus": 1})
    try:
        hosts: list[int] = []
        joined: list[object] = []

        def change(record: RoundRecord) -> None:
            hosts.append(record.hosts.up)
            if record.round == 3:
                joined.append(cluster.add_node(num_cpus=2))
            if joined and max(hosts) == 3 and cluster.list_all_nodes()[1:]:
                cluster.remove_node(joined[0], allow_graceful=False)

        result = run(small(**tables, engine="ray"), out=out, observe=change)
    finally:
        clusters.stop()  # it has lost a node
    assert hosts[0] == 1
    assert max(hosts) == 3
    assert hosts[-1] == 1
    assert result.summary["sha256"] == expected


@pytest.mark.slow
def test_one_actor_per_client(two_cpus: Cluster, out: Path, tmp_path: Path) -> None:
    tables = {"data": {"partition": {"kind": "iid", "clients": 6}}, "cohort": {"clients_per_block": 1}}
    expected = run(small(**tables), out=tmp_path / "local").summary["sha256"]
    config = small(**tables, engine="ray", hosts={"clients_per_host": 1, "num_cpus": 0.1})
    result = run(config, out=out)
    assert result.records[-1].hosts.up == 6
    assert sum(record.hosts.rehomed_clients for record in result.records) == 0
    assert result.summary["sha256"] == expected
