"""Modules that users pass from Python."""

import copy
from itertools import chain

from torch import nn

from raybcgd.errors import ConfigError


def own_module(module: object) -> nn.Module | None:
    """Return a module that a user passed, or a CPU copy if it is on an accelerator, which not every process has."""
    if isinstance(module, type):
        raise ConfigError(f"module is the class {module.__name__}; pass an instance, such as {module.__name__}()")
    if module is None:
        return None
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"module is {type(module).__name__}; pass a torch.nn.Module, or a function that returns one as model.name"
        )
    on_cpu = all(tensor.device.type == "cpu" for tensor in chain(module.parameters(), module.buffers()))
    return module if on_cpu else copy.deepcopy(module).cpu()
