"""Package attributes that are imported on first use, so that importing a package stays cheap."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy(package: str, homes: Mapping[str, Iterable[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package. `homes` maps modules to the names that they define."""
    home = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name in home:
            return getattr(importlib.import_module(home[name]), name)
        if name.startswith("__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    return find, lambda: sorted(home)
