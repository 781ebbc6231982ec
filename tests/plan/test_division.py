"""Re-division of the parameters: blocks change, but the state of each coordinate does not."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from raybcgd import ConfigError, run
from raybcgd.model.blocks import divide, recut
from raybcgd.model.settings import BlocksConfig
from raybcgd.plan.history import History
from raybcgd.problem import prepare
from raybcgd.randomness import stream
from tests.conftest import small


def edges_of(config: BlocksConfig, widths: list[int], weights: Any = None, seed: int = 0) -> tuple[int, ...]:
    module = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))
    return recut(divide(module, config), config, weights, stream(seed, "test"))


@pytest.mark.parametrize("division", ["balanced", "equal"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_balancing_sizes_reproduces_a_division_by_size(division: str, count: int) -> None:
    config = BlocksConfig(division=division, count=count, redivide_every=1, redivide="size")
    module = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise([7, 5, 11, 3, 13, 2])))
    layout = divide(module, config)
    assert recut(layout, config, None, stream(0)) == layout.edges
    assert layout.with_edges(layout.edges) is layout


@given(
    weights=st.lists(st.floats(0, 1e3), min_size=80, max_size=80),
    count=st.integers(1, 7),
)
def test_cuts_balance_the_weights_and_leave_no_block_empty(weights: list[float], count: int) -> None:
    config = BlocksConfig(division="equal", count=count, shared=7, redivide_every=1, redivide="drift")
    array = np.array(weights + [0.0] * 7)
    edges = edges_of(config, [9, 6, 3], array[:81])
    size = 81 - 7
    assert (edges[0], edges[-1], len(edges)) == (0, size, count + 1)
    assert all(a < b for a, b in pairwise(edges))
    sums = [array[a:b].sum() for a, b in pairwise(edges)]
    # A cut is next to the coordinate that crosses the limit; only the rule against empty blocks moves it further.
    if array[:size].min() > 0:
        assert max(sums) <= array[:size].sum() / count + 2 * array[:size].max() + 1e-9


def test_layers_are_not_split_and_balance_the_weights() -> None:
    config = BlocksConfig(division="balanced", count=2, redivide_every=1, redivide="drift")
    widths = [4, 4, 4, 4, 4, 4]
    ends = {0, *(20 * k for k in range(1, 6))}
    first, last = np.zeros(100), np.zeros(100)
    first[:20], first[20:] = 1.0, 0.001
    last[60:80], last[:60] = 1.0, 0.001
    assert edges_of(config, widths, first) == (0, 20, 80)
    assert edges_of(config, widths, last) == (0, 60, 80)
    assert set(edges_of(config, widths, np.random.default_rng(0).random(100))) <= ends
    assert (
        edges_of(config, widths, np.zeros(100))
        == divide(nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))), config).edges
    ), "without measurements, the edges stay the same"


@given(seed=st.integers(0, 100))
def test_shifted_cuts_are_equal_except_at_the_ends(seed: int) -> None:
    config = BlocksConfig(division="equal", count=4, shared="none", redivide_every=1, redivide="shift")
    edges = edges_of(config, [9, 9], seed=seed)
    sizes = np.diff(edges)
    assert sizes.sum() == 90
    assert sizes.min() >= 1
    assert set(sizes[1:-1]) <= {22, 23}


def blocks(**settings: Any) -> dict[str, Any]:
    return {"blocks": {"division": "balanced", "count": 3, "redivide_every": 2, **settings}}


@pytest.mark.parametrize(
    ("name", "division", "codec"),
    [
        ("fedbcgd", "balanced", {"codec": "raw"}),
        ("fedbcgd+", "equal", {"codec": "raw"}),
        ("fedbcgd+", "balanced", {"codec": "topk", "fraction": 0.3}),
    ],
)
def test_dividing_into_the_same_blocks_does_not_change_the_weights(
    tmp_path: Path, name: str, division: str, codec: dict[str, Any]
) -> None:
    algorithm = {"name": name, "lr": 0.05, "momentum": 0.5}
    never, often = (
        run(
            small(rounds=6, algorithm=algorithm, wire=codec, **blocks(division=division, **change)),
            out=tmp_path / str(k),
        )
        for k, change in enumerate(({"redivide_every": None}, {"redivide_every": 1, "redivide": "size"}))
    )
    assert often.records[-1].blocks.edges == prepare(small(**blocks(division=division)))[0].layout.edges
    assert never.records[-1].blocks.edges is None
    assert never.summary["sha256"] == often.summary["sha256"]
    assert [r.traffic.upload_bytes for r in never.records] == [r.traffic.upload_bytes for r in often.records]


@pytest.mark.parametrize(
    ("how", "codec"),
    [("drift", {"codec": "raw"}), ("movement", {"codec": "topk", "fraction": 0.3}), ("shift", {"codec": "qsgd"})],
)
def test_c_stays_the_mean_of_the_clients_after_divisions(tmp_path: Path, how: str, codec: dict[str, Any]) -> None:
    """Mapping c or c_i to the wrong coordinates would break c = mean(c_i)."""
    from raybcgd.problem import prepare
    from raybcgd.record.checkpoint import Checkpoints
    from raybcgd.record.states import SegmentFolder
    from raybcgd.server.loop import identity

    config = small(rounds=20, **blocks(division="equal", redivide=how), checkpoint={"every": 20}, wire=codec)
    config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"momentum": 0.0})})
    result = run(config, out=tmp_path / "run")
    edges = [record.blocks.edges for record in result.records]
    assert edges[:2] == [None, None]
    assert all(a == b for a, b in zip(edges[2::2], edges[3::2], strict=True)), "a division lasts two rounds"
    assert len(set(edges)) > 2
    problem, data = prepare(config)
    position = Checkpoints(str(tmp_path / "run"), 2, identity(problem, data), problem.state_layout).newest()
    assert position is not None
    states = SegmentFolder(str(tmp_path / "run" / "states"), problem.state_layout)
    rows = states.read([(client, position.ledger[client]) for client in position.ledger.clients])
    ci, c = problem.state_layout.views(rows)["algorithm.c"].astype(np.float64), position.server["c"]
    np.testing.assert_allclose(c, ci.sum(axis=0) / 20, rtol=0, atol=3e-6 * np.abs(ci).max())


@pytest.mark.parametrize("how", ["drift", "movement", "shift"])
def test_a_resumed_run_keeps_its_division(tmp_path: Path, how: str) -> None:
    tables = blocks(division="equal", redivide=how, redivide_every=3)
    whole = run(small(rounds=8, **tables), out=tmp_path / "whole")
    run(small(rounds=4, **tables), out=tmp_path / "parts")
    parts = run(small(rounds=8, **tables), out=tmp_path / "parts", resume=True)
    assert parts.summary["sha256"] == whole.summary["sha256"]
    assert [r.blocks.edges for r in parts.records] == [r.blocks.edges for r in whole.records]
    assert whole.records[-1].blocks.edges != whole.records[3].blocks.edges


def test_a_division_by_measured_drift_balances_the_drift(tmp_path: Path) -> None:
    tables = blocks(division="equal", redivide="drift", redivide_every=4, redivide_times=1, shared="none")
    result = run(small(rounds=12, **tables), out=tmp_path / "run")
    edges = [record.blocks.edges for record in result.records]
    assert edges[:4] == [None] * 4
    assert len(set(edges[4:])) == 1
    from safetensors.numpy import load_file

    saved = load_file(tmp_path / "run" / "checkpoints" / "round-000012" / "history.safetensors")
    problem, _ = prepare(small(**tables))

    def imbalance(block_edges: Any) -> float:
        sums = [saved["drifted"][a:b].sum() for a, b in pairwise(block_edges)]
        return float(max(sums) / min(sums))

    assert imbalance(edges[-1]) < 0.5 * imbalance(problem.layout.edges)
    assert imbalance(edges[-1]) < 1.5


def test_uploads_are_the_blocks_of_the_round(tmp_path: Path) -> None:
    result = run(small(rounds=6, **blocks(redivide="drift", division="equal")), out=tmp_path / "run")
    problem, _ = prepare(small(**blocks(division="equal")))
    for record in result.records:
        edges = record.blocks.edges or problem.layout.edges
        sizes = np.diff(edges)
        expected = sum(int(sizes[p.block or 0]) + problem.layout.shared.size for p in record.participants)
        assert record.traffic.upload_floats == expected
        assert record.blocks.upload_floats[:-1] == tuple(2 * sizes)


def test_impossible_divisions_are_refused_before_the_first_round() -> None:
    with pytest.raises(ConfigError, match=r'redivide = "shift" needs blocks\.division = "equal"'):
        prepare(small(**blocks(redivide="shift")))
    with pytest.raises(ConfigError, match=r"blocks\.redivide_every"):
        prepare(small(**blocks(division="equal", shared="all")))


def test_only_required_values_are_measured() -> None:
    problem, _ = prepare(small())
    assert History.fresh(problem.layout, problem.config.blocks, by_need=False) == History()
    assert History().arrays() == {}
    measured = History.fresh(problem.layout, BlocksConfig(redivide_every=2), by_need=True)
    assert measured.moved is not None
    assert measured.drifted is not None
