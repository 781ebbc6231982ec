"""The command line: output, exit codes, and one-line errors."""

import io
import json
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from PIL import Image
from torch import nn
from typer.testing import CliRunner, Result

from raybcgd.cli import app
from raybcgd.record.rounds import RoundLog
from raybcgd.server.loop import FREE

SMALL: dict[str, Any] = {
    "rounds": 4,
    "engine": "local",
    "data": {"partition": {"rho": 0.3, "clients": 20}},
    "model": {"name": "mlp", "options": {"hidden": [16, 16, 16]}},
    "blocks": {"count": 3},
    "algorithm": {"name": "fedbcgd", "lr": 0.05, "momentum": 0.5},
    "local": {"epochs": 1, "batch_size": 20},
    "checkpoint": {"every": 2},
}


def raybcgd(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(SMALL))
    return path


def test_train_writes_a_run_folder_and_prints_one_line_per_round(config: Path, out: Path) -> None:
    result = raybcgd("train", config, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("FedBCGD: round ") == 4
    assert "round 4/4  accuracy " in result.stdout
    assert "d in total" in result.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == 4
    assert len(summary["sha256"]) == 64
    assert len(list(RoundLog(out / "rounds.jsonl"))) == 4
    assert not list(out.glob("*.part"))


@pytest.mark.parametrize(("rounds", "title"), [(1, "FedBCGD: 1 round"), (4, "FedBCGD: 4 rounds")])
def test_the_table_of_a_run_has_the_label_of_its_progress(rounds: int, title: str, config: Path, out: Path) -> None:
    result = raybcgd("train", config, "--out", out, "--set", f"rounds={rounds}")
    assert title in [line.strip() for line in result.stdout.splitlines()]


def test_a_refused_config_is_not_shown_as_a_failed_run(config: Path, out: Path) -> None:
    result = raybcgd("train", config, "--out", out, "--set", "cohort.clients_per_round=500")
    assert_refused(result, "cohort.clients_per_round = 500")
    assert "failed" not in result.output


def test_set_overrides_settings(config: Path, out: Path) -> None:
    result = raybcgd("train", config, "--out", out, "--set", "rounds=1", "--set", "algorithm.name=fedavgm")
    assert result.exit_code == 0, result.output
    assert "FedAvgM: round 1/1" in result.stdout


def test_a_resumed_run_has_the_weights_of_an_uninterrupted_run(config: Path, tmp_path: Path) -> None:
    assert raybcgd("train", config, "--out", tmp_path / "whole").exit_code == 0
    assert raybcgd("train", config, "--out", tmp_path / "cut", "--set", "rounds=2").exit_code == 0
    result = raybcgd("resume", tmp_path / "cut", "--set", "rounds=4")
    assert result.exit_code == 0, result.output
    assert "round 3/4" in result.stdout
    assert "round 2/4" not in result.stdout
    whole, cut = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "cut"))
    assert whole["sha256"] == cut["sha256"]


def test_resume_auto_starts_a_run_and_then_resumes_it(config: Path, out: Path) -> None:
    for rounds in (2, 4):
        result = raybcgd("train", config, "--out", out, "--resume", "auto", "--set", f"rounds={rounds}")
        assert result.exit_code == 0, result.output
    assert [record.round for record in RoundLog(out / "rounds.jsonl")] == [0, 1, 2, 3]
    assert "round 2/4" not in result.stdout


def test_a_refused_resume_leaves_the_run_unchanged(config: Path, out: Path) -> None:
    assert raybcgd("train", config, "--out", out).exit_code == 0
    before = (out / "config.toml").read_bytes()
    assert_refused(raybcgd("resume", out, "--set", "rounds=6", "--set", "algorithm.lr=0.01"), "algorithm.lr", "restore")
    assert (out / "config.toml").read_bytes() == before


def test_blocks_shows_the_blocks_of_a_config(config: Path) -> None:
    result = raybcgd("blocks", config)
    assert result.exit_code == 0, result.output
    assert "3 blocks" in result.stdout
    assert "shared" in result.stdout


def test_blocks_states_the_upload_of_the_method_and_its_codec(config: Path) -> None:
    d = 1754
    ours = " ".join(raybcgd("blocks", config).stdout.split())
    assert "A client uploads 2,792 bytes per round on average, 2.5 times less than the whole model." in ours, ours
    for method, says in {
        "fedavg": f"FedAvg does not use the blocks: a client uploads {4 * d:,} bytes per round, as many as the whole",
        "feddc": f"FedDC does not use the blocks: a client uploads {8 * d:,} bytes per round, 2.0 times the whole",
    }.items():
        shown = raybcgd("blocks", config, "--set", f"algorithm.name={method}").stdout
        assert says in " ".join(shown.split()), shown
    halved = raybcgd("blocks", config, "--set", "algorithm.name=fedavg", "--set", "wire.codec=bf16").stdout
    assert "2.0 times less than the whole model" in " ".join(halved.split()), halved


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ([], "mlp on 1x8x8, 10 classes: d ="),
        (["data.source=tests.wrong.code:vectors"], "mlp on 64 features, 10 classes: d ="),
        (
            ["data.source=tests.wrong.code:vectors", "data.task=regression", "model.loss=mse"],
            "mlp on 64 features, for regression: d =",
        ),
    ],
)
def test_blocks_names_the_inputs_and_the_task(settings: list[str], says: str, config: Path) -> None:
    shown = raybcgd("blocks", config, *(part for text in settings for part in ("--set", text)))
    assert says in " ".join(shown.stdout.split()), shown.output


def test_blocks_explains_why_d_is_more_than_the_parameters() -> None:
    given = ("blocks", "--model", "resnet8", "--shape", "1x8x8")
    shown = " ".join(raybcgd(*given, "--set", "model.options.norm=batch").stdout.split())
    assert (
        "d = 78,426 counts 77,754 parameters and 672 numbers in buffers, such as the statistics of batch norm." in shown
    )
    assert "buffers" not in raybcgd(*given).stdout


def test_blocks_shows_the_blocks_of_a_paper() -> None:
    result = raybcgd("blocks", "--model", "lenet5", "--classes", "10")
    assert result.exit_code == 0, result.output
    assert "4 blocks" in result.stdout
    assert "fc3" in result.stdout


def test_blocks_predicts_the_device_memory_of_a_config(config: Path) -> None:
    result = raybcgd("blocks", config, "--memory")
    assert result.exit_code == 0, result.output
    assert "Device memory per host" in result.stdout
    numbers = [
        float(line.split("│")[2].replace(",", "")) for line in result.stdout.split("per host")[1].splitlines()[4:9]
    ]
    assert numbers[-1] == pytest.approx(sum(numbers[:-1]), abs=0.3)
    assert_refused(raybcgd("blocks", "--model", "lenet5", "--memory"), "--memory", "config")


def test_inspect_describes_the_data_and_draws_the_labels(config: Path, tmp_path: Path) -> None:
    image = tmp_path / "labels.png"
    result = raybcgd("data", "inspect", config, "--image", image)
    assert result.exit_code == 0, result.output
    assert "1,442" in result.stdout
    assert image.read_bytes().startswith(b"\x89PNG")


def test_packed_images_can_be_trained_on(config: Path, tmp_path: Path, out: Path) -> None:
    for split, label, number in [(s, c, k) for s in ("train", "test") for c in ("cat", "dog") for k in range(12)]:
        path = tmp_path / "images" / split / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 9 * number, np.uint8)).save(path)
    packed = raybcgd("data", "pack", tmp_path / "images", tmp_path / "packed")
    assert packed.exit_code == 0, packed.output
    settings = ["data.source=parquet", f"data.root={tmp_path / 'packed'}", "rounds=1", "data.partition.clients=6"]
    result = raybcgd("train", config, "--out", out, *(part for text in settings for part in ("--set", text)))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("arguments", [("train",), ("train", "a.toml", "--nonsense"), ("nonsense",)])
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    assert raybcgd(*arguments).exit_code == 2


def assert_refused(result: Result, *parts: str) -> None:
    """Expect exit code 2 and a one-line error that contains all the parts."""
    lines = result.stderr.splitlines()
    assert result.exit_code == 2, result.output
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in result.output
    for part in parts:
        assert part in lines[0]


REFUSED = {
    "unknown key": (["algorithm.momentun=0.5"], ["algorithm.momentun", "did you mean momentum?"]),
    "unknown table": (["algorthm.lr=0.5"], ["algorthm", "did you mean algorithm?"]),
    "unknown algorithm": (["algorithm.name=fedbcg"], ["algorithm.name", "did you mean fedbcgd?"]),
    "unknown model": (["model.name=resnet1"], ["model.name", "resnet18"]),
    "unknown source": (["data.source=cifar"], ["data.source", "cifar10"]),
    "fewer clients than blocks": (["cohort.clients_per_round=2"], ["cohort.clients_per_round = 2", "at least 3"]),
    "K*N > M": (["cohort.clients_per_block=7"], ["cohort.clients_per_block = 7", "data.partition.clients", "lower"]),
    "negative rate": (["algorithm.lr=-0.1"], ["algorithm.lr = -0.1", "must be greater than 0"]),
    "M > samples": (["data.partition.clients=2000"], ["data.partition.clients = 2000", "lower it to 1442 or less"]),
    "no such folder": (
        ["data.source=parquet", "data.root=/no/such/folder"],
        ["data.root", "/no/such/folder", "point it to"],
    ),
    "no folder": (["data.source=cifar10"], ["data.root is not set", "set it to the folder"]),
    "more blocks than layers": (["blocks.count=9"], ["blocks.count = 9", "lower blocks.count to 3"]),
    "wrong division": (["blocks.division=vgg19"], ["blocks.division", "vgg19"]),
    "infinite rate": (["algorithm.lr=inf"], ["algorithm.lr = inf", "must be a finite number"]),
    "no such file system": (["checkpoint.address=foo://bar/x"], ["checkpoint.address", "foo", "correct it"]),
    "failing model": (
        ["model.options={}", "model.name=tests.test_cli:broken"],
        ["model.name", "ValueError: no such width", "fix it"],
    ),
    "too few outputs": (
        ["model.options={}", "model.name=tests.test_cli:narrow"],
        ["model.name", "returns 6 outputs", "10 classes"],
    ),
    "no GPU": (["hosts.device=gpu"], ["hosts.device", "engine", "cpu"]),
}


def broken() -> nn.Module:
    raise ValueError("no such width")


def narrow() -> nn.Module:
    return nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64) for _ in range(3)), nn.Linear(64, 6))


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_config_gives_a_one_line_error(case: str, config: Path, out: Path) -> None:
    settings, parts = REFUSED[case]
    result = raybcgd("train", config, "--out", out, *(part for text in settings for part in ("--set", text)))
    assert_refused(result, *parts)
    assert not out.exists()


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    assert_refused(raybcgd("train", tmp_path / "none.toml"), "none.toml", "No such file")


def test_train_refuses_a_folder_with_a_run(config: Path, out: Path) -> None:
    assert raybcgd("train", config, "--out", out, "--set", "rounds=1").exit_code == 0
    assert_refused(raybcgd("train", config, "--out", out), str(out), "--out", "raybcgd resume")


def test_resume_refuses_a_folder_without_a_run(tmp_path: Path) -> None:
    assert_refused(raybcgd("resume", tmp_path), str(tmp_path), "raybcgd train")


def test_a_finished_run_without_checkpoints_is_not_resumed(config: Path, out: Path) -> None:
    assert raybcgd("train", config, "--out", out, "--set", "checkpoint.every=0").exit_code == 0
    log = (out / "rounds.jsonl").read_bytes()
    assert_refused(
        raybcgd("resume", out, "--set", "rounds=6"), "no usable checkpoint", "another folder", "checkpoint.every"
    )
    assert (out / "rounds.jsonl").read_bytes() == log


def test_an_unfinished_run_without_checkpoints_starts_again_with_a_warning(
    config: Path, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert raybcgd("train", config, "--out", out).exit_code == 0
    expected = json.loads((out / "summary.json").read_text())["sha256"]
    (out / "summary.json").unlink()
    shutil.rmtree(out / "checkpoints")
    assert raybcgd("resume", out).exit_code == 0
    assert "the run starts again at round 1" in caplog.text
    assert json.loads((out / "summary.json").read_text())["sha256"] == expected


def test_resume_refuses_fewer_rounds_than_are_done(config: Path, out: Path) -> None:
    assert raybcgd("train", config, "--out", out).exit_code == 0
    assert_refused(raybcgd("resume", out, "--set", "rounds=3"), "rounds = 3, but 4 rounds are done", "raise rounds")
    assert "rounds = 4" in (out / "config.toml").read_text()


def test_a_resume_with_nothing_to_do_starts_no_engine(config: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert raybcgd("train", config, "--out", out).exit_code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr("raybcgd.experiment.engine_named", lambda name: pytest.fail("an engine was started"))
    assert_refused(raybcgd("resume", out, "--set", "rounds=3", "--set", "engine=ray"), "4 rounds are done")
    for settings in ((), ("--set", "rounds=9", "--set", "budget.target_accuracy=0.01")):
        result = raybcgd("resume", out, *settings)
        assert result.exit_code == 0, result.output
        assert "FedBCGD: already finished after 4 rounds\n" in result.output
        limit = "budget.target_accuracy above 0." if settings else "rounds above 4\n"
        assert f"finished after 4 rounds; to continue it, use --set to raise {limit}" in result.output
        assert ("budget.target_accuracy = 0.01, which is reached" in result.output) == bool(settings)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_other_users_can_read_the_files_of_a_run(config: Path, out: Path) -> None:
    assert raybcgd("train", config, "--out", out, "--set", "rounds=1").exit_code == 0
    assert all(path.stat().st_mode & stat.S_IROTH for path in out.iterdir())


def test_resume_auto_needs_a_folder(config: Path) -> None:
    assert_refused(raybcgd("train", config, "--resume", "auto"), "--resume auto", "--out")


@pytest.mark.parametrize("kind", ["run", "comparison", "sweep"])
def test_resume_auto_is_not_offered_for_a_folder_of_another_kind(kind: str, config: Path, out: Path) -> None:
    out.mkdir()
    (out / {"run": "config.toml", "comparison": "planned.json", "sweep": "sweep.json"}[kind]).write_text("")
    commands = {"run": "train", "comparison": "compare", "sweep": "sweep"}
    for wanted in (other for other in commands if other != kind):
        grid = ("--grid", "algorithm.lr=0.1") if wanted == "sweep" else ()
        for resume in ((), ("--resume", "auto")):
            result = raybcgd(commands[wanted], config, *grid, "--out", out, *resume)
            assert_refused(result, f"{out} holds a {kind}, not a {wanted}; choose another --out")
            assert "--resume" not in result.stderr


def test_blocks_needs_a_config_or_a_model(config: Path) -> None:
    assert_refused(raybcgd("blocks"), "--model")
    assert_refused(raybcgd("blocks", config, "--model", "mlp"), "--model")
    assert_refused(raybcgd("blocks", "--model", "mlp", "--shape", "8by8"), "--shape", "3x32x32")


def parquet(folder: Path, labels: list[int], sizes: list[int]) -> None:
    """Write the same images as training and test files."""
    folder.mkdir()
    images = []
    for size in sizes:
        buffer = io.BytesIO()
        Image.fromarray(np.zeros((size, size), np.uint8)).save(buffer, "PNG")
        images.append({"bytes": buffer.getvalue(), "path": None})
    for split in ("train", "test"):
        pq.write_table(pa.table({"image": images, "label": labels}), folder / f"{split}-00000-of-00001.parquet")


def train_on(folder: Path, config: Path, *settings: str) -> Result:
    given = ["data.source=parquet", f"data.root={folder}", *settings]
    return raybcgd("train", config, "--out", folder / "run", *(part for text in given for part in ("--set", text)))


def test_labels_out_of_range_are_refused(config: Path, tmp_path: Path) -> None:
    parquet(tmp_path / "d", [0, 1, 12, 2] * 10, [8] * 40)
    assert_refused(
        train_on(tmp_path / "d", config, "data.classes=10"), "labels", "outside 0 .. 9", "data.classes to 13"
    )


def test_negative_labels_are_refused(config: Path, tmp_path: Path) -> None:
    parquet(tmp_path / "d", [0, 1, -1, 2] * 10, [8] * 40)
    assert_refused(train_on(tmp_path / "d", config), "labels run from -1", "number them from 0")


def test_a_truncated_parquet_file_is_named(config: Path, tmp_path: Path) -> None:
    parquet(tmp_path / "d", [0, 1] * 20, [8] * 40)
    file = tmp_path / "d" / "train-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-50])
    assert_refused(train_on(tmp_path / "d", config), "data.root", file.name, "fetch it again")


def test_an_image_of_another_size_is_refused(config: Path, tmp_path: Path) -> None:
    parquet(tmp_path / "d", [0, 1] * 20, [8] * 39 + [9])
    assert_refused(train_on(tmp_path / "d", config), "(9, 9)", "(8, 8)", "data.image_size")


def test_a_diverging_run_exits_with_1(config: Path, out: Path) -> None:
    result = raybcgd("train", config, "--out", out, "--set", "algorithm.lr=1e30")
    assert result.exit_code == 1, result.output
    assert len(result.stderr.splitlines()) == 1
    assert "diverged" in result.stderr
    assert "Traceback" not in result.output


def test_the_help_of_resume_names_what_may_change() -> None:
    help_text = " ".join(raybcgd("resume", "--help").output.split())
    assert "algorithm.lr" not in help_text
    for name in set(FREE) - {"version", "compare", "objects"}:
        assert name in help_text
