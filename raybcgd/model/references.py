"""Objects that a config names as "package.module:callable"."""

import importlib
from collections.abc import Callable
from typing import Any, cast

from raybcgd.errors import ConfigError


def is_reference(text: str) -> bool:
    """Whether a name has the form "package.module:callable"."""
    return ":" in text


def imported(reference: str, setting: str) -> Callable[..., Any]:
    """The callable that "package.module:callable" names; `setting` is the setting to name in an error."""
    path, _, name = reference.partition(":")
    if not path or not name:
        raise ConfigError(f'{setting} = "{reference}" is incomplete; write it as "package.module:callable"')
    try:
        found: Any = importlib.import_module(path)
    # Whatever a user's module raises while it is imported is the user's to mend, and belongs in one line.
    except Exception as error:
        raise ConfigError(
            f'{setting} = "{reference}": importing {path} failed ({type(error).__name__}: {error}); '
            "mend it, install it, or add its folder to PYTHONPATH"
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(f'{setting} = "{reference}": {path} has no callable {name}; check the name after the colon')
    return cast(Callable[..., Any], found)
