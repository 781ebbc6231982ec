"""Squared norms of displacements: the same bits however clients are grouped."""

import pytest
import torch

from raybcgd.aggregation.reducer import _squared_norms


@pytest.mark.parametrize("length", [1, 10, 4097, 8192, 8193, 20_000])
def test_the_norm_of_a_row_does_not_depend_on_the_other_rows(length: int) -> None:
    rows = torch.randn(40, length + 5, generator=torch.Generator().manual_seed(length))[:, 3 : 3 + length]
    together = _squared_norms(rows)
    torch.testing.assert_close(together, rows.double().square().sum(1), rtol=1e-5, atol=0.0)
    for start, stop in [(0, 1), (7, 9), (3, 40), (39, 40)]:
        assert torch.equal(_squared_norms(rows[start:stop]), together[start:stop])
    assert torch.equal(_squared_norms(rows[5:6].clone()), together[5:6])
