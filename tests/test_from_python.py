"""What users pass from Python: models, data sets and configs, right and wrong."""

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from raybcgd import Config, ConfigError, RunError, run
from raybcgd.algorithms import FedAvg
from raybcgd.cli import app
from raybcgd.client.batches import schedule
from raybcgd.client.settings import LocalConfig
from raybcgd.data.dataset import Dataset
from raybcgd.data.from_python import as_dataset
from raybcgd.model.blocks import divide
from raybcgd.model.settings import BlocksConfig
from raybcgd.problem import prepare
from raybcgd.record.rounds import RoundLog
from raybcgd.server.norms import block_norms

X = torch.randn(120, 20, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
ARRAYS = (X[:100], Y[:100], X[100:], Y[100:])
TORCH = (TensorDataset(X[:100], Y[:100]), TensorDataset(X[100:], Y[100:]))


class Samples(TorchDataset[Any]):
    """A torch data set without tensors."""

    def __init__(self, start: int, stop: int) -> None:
        self.rows = range(start, stop)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return X[self.rows[index]].numpy(), int(Y[self.rows[index]])


class Net(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 2))


def config(**changes: Any) -> Config:
    tables: dict[str, Any] = {
        "rounds": 1,
        "engine": "local",
        "algorithm": FedAvg(),
        "data": {"partition": {"kind": "iid", "clients": 5}},
        "metrics": {"enabled": False},
    }
    return Config(**{**tables, **changes})


def sha256(out: Path, module: nn.Module, dataset: Any = ARRAYS, **changes: Any) -> str:
    return str(run(config(**changes), module=module, dataset=dataset, out=out, progress=False).summary["sha256"])


def test_float_targets_of_a_torch_data_set_are_for_regression() -> None:
    class Heights(Samples):
        def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
            return X[self.rows[index]].numpy(), torch.tensor(0.5 * self.rows[index])

    found = as_dataset((Heights(0, 100), Heights(100, 120)))
    assert found.regression
    assert found.train.targets.tolist() == [0.5 * row for row in range(100)]


@pytest.mark.parametrize("dataset", [TORCH, (Samples(0, 100), Samples(100, 120))])
def test_torch_data_sets_train_as_their_tensors_do(dataset: Any, tmp_path: Path) -> None:
    assert sha256(tmp_path / "a", Net(), dataset) == sha256(tmp_path / "b", Net())


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (TORCH[0], "dataset is one TensorDataset, without test data; pass a raybcgd.Dataset"),
        ((X, Y), "dataset is a tuple of 2; pass a raybcgd.Dataset"),
        (X, "dataset is Tensor; pass a raybcgd.Dataset"),
        ((TensorDataset(X), TensorDataset(X)), r"dataset TensorDataset cannot be read \(IndexError"),
    ],
)
def test_other_data_is_refused_in_one_line(dataset: Any, says: str, out: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{says}[^\n]*$"):
        sha256(out, Net(), dataset)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: config(rouds=3), r"rouds is not a setting; did you mean rounds\?"),
        (lambda: config(local={"epoch": 3}), r"local\.epoch is not a setting; did you mean epochs\?"),
        (lambda: config(rounds="many"), r"rounds = 'many': must be a valid integer.*"),
        (
            lambda: run(config(), module=Net, dataset=ARRAYS),
            r"module is the class Net; pass an instance, such as Net\(\)",
        ),
        (lambda: run({"rounds": 3}), "config is dict; pass a Config.*"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(call: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{says}$"):
        call()


class WithLogits(NamedTuple):
    hidden: Tensor
    logits: Tensor


@pytest.mark.parametrize("stack", [0, "auto"])
@pytest.mark.parametrize(
    "wrap", [lambda y: (y, y + 1), lambda y: {"logits": y, "hidden": y + 1}, lambda y: WithLogits(y + 1, y)]
)
def test_models_may_return_logits_beside_other_things(wrap: Any, stack: Any, tmp_path: Path) -> None:
    class Wrapped(Net):
        def forward(self, x: Tensor) -> Any:
            return wrap(super().forward(x))

    local = {"stack": stack}
    assert sha256(tmp_path / "a", Wrapped(), local=local) == sha256(tmp_path / "b", Net(), local=local)


def test_norms_that_overflow_float32_leave_a_readable_log(out: Path) -> None:
    layout = divide(nn.Linear(20, 2), BlocksConfig())
    assert block_norms(torch.full((42,), 1e30), layout)[0] == pytest.approx(42**0.5 * 1e30)
    settings = config(rounds=3, algorithm=FedAvg(lr=1e6), model={"dtype": "float32"})
    with contextlib.suppress(RunError):  # whether it diverges depends on the machine's rounding
        run(settings, module=Net(), dataset=ARRAYS, out=out, progress=False)
    list(RoundLog(out / "rounds.jsonl"))


def test_drop_last_leaves_only_full_batches() -> None:
    local = LocalConfig(batch_size=8, epochs=2, drop_last=True)
    for fixed in (False, True):
        plan = schedule(25, local, fixed, np.random.default_rng(0))
        assert [len(batch) for batch in plan.members()] == [8] * (3 if fixed else 6)
        assert len(plan.order) == local.num_steps(25) == 6
    assert [len(batch) for batch in schedule(5, local, True, np.random.default_rng(0)).members()] == [5]


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def test_batch_norm_trains_with_a_remainder_of_one_sample(out: Path) -> None:
    local = {"batch_size": 19, "epochs": 1}  # every client has 20 samples
    says = "local.batch_size = 19 leaves a batch of one sample for 5 of 5 clients, such as client 0 with 20 samples, "
    with pytest.raises(ConfigError, match=f"{says}.*Expected more than 1 value .*; set local.drop_last = true, or"):
        sha256(out / "a", batch_norm(), local=local)
    assert not (out / "a").exists()
    sha256(out / "b", batch_norm(), local={**local, "drop_last": True})
    sha256(out / "c", batch_norm(), local={**local, "steps": 1})  # never reaches the remainder
    sha256(out / "d", Net(), local=local)


def test_batch_norm_with_batches_or_clients_of_one_sample(out: Path) -> None:
    with pytest.raises(ConfigError, match=r"local.batch_size = 1, but module = Sequential cannot train on a batch of"):
        sha256(out / "a", batch_norm(), local={"batch_size": 1, "drop_last": True})
    clients = [list(range(10)), [10], list(range(11, 30))]
    settings = config(cohort={"clients_per_round": 3}, algorithm=FedAvg(lr=0.1))
    given: dict[str, Any] = {"module": batch_norm(), "dataset": ARRAYS, "partition": clients, "progress": False}
    with pytest.raises(ConfigError, match=r"1 of 3 clients, such as client 1, have one sample, but .* at least two"):
        run(settings, out=out / "b", **given)


def test_errors_before_a_run_name_clients_by_their_ids() -> None:
    given: dict[str, Any] = {"module": batch_norm(), "dataset": ARRAYS}
    ids = np.repeat([30, 99, 40], [10, 1, 89])
    with pytest.raises(ConfigError, match=r"1 of 3 clients, such as client 99 \(index 2\), have one sample"):
        prepare(config(data={}), **given, partition=ids)
    by_name = {"a": range(40), "b": range(40, 61)}
    local = {"batch_size": 20, "epochs": 1}
    with pytest.raises(ConfigError, match=r"for 1 of 2 clients, such as client b \(index 1\) with 21 samples"):
        prepare(config(data={}, local=local), **given, partition=by_name)
    split = {"partition": {"kind": "iid", "clients": 4}}
    named = Dataset.from_tensors(*ARRAYS, partition=by_name)
    with pytest.raises(ConfigError, match="such as client 0 with 25 samples"):
        prepare(config(data=split, local={**local, "batch_size": 24}), module=batch_norm(), dataset=named)


def test_clients_that_batch_norm_drops_are_announced(out: Path, caplog: pytest.LogCaptureFixture) -> None:
    clients = [list(range(10)), [10], list(range(11, 30))]
    settings = config(cohort={"clients_per_round": 3, "on_client_error": "drop"}, algorithm=FedAvg(lr=0.1))
    result = run(
        settings, module=batch_norm(), dataset=ARRAYS, partition=clients, progress=False, out=out, label="dropping"
    )
    assert [dropped.client for dropped in result.records[0].dropped] == [1]
    assert "these clients are dropped from every round" in caplog.text


def test_an_error_in_a_module_names_its_line_and_no_setting(out: Path) -> None:
    class Misspelled(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.hiden(x)  # type: ignore[operator]

    line = r"module = Misspelled fails in its forward pass: AttributeError: .*'hiden' \(test_from_python.py:\d+\); fix"
    with pytest.raises(ConfigError, match=line):
        sha256(out / "a", Misspelled())
    with pytest.raises(ConfigError, match=r"module = Sequential does not accept inputs of shape 20: .*; pass another"):
        sha256(out / "b", nn.Sequential(nn.Linear(21, 2)))


def test_the_number_of_outputs_is_compared_with_the_classes(out: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"returns 1 output .* or set model.loss = \"binary_cross_entropy\", or"):
        sha256(out / "a", nn.Sequential(nn.Linear(20, 1)))
    sha256(out / "b", nn.Sequential(nn.Linear(20, 5)))
    assert caplog.text.count("module = Sequential returns 5 outputs per sample, but the data has 2 classes") == 1


def test_modules_beside_the_config_are_found(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "beside_the_config.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    (project / "own.toml").write_text(
        'rounds = 1\nengine = "local"\n[model]\nname = "beside_the_config:net"\n[data.partition]\nclients = 5\n'
    )
    monkeypatch.chdir(elsewhere)
    result = CliRunner().invoke(app, ["train", str(project / "own.toml"), "--out", str(out)])
    assert result.exit_code == 0, result.output


def test_a_deadline_ends_a_round_in_one_process_between_clients(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10_000))
    monkeypatch.setattr("raybcgd.engine.local.time.monotonic", lambda: float(next(now)))
    settings = config(cohort={"deadline_seconds": 2.5})
    result = run(settings, module=Net(), dataset=ARRAYS, out=out, progress=False)
    assert 0 < len(result.records[0].participants) < 5
    assert {lost.reason for lost in result.records[0].dropped} == {"deadline"}
