"""Stored runs can be reproduced bit for bit from their entries in results/*.json alone."""

import os
from pathlib import Path

import pytest
import torch

from raybcgd import run
from raybcgd.config import make_config
from raybcgd.config.files import assign
from raybcgd.record.summary import versions
from results.runner import FOLDERS, dataset_of
from results.store import Entry, Store

STUDIES = ("demo", "fashion-mnist-rho0.6", "figure8a", "block-cyclic")
_BITS = ("torch", "numpy")
"""Packages whose version, with the kind of CPU, decides the last bits."""


def shortest(name: str) -> list[Entry]:
    """Return the run of each method that took the least time."""
    runs = sorted((one for one in Store(name).runs if "error" not in one), key=lambda one: -one["seconds"])
    return list({one["label"]: one for one in runs}.values())


RUNS = [pytest.param(name, one, id=f"{name}: {one['label']}") for name in STUDIES for one in shortest(name)]


def test_many_methods_are_repeated() -> None:
    labels = {one.values[1]["label"] for one in RUNS}
    assert {"FedAvg", "FedAvgM", "SCAFFOLD", "FedPVR", "TOP-k", "FedBCGD", "FedBCGD+", "QSGD+FedBCGD"} <= labels


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stored"), RUNS)
def test_a_stored_run_comes_out_again(name: str, stored: Entry, tmp_path: Path) -> None:
    here = versions() | {"cpu": torch.backends.cpu.get_cpu_capability()}
    if any(stored["versions"][part] != here[part] for part in (*_BITS, "cpu")):
        pytest.skip(f"the run was made with {stored['versions']}")
    config = make_config(assign(Store(name).config, {**stored["settings"], "seed": stored["seed"]}))
    folder = FOLDERS.get(str(config.data.source))
    if folder is not None and folder not in os.environ:
        pytest.skip(f"{folder} is not set to the folder of {config.data.source}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        again = run(config, dataset=dataset_of(config), out=tmp_path / "run", progress=False)
    finally:
        torch.set_num_threads(threads)
    assert again.summary["sha256"] == stored["sha256"]
    assert again.summary["upload_bytes"] == stored["upload_bytes"]
