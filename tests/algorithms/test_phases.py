"""MM-PSGD and MC-PSGD on block-cyclic data: identities, and better accuracy than one model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from raybcgd import run
from raybcgd.config import make_config
from raybcgd.data.dataset import Dataset
from raybcgd.data.settings import PhasesConfig

THREE: dict[str, Any] = {"data": {"phases": {"count": 3, "rounds_per_phase": 2}}}
SETTINGS = {"lr": 0.1, "lr_decay": 1.0}


def cyclic(name: str, rounds: int = 12, **changes: Any) -> dict[str, Any]:
    return {"rounds": rounds, "algorithm": {"name": name, **SETTINGS, **changes}, **THREE}


def test_phases_alternate_after_their_rounds() -> None:
    config = PhasesConfig(count=3, rounds_per_phase=2)
    assert [config.at(r) for r in range(9)] == [0, 0, 1, 1, 2, 2, 0, 0, 1]


def test_a_round_trains_only_on_the_samples_of_its_phase(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from raybcgd.client.shards import Shards

    original, labels = Shards.shard, {}

    def spy(self: Shards, client: int, orders: Any) -> Any:
        shard = original(self, client, orders)
        labels.setdefault((orders.round_index, orders.data_phase), set()).update(
            shard.samples.targets[shard.rows].tolist()
        )
        return shard

    monkeypatch.setattr(Shards, "shard", spy)
    played = lab.play(cyclic("fedavg", rounds=7))
    assert [record.data_phase for record in played.rounds] == [0, 0, 1, 1, 2, 2, 0]
    own = [{0, 1, 2}, {3, 4, 5}, {6, 7, 8, 9}]
    assert list(labels) == [(r, r // 2 % 3) for r in range(7)]
    assert all(seen and seen <= own[phase] for (_, phase), seen in labels.items())


def test_predictors_are_the_means_of_the_models_of_their_rounds(lab: Any) -> None:
    played = lab.play(cyclic("mm_psgd"))
    fedavg = lab.play(cyclic("fedavg"))
    assert all(torch.equal(a, b) for a, b in zip(played.xs, fedavg.xs, strict=True)), "the chain must equal FedAvg's"
    for phase, predictor in enumerate(played.server.predictors):
        mine = [x for r, x in enumerate(played.xs) if r // 2 % 3 == phase]
        assert len(mine) == 4 == played.server.seen[phase]
        torch.testing.assert_close(predictor, torch.stack(mine).mean(0), rtol=0, atol=1e-6)


def test_exponential_averaging_weights_the_newest_model_most(lab: Any) -> None:
    played = lab.play(cyclic("mm_psgd", averaging="exponential"))
    for phase, predictor in enumerate(played.server.predictors):
        a, b, c, d = (x for r, x in enumerate(played.xs) if r // 2 % 3 == phase)
        torch.testing.assert_close(predictor, a / 8 + b / 8 + c / 4 + d / 2, rtol=0, atol=1e-6)


@pytest.mark.parametrize("stack", [0, 16])
def test_mc_psgd_with_one_phase_is_mm_psgd_bit_for_bit(lab: Any, stack: int) -> None:
    one = {"local": {"stack": stack}, "data": {"phases": {"count": 1}}}
    mc, mm = (lab.play({**cyclic(name, rounds=5), **one}) for name in ("mc_psgd", "mm_psgd"))
    assert torch.equal(mc.server.chains[0], mc.x)
    assert torch.equal(mc.x, mm.x)
    assert torch.equal(mc.server.predictors, mm.server.predictors)


def test_phased_methods_without_phases_are_fedavg_with_averaged_models(lab: Any) -> None:
    """Without `data.phases`, every round uses all data and there is one predictor."""
    mm = lab.play({"rounds": 4, "algorithm": {"name": "mm_psgd", **SETTINGS}})
    fedavg = lab.play({"rounds": 4, "algorithm": {"name": "fedavg", **SETTINGS}})
    assert torch.equal(mm.x, fedavg.x)
    torch.testing.assert_close(mm.server.predictors[0], torch.stack(fedavg.xs).mean(0), rtol=0, atol=1e-6)


def mean_loss(played: Any, model: torch.Tensor, record: Any) -> float:
    """Return the mean loss of a model over the participants' samples, by a plain forward pass."""
    data, problem = played.data, played.problem
    module = problem.flat_model()
    module.vector.copy_(model)
    losses = []
    for participant in record.participants:
        rows = data.partitions[record.data_phase].client(participant.client)
        inputs = torch.from_numpy(data.dataset.train.inputs[rows]).float() / data.dataset.scale
        inputs = (inputs - torch.tensor(data.dataset.mean)) / torch.tensor(data.dataset.std)
        targets = torch.from_numpy(data.dataset.train.targets[rows])
        with torch.no_grad():
            losses.append(float(torch.nn.functional.cross_entropy(module.module(inputs), targets)))
    return float(np.mean(losses))


@pytest.mark.parametrize("stack", [0, 16])
def test_the_predictor_averages_the_new_aggregate_with_the_smaller_loss(lab: Any, stack: int) -> None:
    """Lines 8 to 12 of the paper's Algorithm 2: clients judge the models after the round, not before it."""
    states = []
    from raybcgd.algorithms.mc_psgd import MCPSGD

    original = MCPSGD.choose

    def spy(self: MCPSGD, server: Any, losses: Any, rnd: Any) -> Any:
        after = original(self, server, losses, rnd)
        states.append((server, losses, after))
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MCPSGD, "choose", spy)
        played = lab.play({**cyclic("mc_psgd"), "local": {"stack": stack}, "evaluation": {"batch_size": 7}})
    chosen, previous = [], played.problem.algorithm.server_init(played.start, 3)
    for record, x, (server, losses, after) in zip(played.rounds, played.xs, states, strict=True):
        phase = record.data_phase
        assert torch.equal(server.x, x)
        assert torch.equal(server.predictors, previous.predictors)
        z = server.chains[phase]
        np.testing.assert_allclose(losses, [mean_loss(played, model, record) for model in (x, z)], rtol=1e-5)
        for other in {0, 1, 2} - {phase}:
            assert torch.equal(previous.chains[other], after.chains[other])
            assert torch.equal(previous.predictors[other], after.predictors[other])
        assert not torch.equal(previous.chains[phase], z)
        chosen.append(losses[0] <= losses[1])
        old = server.predictors[phase]
        expected = old + ((x if chosen[-1] else z) - old) / after.seen[phase]
        torch.testing.assert_close(after.predictors[phase], expected)
        previous = after
    assert set(chosen) == {True, False}
    assert torch.equal(previous.predictors, played.server.predictors)


def test_the_reported_losses_and_the_judged_models_count_as_traffic(lab: Any) -> None:
    played = lab.play(cyclic("mc_psgd", rounds=1))
    d, traffic = played.problem.layout.size, played.rounds[0].traffic
    clients = len(played.rounds[0].participants)
    assert traffic.upload_floats == clients * (2 * d + 2)
    assert traffic.upload_bytes == 4 * traffic.upload_floats
    assert traffic.download_floats == clients * 4 * d
    assert sum(played.rounds[0].blocks.download_floats) == traffic.download_floats


def test_the_simulated_time_includes_the_models_that_participants_judge(lab: Any) -> None:
    rate = 1000.0
    links = {"median": rate, "sigma": 0.0, "downlink_factor": 1.0}
    (record,) = lab.play({**cyclic("mc_psgd", rounds=1), "cohort": {"links": links}}).rounds
    each = (record.traffic.upload_bytes + record.traffic.download_bytes) / len(record.participants)
    assert record.traffic.simulated_seconds == pytest.approx(each / rate)


def digits_in_three_phases(name: str, **changes: Any) -> Any:
    return make_config(
        {
            "rounds": 45,
            "engine": "local",
            "data": {"partition": {"clients": 20}, "phases": {"count": 3, "rounds_per_phase": 5}},
            "model": {"name": "mlp", "options": {"hidden": [32]}},
            "blocks": {"count": 1},
            "local": {"epochs": 1, "batch_size": 10},
            "cohort": {"clients_per_round": 10},
            "checkpoint": {"every": 0},
            "evaluation": {"every": 45},
            "algorithm": {"name": name, "lr": 0.1, **changes},
        }
    )


def test_one_predictor_per_phase_beats_one_model_on_cyclic_digits(tmp_path: Path) -> None:
    """FedAvg forgets earlier phases; each predictor stays accurate on its own phase."""
    accuracy = {}
    for name, settings in (("fedavg", {}), ("mm_psgd", {"averaging": "exponential"}), ("mc_psgd", {})):
        result = run(digits_in_three_phases(name, **settings), out=tmp_path / name)
        record = result.records[-1]
        assert record.quality.accuracy_by_phase is not None
        assert record.quality.accuracy == pytest.approx(np.mean(record.quality.accuracy_by_phase))
        accuracy[name] = record.quality.accuracy
        tensors = load_file(tmp_path / name / "final.safetensors")
        assert sum("model2." in key for key in tensors) == (0 if name == "fedavg" else 4)
    assert accuracy["mm_psgd"] > accuracy["fedavg"] + 0.2
    assert accuracy["mc_psgd"] > accuracy["fedavg"] + 0.2
    assert accuracy["mc_psgd"] > 0.9


@pytest.mark.parametrize("name", ["mm_psgd", "mc_psgd"])
@pytest.mark.parametrize("share", [0.05, 0.2])
def test_small_cohorts_of_a_thousand_clients_train(lab: Any, name: str, share: float) -> None:
    rng = np.random.default_rng(0)
    targets = np.arange(9000) % 6
    inputs = rng.standard_normal((9000, 4)).astype(np.float32)
    dataset = Dataset.from_tensors(inputs, targets, inputs[:600], targets[:600])
    sampled = int(1000 * share)
    changes = {
        "rounds": 4,
        "data": {
            "partition": {"clients": 1000, "samples_per_client": None},
            "phases": {"count": 2, "rounds_per_phase": 1},
        },
        "cohort": {"clients_per_round": sampled},
        "local": {"steps": 2, "batch_size": 2},
        "algorithm": {"name": name, "lr": 0.01},
    }
    played = lab.play(changes, dataset=dataset)
    assert [len(result.participants) for result in played.rounds] == [sampled] * 4
    assert len(set().union(*({p.client for p in r.participants} for r in played.rounds))) > sampled
    assert bool(torch.isfinite(played.server.predictors).all())


def test_one_model_is_evaluated_on_the_test_data_of_every_phase(tmp_path: Path) -> None:
    result = run(digits_in_three_phases("fedavg").model_copy(update={"rounds": 15}), out=tmp_path / "run")
    by_phase = result.records[-1].quality.accuracy_by_phase
    assert by_phase is not None
    assert by_phase[2] > 0.6, "the current phase"
    assert min(by_phase[:2]) < 0.5, "forgotten phases"


def test_a_resumed_cyclic_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    config = digits_in_three_phases("mc_psgd").model_copy(update={"rounds": 12})
    config = make_config({**config.model_dump(), "checkpoint": {"every": 4}})
    whole = run(config, out=tmp_path / "whole")
    run(config.model_copy(update={"rounds": 8}), out=tmp_path / "parts")
    parts = run(config, out=tmp_path / "parts", resume=True)
    assert parts.summary["sha256"] == whole.summary["sha256"]
