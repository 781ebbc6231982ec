"""The table and the heat map of a partition."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raybcgd.data.inspect import describe, describe_partition, distance_from_iid, draw_heat_map, label_counts
from raybcgd.data.partition import Partition, PartitionConfig, partition
from raybcgd.data.sources import DataConfig, load
from raybcgd.errors import ConfigError


def test_the_lines_say_what_is_there() -> None:
    digits = load(DataConfig())
    lines = dict(describe(digits))
    assert lines["train samples"] == "1,442"
    assert lines["sample"] == "1 x 8 x 8 uint8"
    parts = partition(digits.train.targets, 10, PartitionConfig(clients=20, rho=0.3), 0)
    lines = dict(describe_partition(digits.train.targets, 10, parts))
    assert lines["samples a client"] == "72 each"
    assert lines["samples dealt"] == "1,440 of 1,442"


def test_counts_and_distance_by_hand() -> None:
    targets = np.array([0, 0, 1, 1])
    apart = Partition(np.array([0, 1, 2, 3]), np.array([0, 2, 4]))
    mixed = Partition(np.array([0, 2, 1, 3]), np.array([0, 2, 4]))
    assert label_counts(targets, 2, apart).tolist() == [[2, 0], [0, 2]]
    assert distance_from_iid(label_counts(targets, 2, apart)) == 1
    assert distance_from_iid(label_counts(targets, 2, mixed)) == 0
    assert distance_from_iid(np.array([[3], [5]])) == 0, "one label: nothing to differ in"


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (40, 10), (1000, 200)])
def test_the_heat_map_is_a_picture(clients: int, classes: int, tmp_path: Path) -> None:
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes))
    path = tmp_path / "new" / "map.png"
    draw_heat_map(counts, path, "digits")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert len(image.convert("RGB").getcolors(10**6) or []) > 20


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install raybcgd\[plots\]"):
        draw_heat_map(np.ones((2, 2), dtype=np.int64), tmp_path / "map.png")


def test_an_unwritable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*map\.png"):
        draw_heat_map(np.ones((2, 2), dtype=np.int64), tmp_path / "file" / "map.png")
