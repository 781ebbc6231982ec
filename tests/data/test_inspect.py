"""Descriptions of a data set and its partition."""

import numpy as np
import pytest

from raybcgd.data.dataset import Dataset
from raybcgd.data.inspect import describe, describe_partition, distance_from_iid, label_counts, shown_clients
from raybcgd.data.partition import Dirichlet, Partition, partition
from raybcgd.data.settings import DataConfig
from raybcgd.data.sources import load


def test_the_lines_describe_digits_and_their_partition() -> None:
    digits = load(DataConfig())
    lines = dict(describe(digits))
    assert lines["training samples"] == "1,442"
    assert lines["sample"] == "1 x 8 x 8 uint8"
    parts = partition(digits.train.targets, 10, Dirichlet(clients=20, rho=0.3), 0)
    lines = dict(describe_partition(digits, parts))
    assert lines["samples per client"] == "72 each"
    assert lines["samples assigned"] == "1,440 of 1,442"


def test_counts_and_distance_by_hand() -> None:
    targets = np.array([0, 0, 1, 1])
    apart = Partition(np.array([0, 1, 2, 3]), np.array([0, 2, 4]))
    mixed = Partition(np.array([0, 2, 1, 3]), np.array([0, 2, 4]))
    assert label_counts(targets, 2, apart).tolist() == [[2, 0], [0, 2]]
    assert distance_from_iid(label_counts(targets, 2, apart)) == 1
    assert distance_from_iid(label_counts(targets, 2, mixed)) == 0
    assert distance_from_iid(np.array([[3], [5]])) == 0, "a single label cannot differ"


@pytest.mark.parametrize("floats", [False, True])
def test_the_legend_of_the_distance_from_iid_holds_for_unequal_classes(floats: bool) -> None:
    x, y = np.zeros((200, 1), np.float32), np.repeat([0, 1], [180, 20]).astype(np.float32 if floats else np.int64)
    data = Dataset.from_tensors(x, y, x, y)
    alone = Partition(np.arange(200), np.arange(0, 201, 20))  # one label per client
    what = "decile of targets" if floats else "label"
    shown = dict(describe_partition(data, alone))["distance from iid"]
    assert shown == f"0.20 (0: iid, 1: clients with only the rarest {what})"


def test_figures_show_at_most_200_evenly_spaced_clients() -> None:
    assert shown_clients(3).tolist() == [0, 1, 2]
    shown = shown_clients(1000)
    assert (len(shown), shown[0], shown[-1]) == (200, 0, 999)
    assert set(np.diff(shown)) == {5, 6}
