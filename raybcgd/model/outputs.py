"""What a model returns: logits, alone or beside other things."""

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
