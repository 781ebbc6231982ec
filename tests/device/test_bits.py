"""A run on the stand-in gives the same bits as on the CPU: the kernels are the same, so only our code could differ."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from standin import counting
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.data.dataset import Dataset
from raybcgd.experiment import run
from raybcgd.wire.settings import CODECS
from tests.device.conftest import on, outcome

pytestmark = pytest.mark.device

ONE_BY_ONE: dict[str, Any] = {"local": {"stack": 0}}
STACKED: dict[str, Any] = {"local": {"stack": 4}}
EIGHT_CLIENTS: dict[str, Any] = {
    "rounds": 2,
    "blocks": {"count": 2},
    "data": {"partition": {"kind": "iid", "clients": 8}},
}
PHASES = {"partition": {"clients": 12}, "phases": {"count": 2, "rounds_per_phase": 2}}


def images(side: int) -> Dataset:
    """Return random colour images."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, 256, (160, 3, side, side), dtype=np.uint8), rng.integers(0, 4, 160)
    return Dataset.from_tensors(inputs, targets, inputs[:40], targets[:40], classes=4)


def check(out: Path, dataset: Dataset | None = None, **tables: Any) -> None:
    """Run a config on the CPU and on the stand-in, and compare."""
    expected = outcome(run(on("cpu", **tables), out=out / "cpu", dataset=dataset))
    with counting() as copies:
        found = outcome(run(on("gpu", **tables), out=out / "gpu", dataset=dataset))
    assert copies.to_device.copies > 0, "the host did not use the device"
    assert found == expected


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("local", [ONE_BY_ONE, STACKED], ids=["one by one", "stacked"])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_methods(tmp_path: Path, name: str, local: dict[str, Any]) -> None:
    check(tmp_path, algorithm={"name": name, "lr": 0.05}, **local)


@pytest.mark.parametrize("local", [ONE_BY_ONE, STACKED], ids=["one by one", "stacked"])
@pytest.mark.parametrize("codec", list(CODECS))
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbcgd+"])
def test_codecs(tmp_path: Path, name: str, codec: str, local: dict[str, Any]) -> None:
    check(tmp_path, algorithm={"name": name, "lr": 0.05}, wire={"codec": codec}, **local)


@pytest.mark.parametrize("name", ["fedavg", "mm_psgd", "mc_psgd"])
def test_block_cyclic_data(tmp_path: Path, name: str) -> None:
    check(tmp_path, rounds=5, algorithm={"name": name, "lr": 0.05}, data=PHASES)


@pytest.mark.parametrize("redivide", ["drift", "movement", "shift"])
def test_new_divisions(tmp_path: Path, redivide: str) -> None:
    blocks = {"count": 3, "division": "equal", "shared": 20, "redivide_every": 1, "redivide": redivide}
    check(tmp_path, rounds=4, blocks=blocks)


@pytest.mark.parametrize("local", [ONE_BY_ONE, STACKED], ids=["one by one", "stacked"])
@pytest.mark.parametrize("name", ["fedavgm", "fedbcgd+"])
def test_float64(tmp_path: Path, name: str, local: dict[str, Any]) -> None:
    check(tmp_path, algorithm={"name": name, "lr": 0.05}, model={"dtype": "float64"}, **local)


@pytest.mark.parametrize(
    "tables",
    [
        {"local": {"anchor_memory_mb": 0, "stack": 0}},
        {"local": {"anchor_memory_mb": 0, "stack": 4}},
        {"local": {"batch_size": "full"}},
        {"local": {"steps": 3}},
        {"algorithm": {"name": "fedbcgd+", "lr": 0.05, "control_upload": "sent"}},
        {"cohort": {"weighting": "samples"}},
        {"hosts": {"state_memory_mb": 0}},
        {
            "data": {"task": "binary"},
            "model": {"name": "sigmoid_erm", "options": {}},
            "blocks": {"division": "equal", "shared": "none"},
        },
    ],
    ids=lambda tables: "-".join(f"{key}.{name}" for key, table in tables.items() for name in table),
)
def test_other_settings(tmp_path: Path, tables: dict[str, Any]) -> None:
    check(tmp_path, **tables)


@pytest.mark.parametrize("local", [{"stack": 0}, {"stack": 4}], ids=["one by one", "stacked"])
@pytest.mark.parametrize("name", ["fedavg", "fedbcgd+"])
def test_augmentation(tmp_path: Path, name: str, local: dict[str, Any]) -> None:
    data = {"augment": ["crop", "flip"], "partition": {"kind": "lognormal", "sigma": 0.3, "clients": 8}}
    local = {"epochs": 2, "batch_size": 8, **local}
    check(tmp_path, images(8), data=data, algorithm={"name": name, "lr": 0.05}, local=local)


@pytest.mark.parametrize("name", ["fedavg", "fedbcgd+"])
@pytest.mark.parametrize(
    ("model", "options", "side"),
    [
        ("cnn", {}, 32),
        ("resnet8", {"width": 4, "norm": "batch"}, 8),
        ("resnet8", {"width": 4, "norm": "none"}, 8),
        ("vit_tiny", {"depth": 2, "width": 12, "heads": 2}, 8),
        ("vit_tiny", {"depth": 2, "width": 12, "heads": 2, "lora_rank": 2}, 8),
    ],
)
def test_models(tmp_path: Path, model: str, options: dict[str, Any], side: int, name: str) -> None:
    tables = {"model": {"name": model, "options": options}, "algorithm": {"name": name, "lr": 0.05}}
    # Torch has a fused attention for CPUs, and another for each accelerator. The plain one is the same on all.
    with sdpa_kernel(SDPBackend.MATH):
        check(tmp_path, images(side), **tables, **EIGHT_CLIENTS)


def test_group_norm_is_close(tmp_path: Path) -> None:
    """In channels_last, torch's group norm has a kernel of its own on CPUs, which sums in another order."""
    tables = {"model": {"name": "resnet8", "options": {"width": 4, "norm": "group"}}, **EIGHT_CLIENTS}
    cpu, gpu = (run(on(device, **tables), out=tmp_path / device, dataset=images(8)) for device in ("cpu", "gpu"))
    torch.testing.assert_close(gpu.model.state_dict(), cpu.model.state_dict(), rtol=1e-3, atol=1e-5)


def test_analysis_after_a_run_on_the_device(tmp_path: Path) -> None:
    check(tmp_path, rounds=2, analysis={})


def test_a_module_that_is_on_the_device(tmp_path: Path) -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    tables: dict[str, Any] = {"rounds": 2, "blocks": {"count": 1}}
    expected = outcome(run(on("cpu", **tables), module=net(), out=tmp_path / "cpu"))
    assert outcome(run(on("gpu", **tables), module=net().to("standin"), out=tmp_path / "gpu")) == expected
