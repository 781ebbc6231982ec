"""Imports: package attributes that are imported on first use, fast imports, and the folders of a user's own modules."""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

IMPORT_PATH = "RAYBCGD_IMPORT_PATH"
"""Environment variable: folders that the workers of our own Ray search for modules, after all others."""

searched: list[str] = []
"""Folders that contain configs. A config may name modules in its own folder."""


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Pause garbage collection during imports, and exempt what they create from later collections.

    Otherwise, collections take a quarter of the time to import torch, and find nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def extend_path() -> None:
    """Append the folders in the environment to the import path."""
    sys.path.extend(path for path in os.environ.get(IMPORT_PATH, "").split(os.pathsep) if path and path not in sys.path)


def search(folder: str) -> None:
    """Search a folder last for modules, here and in our workers, so that its files cannot shadow libraries."""
    if folder not in sys.path:
        sys.path.append(folder)
        searched.append(folder)


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
