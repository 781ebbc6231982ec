"""A run with a module or data from Python records them, and is resumed only with them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from raybcgd import Config, ConfigError, Dataset, run
from raybcgd.algorithms import FedAvg, FedBCGD
from raybcgd.cli import app
from raybcgd.config import load_run_config
from raybcgd.storage import RunFolder


def data() -> Dataset:
    x = torch.randn(120, 20, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    return Dataset.from_tensors(x[:100], y[:100], x[100:], y[100:], name="noise")


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 2))


def config(**changes: Any) -> Config:
    return Config(
        rounds=2,
        engine="local",
        algorithm=FedAvg(),
        data={"partition": {"kind": "iid", "clients": 5}},
        metrics={"enabled": False},
        **changes,
    )


def test_the_config_of_a_run_names_what_was_passed_from_python(out: Path) -> None:
    run(config(), module=Net(), dataset=data(), out=out)
    recorded = load_run_config(RunFolder(out))
    assert (recorded.model.name, recorded.data.source) == ("Net", "noise")
    assert recorded.objects is not None
    assert recorded.objects.module == f"{Net.__module__}.Net"
    assert recorded.objects.module_parameters == 20 * 8 + 8 + 8 * 2 + 2
    assert (recorded.objects.train_shape, recorded.objects.test_shape) == ((100, 20), (20, 20))
    assert len(str(recorded.objects.module_sha256)) == len(str(recorded.objects.dataset_sha256)) == 64


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_the_command_line_does_not_resume_a_run_with_python_objects(checkpoints: int, out: Path) -> None:
    run(config(checkpoint={"every": checkpoints}), module=Net(), dataset=data(), out=out)
    (out / "summary.json").unlink()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    result = CliRunner().invoke(app, ["resume", str(out), "--set", "rounds=3"])
    assert result.exit_code == 2, result.output
    assert "run(config, module=…, dataset=…, out=…, resume=True)" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_python_resumes_the_run_with_the_same_objects_only(out: Path, tmp_path: Path) -> None:
    changed = config(checkpoint={"every": 1})
    torch.manual_seed(0)
    net = Net()
    whole = run(changed, module=net, dataset=data(), out=tmp_path / "whole")
    run(changed.model_copy(update={"rounds": 1}), module=net, dataset=data(), out=out)
    with pytest.raises(ConfigError, match="used Python objects; resume it from Python"):
        run(changed, out=out, resume=True)
    resumed = run(changed, module=Net(), dataset=data(), out=out, resume=True)  # other initial weights do not matter
    assert resumed.summary["sha256"] == whole.summary["sha256"]


def test_data_that_the_config_describes_is_no_python_object(out: Path) -> None:
    from raybcgd.data.sources import load

    settings = config(model={"options": {"hidden": [8]}})
    run(settings, dataset=load(settings.data), out=out)
    assert load_run_config(RunFolder(out)).objects is None


@pytest.mark.parametrize("algorithm", [FedAvg(), FedBCGD()])
@pytest.mark.parametrize(("clients", "sampled"), [(1, 1), (3, 3), (30, 10)])
@pytest.mark.parametrize("module", [Net(), nn.Linear(20, 2)])
def test_defaults_fit_small_models_and_few_clients(
    algorithm: Any, clients: int, sampled: int, module: nn.Module, out: Path
) -> None:
    settings = config().model_copy(update={"algorithm": algorithm, "rounds": 1})
    partition = {"kind": "iid", "clients": clients}
    settings = Config(**{**dict(settings), "data": {"partition": partition}})
    result = run(settings, module=module, dataset=data(), out=out)
    assert len(result.records[0].participants) == sampled


@pytest.mark.parametrize("model", ["cnn", "logistic", "sigmoid_erm", "mlp"])
def test_blocks_divides_every_small_model_by_default(model: str) -> None:
    result = CliRunner().invoke(app, ["blocks", "--model", model])
    assert result.exit_code == 0, result.output


def test_a_shared_block_that_is_most_of_the_model_is_a_warning(out: Path, caplog: pytest.LogCaptureFixture) -> None:
    for algorithm, warned in ((FedBCGD(), True), (FedAvg(), False)):
        caplog.clear()
        settings = config().model_copy(update={"algorithm": algorithm})
        wide = nn.Sequential(nn.Linear(20, 2), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 200))
        run(settings, module=wide, dataset=data(), out=out / algorithm.name)
        assert ("is 93 % of the model, and every client uploads it" in caplog.text) == warned, caplog.text


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ({"module": "x.Net"}, "used Python objects; resume it from Python: run(config, module=…, out=…, resume=True)"),
        (
            {},
            'algorithm.name = "__main__:Mine" in {config} was defined in a script or a notebook; resume the run there',
        ),
    ],
)
def test_a_method_of_a_script_is_resumed_from_the_script(objects: dict[str, str], says: str, out: Path) -> None:
    run(config(), out=out, progress=False)
    tables = (out / "config.toml").read_text().replace('name = "fedavg"', 'name = "__main__:Mine"')
    given = "".join(f'\n[objects]\n{name} = "{value}"\n' for name, value in objects.items())
    (out / "config.toml").write_text(tables + given)
    refused = CliRunner().invoke(app, ["resume", str(out), "--set", "rounds=3"])
    assert refused.exit_code == 2
    assert says.format(config=out / "config.toml") in refused.stderr


def test_a_model_with_one_block_gets_a_note(out: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(config().model_copy(update={"algorithm": FedBCGD()}), module=Net(), dataset=data(), out=out, progress=False)
    assert "the layers of this model form one block, so every client uploads all of it" in caplog.text
