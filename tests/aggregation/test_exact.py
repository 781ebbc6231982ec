"""Exact sums, compared with rational arithmetic: any order and any grouping gives the same bits."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raybcgd.aggregation.exact import ExactSum, Levels, merge_levels

GRID = {torch.float32: -40, torch.float64: -90}

magnitudes = st.integers(-30, 30).map(lambda exponent: 10.0**exponent)
numbers = st.builds(
    lambda sign, digits, scale: sign * digits * scale, st.sampled_from([-1, 1]), st.floats(1, 10), magnitudes
)
dtypes = st.sampled_from([torch.float32, torch.float64])


def rounded(value: float, dtype: torch.dtype) -> Fraction:
    """Return the multiple of the grid that is nearest to a value; ties go to the even multiple."""
    grid = Fraction(2) ** GRID[dtype]
    return round(Fraction(float(torch.tensor(value, dtype=dtype))) / grid) * grid


def bits(total: Levels) -> dict[int, bytes]:
    return {level: part.tobytes() for level, part in total.items() if part.any()}


def exact_sum(values: list[float], addends: int, dtype: torch.dtype) -> ExactSum:
    result = ExactSum(1, addends, dtype)
    for value in values:
        result.add(torch.tensor([[value]], dtype=dtype))
    return result


@given(st.lists(numbers | st.just(0.0), min_size=1, max_size=40), dtypes)
def test_the_levels_add_up_to_the_sum_of_the_rounded_addends(values: list[float], dtype: torch.dtype) -> None:
    levels = exact_sum(values, len(values), dtype).levels()
    found = sum(Fraction(float(part[0])) for part in levels.values())
    assert found == sum(rounded(value, dtype) for value in values)


@given(st.lists(numbers, min_size=1, max_size=20), dtypes)
def test_the_total_is_as_exact_as_float64(values: list[float], dtype: torch.dtype) -> None:
    total = float(exact_sum(values, len(values), dtype).total()[0])
    expected = sum(rounded(value, dtype) for value in values)
    largest = max(abs(rounded(value, dtype)) for value in values)
    assert abs(Fraction(total) - expected) <= largest * Fraction(2) ** -50


@given(st.lists(numbers, min_size=2, max_size=30), dtypes, st.randoms(use_true_random=False))
def test_order_and_grouping_do_not_matter(values: list[float], dtype: torch.dtype, random: object) -> None:
    addends = len(values) + 3
    reference = exact_sum(values, addends, dtype)
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    cut = random.randrange(len(values) + 1)  # type: ignore[attr-defined]
    first, second = exact_sum(shuffled[:cut], addends, dtype), exact_sum(shuffled[cut:], addends, dtype)
    combined = merge_levels([second.levels(), first.levels()])
    first.merge(second.levels())
    together = ExactSum(1, addends, dtype)
    together.add(torch.tensor(shuffled, dtype=dtype)[:, None])
    for other in (first.levels(), combined, together.levels()):
        assert bits(other) == bits(reference.levels())
    assert first.total().numpy().tobytes() == reference.total().numpy().tobytes()


@given(st.lists(st.tuples(numbers, st.floats(0, 1)), min_size=1, max_size=20))
def test_weights_are_applied_in_float64(pairs: list[tuple[float, float]]) -> None:
    values, weights = torch.tensor([p[0] for p in pairs]), torch.tensor([p[1] for p in pairs], dtype=torch.float64)
    result = ExactSum(1, len(pairs), torch.float32)
    result.add(values[:, None], weights)
    found = sum(Fraction(float(part[0])) for part in result.levels().values())
    products = (values.double() * weights).tolist()
    assert found == sum(round(Fraction(p) * 2**40) / Fraction(2**40) for p in products)


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_that_are_not_finite_make_only_their_coordinate_nan(wrong: float, dtype: torch.dtype) -> None:
    result = ExactSum(3, 4, dtype)
    result.add(torch.tensor([[1.0, wrong, 1e20], [0.5, 2.0, 3.0]], dtype=dtype))
    total = result.total()
    assert total[0] == 1.5
    assert total[1].isnan()
    assert total[2] == float(torch.tensor(1e20, dtype=dtype)) + 3.0


def test_a_million_addends_of_the_largest_magnitude_of_a_level_stay_exact() -> None:
    count = 1_000_000
    width = 53 - math.ceil(math.log2(count))
    largest = 2.0 ** (width - 1 - 40)
    result = ExactSum(1, count, torch.float32)
    result.add(torch.full((count, 1), largest))
    assert Fraction(float(result.total()[0])) == Fraction(largest) * count


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_long_vectors_are_added_chunk_by_chunk(rows: int) -> None:
    values = torch.randn(rows, 200_001, generator=torch.Generator().manual_seed(rows))
    result = ExactSum(values.shape[1], rows, torch.float32)
    result.add(values)
    scaled = np.round(values.double().numpy() * 2.0**40)  # integers, which add exactly
    assert np.array_equal(result.total().numpy(), scaled.sum(0) / 2.0**40)


def test_merging_does_not_change_the_merged_arrays() -> None:
    part = ExactSum(2, 3, torch.float32)
    part.add(torch.ones(1, 2))
    levels = {level: array.copy() for level, array in part.levels().items()}
    for array in levels.values():
        array.flags.writeable = False  # as in shared memory
    total = ExactSum(2, 3, torch.float32)
    total.merge(levels)
    total.merge(levels)
    total.add(torch.ones(1, 2))
    assert total.total().tolist() == [3.0, 3.0]
    other = ExactSum(2, 3, torch.float32)
    other.merge(levels)
    other.add(torch.ones(1, 2))
    assert other.total().tolist() == [2.0, 2.0]
    assert levels[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adding_does_not_change_the_addends(dtype: torch.dtype) -> None:
    values = torch.tensor([[1e-30, 0.1, 1e10]], dtype=dtype)
    before = values.clone()
    ExactSum(3, 1, dtype).add(values, torch.tensor([0.5], dtype=torch.float64))
    assert torch.equal(values, before)


@given(st.lists(numbers, min_size=1, max_size=10), dtypes, st.floats(1, 1e6))
def test_a_bound_of_the_largest_value_gives_the_same_bits(
    values: list[float], dtype: torch.dtype, factor: float
) -> None:
    rows = torch.tensor(values, dtype=dtype)[:, None]
    expected, bounded = ExactSum(1, len(values), dtype), ExactSum(1, len(values), dtype)
    expected.add(rows)
    bounded.add(rows, largest=factor * float(rows.abs().max()))
    assert bits(bounded.levels()) == bits(expected.levels())


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_long_rows_that_are_added_in_pairs_give_the_same_bits(count: int) -> None:
    size = (1 << 20) + 77
    rows = torch.randn(count, size, generator=torch.Generator().manual_seed(count))
    rows[:, :50] *= torch.logspace(-14, 0, 50)
    rows[:, 50:60] = (torch.arange(10) + 0.5) * 2.0**-40  # halfway between two multiples of the grid
    expected, paired = ExactSum(size, count, torch.float32), ExactSum(size, count, torch.float32)
    for row in rows:
        expected.add(row[None])  # without a bound, rows are added one by one
        paired.add(row[None], largest=float(rows.abs().max()))
    assert torch.equal(paired.total(), expected.total())
    assert bits(paired.levels()) == bits(expected.levels())
