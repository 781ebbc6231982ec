"""Rounds in which clients fail, miss the deadline, or diverge."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from raybcgd import Config, RunError, run
from raybcgd.algorithms import FedAvg
from raybcgd.client.shards import Shard, Shards
from raybcgd.messages import RoundOrders
from raybcgd.plan.cohort import draw_cohort
from raybcgd.problem import prepare
from raybcgd.record.rounds import RoundLog
from tests.conftest import small


def change_shard(monkeypatch: pytest.MonkeyPatch, client: int, change: Any) -> None:
    """Apply `change` to the shard of a client when it is loaded."""
    original = Shards.shard

    def shard(self: Shards, number: int, orders: RoundOrders) -> Shard:
        loaded = original(self, number, orders)
        return change(loaded) if number == client else loaded

    monkeypatch.setattr(Shards, "shard", shard)


def broken(shard: Shard) -> Shard:
    raise OSError("the disk is gone")


def first_cohort(config: Config) -> list[tuple[int, int | None]]:
    problem, _ = prepare(config)
    return list(draw_cohort(config.seed, 0, problem.clients, problem.cohort_size, problem.num_blocks))


@pytest.mark.parametrize("stack", [0, 4])
def test_a_failing_client_stops_the_run_and_is_named(out: Path, monkeypatch: pytest.MonkeyPatch, stack: int) -> None:
    config = small(local={"stack": stack})
    client = first_cohort(config)[2][0]
    change_shard(monkeypatch, client, broken)
    with pytest.raises(
        RunError, match=rf"client {client} failed in round 1: OSError: the disk is gone .*on_client_error"
    ):
        run(config, out=out)


@pytest.mark.parametrize("stack", [0, 4])
def test_a_failing_client_can_be_dropped(out: Path, monkeypatch: pytest.MonkeyPatch, stack: int) -> None:
    config = small(local={"stack": stack}, cohort={"on_client_error": "drop"})
    client, block = first_cohort(config)[2]
    change_shard(monkeypatch, client, broken)
    record = run(config, out=out).records[0]
    (dropped,) = record.dropped
    assert (dropped.client, dropped.block) == (client, block)
    assert "the disk is gone" in dropped.reason
    sampled = len(record.participants) + 1
    parameters = prepare(config)[0].layout.size
    assert record.traffic.upload_d == record.traffic.upload_bytes / (4 * sampled * parameters)
    assert len(record.participants) == 5
    assert client not in {participant.client for participant in record.participants}


def test_a_block_that_no_client_uploaded_stays_unchanged(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(rounds=1, cohort={"on_client_error": "drop", "clients_per_block": 1}, local={"stack": 0})
    problem, _ = prepare(config)
    client, block = first_cohort(config)[0]
    assert block is not None
    change_shard(monkeypatch, client, broken)
    run(config, out=out)
    before = problem.module().state_dict()
    after = load_file(out / "final.safetensors")
    for number, part in enumerate((*problem.layout.blocks, problem.layout.shared)):
        for layer in part.layers:
            same = torch.equal(before[f"{layer}.weight"], after[f"{layer}.weight"])
            assert same == (number == block)


def test_stragglers_are_dropped_at_the_deadline(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(rounds=1, cohort={"deadline_seconds": 0.5}, local={"stack": 0})
    cohort = [member[0] for member in first_cohort(config)]

    def late(shard: Shard) -> Shard:
        time.sleep(1.0)
        return shard

    change_shard(monkeypatch, cohort[3], late)
    (record,) = run(config, out=out).records
    # In one process, clients train one after another: those after the late client do not start.
    assert [(d.client, d.reason) for d in record.dropped] == [(client, "deadline") for client in cohort[3:]]


@pytest.mark.parametrize("aggregation", ["hosts", "coordinator"])
@pytest.mark.parametrize("stack", [0, 4])
def test_the_first_client_of_a_round_can_be_late_too(
    out: Path, monkeypatch: pytest.MonkeyPatch, stack: int, aggregation: str
) -> None:
    tables: dict[str, Any] = {"local": {"stack": stack}, "hosts": {"aggregation": aggregation}}
    config = small(rounds=1, cohort={"deadline_seconds": 0.5}, **tables)
    first = first_cohort(config)[0][0]

    def late(shard: Shard) -> Shard:
        time.sleep(1.0)
        return shard

    change_shard(monkeypatch, first, late)
    with pytest.raises(RunError, match=r"^all 6 clients of round 1 missed cohort\.deadline_seconds = 0\.5; raise it$"):
        run(config, out=out)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_deadline_that_all_clients_meet_changes_no_bit(tmp_path: Path, algorithm: str) -> None:
    tables: dict[str, Any] = {"algorithm": {"name": algorithm, "lr": 0.05}, "local": {"stack": 0}}
    free, limited = (
        run(small(**tables, cohort={"deadline_seconds": seconds}), out=tmp_path / str(seconds), progress=False)
        for seconds in (None, 600.0)
    )
    assert free.summary["sha256"] == limited.summary["sha256"]


@pytest.mark.parametrize("stack", [0, 4])
def test_divergence_names_round_client_and_block_and_keeps_the_checkpoint(
    out: Path, monkeypatch: pytest.MonkeyPatch, stack: int
) -> None:
    config = small(rounds=4, local={"stack": stack}, checkpoint={"every": 1})
    problem, _ = prepare(config)
    cohort = draw_cohort(config.seed, 2, problem.clients, problem.cohort_size, problem.num_blocks)
    earlier = {m.client for r in (0, 1) for m in draw_cohort(0, r, problem.clients, 6, problem.num_blocks)}
    client, block = next(member for member in cohort if member.client not in earlier)

    def with_nan(shard: Shard) -> Shard:
        shard.samples.stored[shard.rows] = float("nan")
        return shard

    change_shard(monkeypatch, client, with_nan)
    with pytest.raises(
        RunError, match=rf"round 3 diverged: client {client} uploaded non-finite values for block {block}"
    ):
        run(config, out=out)
    assert (out / "checkpoints" / "round-000002" / "manifest.json").exists()
    assert len((out / "rounds.jsonl").read_text().splitlines()) == 2


def test_weighting_by_samples_is_the_weighted_mean(out: Path) -> None:
    """With full participation and one full-batch step, the weighted mean is the gradient of the pooled loss."""
    tables: dict[str, Any] = {
        "rounds": 1,
        "data": {"partition": {"kind": "lognormal", "sigma": 1.0, "clients": 6}},
        "algorithm": {"name": "fedavg", "lr": 0.1, "weight_decay": 0.0},
        "local": {"epochs": 1, "batch_size": "full"},
        "cohort": {"clients_per_round": 6, "clients_per_block": None, "weighting": "samples"},
        "model": {"dtype": "float64"},
    }
    result = run(small(**tables), out=out)
    problem, data = prepare(small(**tables))
    module = problem.module()
    inputs = torch.from_numpy(data.dataset.train.inputs).double().div_(data.dataset.scale)
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (data.dataset.mean, data.dataset.std))
    inputs = (inputs - mean) / std
    torch.nn.functional.cross_entropy(module(inputs), torch.from_numpy(data.dataset.train.targets)).backward()
    for (name, before), after in zip(module.named_parameters(), result.model.parameters(), strict=True):
        assert before.grad is not None
        np.testing.assert_allclose(after.detach(), (before - 0.1 * before.grad).detach(), atol=1e-12, err_msg=name)


def test_dropped_clients_keep_their_state(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(rounds=1, cohort={"on_client_error": "drop"})
    client, _ = first_cohort(config)[0]
    change_shard(monkeypatch, client, broken)
    run(config, out=out)
    assert not list((out / "states").rglob(f"{client}-*.safetensors"))


def test_algorithms_can_be_objects(out: Path) -> None:
    class Mine(FedAvg):
        """FedAvg whose server does not move."""

        def server_rule(self, server: Any, total: Any, rnd: Any) -> Any:
            return server

    config = small(rounds=1).model_copy(update={"algorithm": Mine(lr=0.1)})
    result = run(config, out=out)
    problem, _ = prepare(config)
    for before, after in zip(problem.module().parameters(), result.model.parameters(), strict=True):
        assert torch.equal(before, after)


def test_a_round_that_every_client_misses_stops_the_run(out: Path) -> None:
    line = r"^all 6 clients of round 1 missed cohort\.deadline_seconds = 1e-09; raise it$"
    with pytest.raises(RunError, match=line):
        run(small(rounds=2, cohort={"deadline_seconds": 1e-9}), out=out)
    assert list(RoundLog(out / "rounds.jsonl")) == []


def test_a_round_in_which_every_client_fails_stops_the_run(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(rounds=1, cohort={"on_client_error": "drop"}, local={"stack": 0})
    for client, _ in first_cohort(config):
        change_shard(monkeypatch, client, broken)
    message = r"^all 6 clients of round 1 failed or were late, for example client \d+: OSError: "
    with pytest.raises(RunError, match=message):
        run(config, out=out)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            MemoryError("2 TB"),
            r"^client {} ran out of memory in round 1: MemoryError: 2 TB .*; lower local\.batch_size",
        ),
        (SystemExit(3), r"^client {} failed in round 1: SystemExit: 3 "),
    ],
)
def test_errors_that_are_not_exceptions_of_the_code_name_the_client(
    error: BaseException, line: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(rounds=1, local={"stack": 0})
    client, _ = first_cohort(config)[0]

    def fail(*_: Any) -> Any:
        raise error

    change_shard(monkeypatch, client, fail)
    with pytest.raises(RunError, match=line.format(client)):
        run(config, out=out)
