"""Import torchvision even if its build does not match torch's.

If the builds differ, such as torchvision for CUDA and torch for CPU, torchvision's compiled operators do not load. The
import then fails, because it registers fake kernels for two of them. Declaring their schemas fixes the import. Data
sets, models and transforms do not call these operators.
"""

import importlib
import sys
from types import ModuleType

import torch

SCHEMAS = {name: f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")}

_declared: list[torch.library.Library] = []  # a garbage-collected Library would remove its schemas


def import_torchvision(submodule: str) -> ModuleType:
    """Return `torchvision.<submodule>`."""
    name = f"torchvision.{submodule}"
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    # Only after a failed import: a matching build defines these operators itself.
    _declare_missing()
    for partial_import in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        del sys.modules[partial_import]
    return importlib.import_module(name)


def _declare_missing() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
