"""Correct predictions."""

import torch

from raybcgd.model.outputs import judge

NAN = float("nan")


def test_outputs_that_are_nan_are_wrong() -> None:
    """The largest of NaNs would be class 0, and no NaN is above 0."""
    outputs = torch.tensor([[NAN, NAN], [2.0, 1.0], [NAN, 1.0], [-torch.inf, 1.0]])
    assert judge(outputs, torch.tensor([0, 0, 0, 1]))[0] == 2
    assert judge(torch.tensor([NAN, -1.0, 1.0]), torch.tensor([0, 0, 1]))[0] == 2
