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
    assert all(seen == own[phase] for (_, phase), seen in labels.items())


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


def test_a_chain_changes_only_in_its_phase_and_the_predictor_averages_the_better_model(lab: Any) -> None:
    states = []
    from raybcgd.algorithms.mc_psgd import MCPSGD

    original = MCPSGD.server_rule

    def spy(self: MCPSGD, server: Any, total: Any, rnd: Any) -> Any:
        after = original(self, server, total, rnd)
        states.append((server, total, rnd.data_phase, after))
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MCPSGD, "server_rule", spy)
        lab.play(cyclic("mc_psgd"))
    fed_by = []
    for server, total, phase, after in states:
        for other in {0, 1, 2} - {phase}:
            assert torch.equal(server.chains[other], after.chains[other])
            assert torch.equal(server.predictors[other], after.predictors[other])
        assert not torch.equal(server.chains[phase], after.chains[phase])
        mixed = bool(total.loss <= total.loss_z)
        fed_by.append(mixed)
        model, n = (after.x if mixed else after.chains[phase]), after.seen[phase]
        expected = server.predictors[phase] + (model - server.predictors[phase]) / n
        torch.testing.assert_close(after.predictors[phase], expected)
    assert set(fed_by) == {True, False}


def test_clients_report_the_losses_of_both_models_on_their_data(lab: Any) -> None:
    """Compare with a plain forward pass, for one client with uneven batches."""
    problem, payload = lab.upload(cyclic("mc_psgd"), client=3, block=None)
    upload = problem.wire.decode(payload, None)
    _, data = lab.prepare(problem.config)
    rows = data.partitions[0].client(3)
    inputs = torch.from_numpy(data.dataset.train.inputs[rows]).float() / data.dataset.scale
    inputs = (inputs - torch.tensor(data.dataset.mean)) / torch.tensor(data.dataset.std)
    expected = torch.nn.functional.cross_entropy(
        problem.module()(inputs), torch.from_numpy(data.dataset.train.targets[rows])
    )
    assert len(rows) % problem.config.local.batch_size, "the last batch must be smaller"
    torch.testing.assert_close(upload.loss[0], expected.detach())
    assert torch.equal(upload.loss, upload.loss_z)
    assert payload.nbytes == 4 * (2 * problem.layout.size + 2)


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
    assert by_phase[2] > 0.9, "the current phase"
    assert min(by_phase[:2]) < 0.5, "forgotten phases"


def test_a_resumed_cyclic_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    config = digits_in_three_phases("mc_psgd").model_copy(update={"rounds": 12})
    config = make_config({**config.model_dump(), "checkpoint": {"every": 4}})
    whole = run(config, out=tmp_path / "whole")
    run(config.model_copy(update={"rounds": 8}), out=tmp_path / "parts")
    parts = run(config, out=tmp_path / "parts", resume=True)
    assert parts.summary["sha256"] == whole.summary["sha256"]
