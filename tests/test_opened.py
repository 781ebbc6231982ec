"""Runs read back from their folders, as objects and as tables."""

import re
from pathlib import Path
from typing import Any, ClassVar

import pandas
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from raybcgd import ConfigError, RoundRecord, Run, figures, run
from raybcgd.algorithms import FedAvg, FedProx
from raybcgd.analysis.analyst import analyse_run
from raybcgd.cli import app
from raybcgd.compare import compare
from raybcgd.errors import DivergedError
from tests.conftest import small


def test_a_run_is_read_back_with_its_curves_config_and_model(out: Path) -> None:
    result = run(small(rounds=3, evaluation={"every": 2, "clients": 2, "metrics": ["top5"]}), out=out)
    opened = Run.open(out)
    assert opened.records == result.records
    assert opened.summary is not None
    assert opened.summary["sha256"] == result.summary["sha256"]
    assert opened.config() == small(rounds=3, evaluation={"every": 2, "clients": 2, "metrics": ["top5"]})
    frame = opened.frame()
    pandas.testing.assert_frame_equal(frame, result.frame())
    assert list(frame["round"]) == [1, 2, 3]
    assert frame["upload_bytes"].sum() == result.summary["upload_bytes"]
    assert {"clients_worst_tenth", "metric_top5", "train_seconds"} <= set(frame)
    curve = opened.curve()
    assert list(curve.index) == [2, 3], "the rounds of the frame"
    assert curve[2] == frame["accuracy"][1] == result.records[1].quality.accuracy
    with pytest.raises(ConfigError, match="accurcy is not measured; use one of round, accuracy"):
        opened.curve("accurcy")
    inputs = torch.rand(5, 1, 8, 8)
    assert torch.equal(opened.model()(inputs), result.model(inputs))
    with pytest.raises(ConfigError, match="are not in this module"):
        opened.model(nn.Linear(2, 2))
    shown = figures([opened])
    assert {"accuracy", "loss", "clients"} <= set(shown)
    assert type(opened.figures()["accuracy"]).__name__ == "Figure"
    for text in (repr(opened), repr(result)):
        assert "3 rounds, accuracy" in text
        assert len(text) < 200
    with pytest.raises(ConfigError, match="holds no run"):
        Run.open(out.parent)


def test_a_run_with_one_model_per_data_phase_is_read_back(out: Path) -> None:
    phases = {"phases": {"count": 2, "rounds_per_phase": 1}}
    result = run(small(rounds=2, algorithm={"name": "mm_psgd", "lr": 0.05}, data=phases), out=out)
    opened, inputs = Run.open(out), torch.rand(5, 1, 8, 8)
    assert torch.equal(opened.model()(inputs), result.model(inputs))
    assert not torch.equal(opened.model(phase=1)(inputs), result.model(inputs))
    with pytest.raises(ConfigError, match=r"^phase = 2: the run has no such model; use 0 to 1$"):
        opened.model(phase=2)


def test_a_module_of_ones_own_is_passed_again(out: Path) -> None:
    def net(width: int = 6) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width), nn.Linear(width, 10))

    result = run(small(rounds=1, blocks={"count": 1}), module=net(), out=out)
    with pytest.raises(ConfigError, match=r"was started with module=.*Sequential; call run.model\(module\)"):
        Run.open(out).model()
    shapes = r"1\.weight has shape \(8, 64\) in this module and \(6, 64\) in the run; pass a module of the same size$"
    with pytest.raises(ConfigError, match=shapes):
        Run.open(out).model(net(8))
    restored = Run.open(out).model(net())
    assert not result.model.training
    assert not restored.training
    for name, value in result.model.state_dict().items():
        if value.is_floating_point():
            assert torch.equal(restored.state_dict()[name], value)


@pytest.mark.parametrize("own", [False, True])
def test_advice_about_a_run_without_weights_works(own: bool, tmp_path: Path) -> None:
    """With a single step per round, a large step size makes only the second round diverge."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    given: dict[str, Any] = {"module": net} if own else {}
    same: dict[str, Any] = {"rounds": 3, "blocks": {"count": 1}, "local": {"batch_size": "full"}}
    config = small(**same, algorithm={"name": "fedavg", "lr": 1e18})

    def advice(folder: Path) -> str:
        with pytest.raises(ConfigError) as error:
            Run.open(folder).model(**given)
        text = str(error.value)
        assert text.startswith(f"{folder} has no final.safetensors: "), text
        return text

    def interrupt(record: RoundRecord) -> None:
        raise KeyboardInterrupt

    alone, compared, stopped = (tmp_path / name for name in ("alone", "compared", "stopped"))
    with pytest.raises(DivergedError) as diverged:
        run(config, **given, out=alone, progress=False)
    found = f"{alone} has no final.safetensors: {diverged.value}; a repeat would diverge again: change its settings, "
    how = "run(config, module=…)" if own else "raybcgd train CONFIG"
    assert advice(alone) == f"{found}then start a new run with `{how}`"
    compare(config, ["fedavg", FedProx(lr=0.05)], **given, out=compared, progress=False)
    shell = f"raybcgd compare CONFIG --out {compared} --resume auto"
    how = "compare(config, module=…, out=…, resume=True)" if own else shell
    assert advice(compared / "fedavg").endswith(f"change its settings, then continue the comparison with `{how}`")
    slower = small(**same, algorithm={"name": "fedavg", "lr": 0.05})
    compare(slower, ["fedavg", FedProx(lr=0.05)], **given, out=compared, resume=True, progress=False)
    Run.open(compared / "fedavg").model(**given)
    with pytest.raises(KeyboardInterrupt):
        run(slower, **given, out=stopped, observe=interrupt, progress=False)
    how = "run(config, module=…, out=…, resume=True)" if own else f"raybcgd resume {stopped}"
    assert advice(stopped).endswith(f": the run has not finished; resume it with `{how}`")


def test_a_run_that_diverged_in_its_first_round_says_so(out: Path) -> None:
    with pytest.raises(DivergedError) as diverged:
        run(small(algorithm={"name": "fedavg", "lr": 1e18}), out=out, progress=False)
    with pytest.raises(ConfigError) as error:
        Run.open(out)
    assert str(error.value) == f"{out} has no rounds: {diverged.value}; leave it out, or start it with other settings"


def test_a_run_that_is_mended_and_resumed_no_longer_says_that_it_diverged(out: Path) -> None:
    class Broken(FedAvg):
        broken: ClassVar[bool] = True

        def server_rule(self, server: Any, total: Any, rnd: Any) -> Any:
            server = super().server_rule(server, total, rnd)
            return server._replace(x=server.x * float("nan")) if self.broken and rnd.index == 1 else server

    config = small(rounds=3, algorithm=Broken(lr=0.05), blocks={"count": 1})
    with pytest.raises(DivergedError):
        run(config, out=out, progress=False)
    assert (out / "diverged.txt").exists()
    Broken.broken = False
    run(config, out=out, resume=True, progress=False)
    assert not (out / "diverged.txt").exists()


def test_an_observer_gets_every_record_and_can_end_the_run(out: Path) -> None:
    seen: list[RoundRecord] = []

    def observe(record: RoundRecord) -> None:
        seen.append(record)
        if len(seen) == 3:
            raise LookupError("seen enough")

    with pytest.raises(LookupError, match="seen enough"):
        run(small(rounds=6), out=out, observe=observe)
    assert Run.open(out).records == tuple(seen)
    assert [record.round for record in seen] == [0, 1, 2]
    again: list[int] = []
    result = run(small(rounds=6), out=out, resume=True, observe=lambda record: again.append(record.round))
    assert again == [2, 3, 4, 5]  # the checkpoint was after two rounds
    assert len(result.records) == 6


def test_advice_about_code_of_ones_own_is_for_python(out: Path) -> None:
    run(small(rounds=1), out=out)
    config = out / "config.toml"
    config.write_text(config.read_text().replace('name = "mlp"', 'name = "tests.wrong.code:Net"'))
    opened = Run.open(out)
    calls = {"run.config": opened.config, "run.model": opened.model, "analyse_run": lambda: analyse_run(out)}
    for name, call in calls.items():
        line = f"names code outside raybcgd; read that code, then call {name}(trust=True) to run it"
        with pytest.raises(ConfigError, match=re.escape(line)):
            call()
    config.write_text(config.read_text().replace("tests.wrong.code:Net", "__main__:Net"))
    with pytest.raises(
        ConfigError, match=r"defined in a script or a notebook; define it here too, then call run.config\(trust=True\)"
    ):
        Run.open(out).config()
    config.write_text(config.read_text().replace("__main__:Net", "Net") + '\n[objects]\nmodule = "x.Net"\n')
    with pytest.raises(ConfigError, match=r"used Python objects \(x.Net\); pass them again: module=…; to resume it"):
        analyse_run(out)


def test_export_writes_all_rounds_of_a_comparison(out: Path, tmp_path: Path) -> None:
    comparison = compare(small(rounds=2), algorithms=["fedavg", "fedbcgd"], out=out)
    assert repr(comparison).count("\n|") == 3
    csv, parquet = tmp_path / "rounds.csv", tmp_path / "rounds.parquet"
    done = CliRunner().invoke(app, ["export", str(out), "--csv", str(csv), "--parquet", str(parquet)])
    assert done.exit_code == 0, done.output
    for table in (pandas.read_csv(csv), pandas.read_parquet(parquet)):
        assert list(table["run"]) == ["FedAvg", "FedAvg", "FedBCGD", "FedBCGD"]
        assert list(table["accuracy"]) == pytest.approx(
            [record.quality.accuracy for each in comparison.runs.values() for record in each.records]
        )
    assert "(4 rows of 2 runs)\n" in done.output
    done = CliRunner().invoke(app, ["export", str(out / "fedavg"), "--csv", str(csv)])
    assert "(2 rows of 1 run)\n" in done.output
    assert CliRunner().invoke(app, ["export", str(out)]).exit_code == 2


def test_export_tells_validation_from_test_data_and_names_failed_runs(out: Path, tmp_path: Path) -> None:
    held_out = small(rounds=1, data={"evaluate_on": "validation", "validation_share": 0.2})
    run(held_out, out=tmp_path / "validation", progress=False)
    diverging = [FedAvg(lr=0.1), FedProx(lr=1e30)]
    compare(small(rounds=1), algorithms=diverging, out=out)
    csv = tmp_path / "rounds.csv"
    done = CliRunner().invoke(app, ["export", str(out), str(tmp_path / "validation"), "--csv", str(csv)])
    assert done.exit_code == 0, done.output
    assert list(pandas.read_csv(csv)["evaluated_on"]) == ["test", "validation"]
    assert "left out, because they failed before their first round: FedProx\n" in done.output


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing-here: no such folder"):
        Run.open(tmp_path / "nothing-here")
