"""The predicted device memory of a host, compared with a run on the stand-in."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from raybcgd.client.memory import predict
from raybcgd.experiment import run
from raybcgd.problem import prepare
from tests.device.conftest import on
from tests.device.test_bits import images

pytestmark = pytest.mark.device

TEN_CLIENTS: dict[str, Any] = {
    "rounds": 2,
    "blocks": {"count": 2},
    "data": {"partition": {"kind": "iid", "clients": 10}},
    "cohort": {"clients_per_block": None, "clients_per_round": 10},
}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbcgd+"])
@pytest.mark.parametrize(
    ("model", "options", "side", "stack"),
    [
        ("lenet5", {}, 32, 0),
        ("resnet8", {"width": 8, "norm": "batch"}, 16, 0),
        ("mlp", {"hidden": [64, 64]}, 16, 10),
    ],
)
def test_the_prediction_is_within_20_percent(
    out: Path, name: str, model: str, options: dict[str, Any], side: int, stack: int
) -> None:
    tables = {"model": {"name": model, "options": options}, "local": {"stack": stack, "epochs": 2}}
    config = on("gpu", algorithm={"name": name, "lr": 0.01}, **tables, **TEN_CLIENTS)
    predicted = predict(*prepare(config, dataset=images(side)))
    gc.collect()  # earlier runs leave cycles
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    used = run(config, dataset=images(side), out=out).records[-1].hosts.device_memory_bytes
    assert used is not None
    assert predicted.total == pytest.approx(used - before, rel=0.2), predicted
