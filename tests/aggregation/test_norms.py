"""Squared norms of displacements: the same bits however clients are grouped, and a bound of every value."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raybcgd.aggregation.reducer import _norm_bound, _squared_norms


@pytest.mark.parametrize("length", [1, 10, 4097, 8192, 8193, 20_000])
def test_the_norm_of_a_row_does_not_depend_on_the_other_rows(length: int) -> None:
    rows = torch.randn(40, length + 5, generator=torch.Generator().manual_seed(length))[:, 3 : 3 + length]
    together = _squared_norms(rows)
    torch.testing.assert_close(together, rows.double().square().sum(1), rtol=1e-5, atol=0.0)
    for start, stop in [(0, 1), (7, 9), (3, 40), (39, 40)]:
        assert torch.equal(_squared_norms(rows[start:stop]), together[start:stop])
    assert torch.equal(_squared_norms(rows[5:6].clone()), together[5:6])


@given(st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=50), st.sampled_from([1, 300]))
def test_no_value_exceeds_the_bound_that_follows_from_the_norm(values: list[float], repeats: int) -> None:
    rows = torch.tensor([values]).repeat(1, repeats)
    bound, largest = _norm_bound(_squared_norms(rows)[:, None]), float(rows.abs().max())
    assert bound >= largest or largest < 1e-18  # squares of smaller values are 0, and such values round to 0


@pytest.mark.parametrize("wrong", [math.inf, math.nan, 1e30])
def test_values_whose_square_is_not_finite_have_no_bound(wrong: float) -> None:
    bound = _norm_bound(_squared_norms(torch.tensor([[1.0, wrong], [1.0, 2.0]]))[:, None])
    assert not bound < math.inf
