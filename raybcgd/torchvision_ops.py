"""The one way into torchvision, which also works when its build does not match torch's.

Then (torchvision for CUDA beside torch for the CPU, say) its compiled operators do not load, and importing it fails
because it describes two of them that do not exist. Declaring their schemas is enough: data sets, models and transforms
do not call them.
"""

import importlib
import sys
from types import ModuleType

import torch

SCHEMAS = {name: f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")}

_declared: list[torch.library.Library] = []  # a Library takes its schemas with it when it is collected


def import_torchvision(submodule: str = "") -> ModuleType:
    """`torchvision`, or `torchvision.<submodule>`. With matched builds a plain import."""
    name = f"torchvision.{submodule}" if submodule else "torchvision"
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    # Not before the first attempt: in a matched build torchvision's own library defines them.
    _declare_missing()
    for half_imported in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        del sys.modules[half_imported]
    return importlib.import_module(name)


def _declare_missing() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
