"""Find the logits in a model's outputs, and count its correct predictions."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def logits_of(outputs: Any) -> Tensor:
    """Return the logits: the tensor itself, `outputs.logits`, `outputs["logits"]`, or the first entry of a tuple."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("logits")
    else:
        found = getattr(outputs, "logits", None)
        if found is None and isinstance(outputs, tuple) and outputs:
            found = outputs[0]
    if not isinstance(found, Tensor):
        keys = f" with {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
        raise TypeError(
            f"it returns {type(outputs).__name__}{keys}; return a tensor of logits, a tuple that starts with it, "
            "or an object or dict with `logits`"
        )
    return found


def judge(outputs: Tensor, targets: Tensor) -> tuple[int, float]:
    """Return the number of correct predictions (0 for float targets) and the sum of squared errors (NaN for labels).

    Outputs with NaN are wrong. The error is also NaN if the model does not return one number per sample.
    """
    if targets.is_floating_point():
        fits = outputs.numel() == targets.numel()
        return 0, float((outputs.reshape(targets.shape) - targets).double().square().sum()) if fits else math.nan
    single = outputs.dim() == 1 or outputs.shape[-1] == 1
    guess = (outputs.reshape(-1) > 0).long() if single else outputs.argmax(-1)
    known = ~(outputs.reshape(-1).isnan() if single else outputs.isnan().any(-1))
    return int(((guess == targets) & known).sum()), math.nan
