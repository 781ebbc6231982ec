"""Extension points: settings that take a built-in name, "package.module:Name", or a Python object.

A built-in name is short for such a reference. It is imported on first use, so `import raybcgd.config` stays light.
"""

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from raybcgd.errors import ConfigError, RunError, named_line
from raybcgd.section import Section


class Registry:
    """The choices for one setting."""

    def __init__(self, setting: str, builtin: Mapping[str, str], base: str | None = None) -> None:
        self.setting = setting
        self.table, _, self.key = setting.rpartition(".")
        self._builtin = dict(builtin)
        self._base = base
        """A reference to the class that every choice must inherit from. None: any callable."""

    def __contains__(self, choice: object) -> bool:
        return isinstance(choice, str) and choice in self._builtin

    def __iter__(self) -> Iterator[str]:
        return iter(self._builtin)

    def is_foreign(self, choice: object) -> bool:
        """Return whether a choice in a config file is a reference to code, and not a built-in name."""
        return isinstance(choice, str) and ":" in choice and choice not in self._builtin

    @property
    def takes_classes(self) -> bool:
        """Whether every choice must be a class of a known kind."""
        return self._base is not None

    def homes(self) -> dict[str, list[str]]:
        """Return the names of the built-in objects by module, for `lazy`."""
        homes: dict[str, list[str]] = {}
        for reference in self._builtin.values():
            module, _, name = reference.partition(":")
            homes.setdefault(module, []).append(name)
        return homes

    def resolve(self, choice: Any) -> Any:
        """Return the object that a config names. A Python object is returned as it is."""
        if not isinstance(choice, str):
            return self._checked(choice, repr(choice))
        if choice in self._builtin:
            return _imported(self._builtin[choice])
        module, colon, name = choice.partition(":")
        if not (module and colon and name):
            known = f'use one of {", ".join(self)}, or "package.module:Name"'
            raise ConfigError(f'{self.setting} = "{choice}" is unknown; {did_you_mean(choice, self) or known}')
        try:
            found = _imported(choice)
        # Importing a user's module may raise anything.
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f'{self.setting} = "{choice}" cannot be imported ({named_line(error)}); '
                "fix it, install it, or add its folder to PYTHONPATH"
            ) from error
        return self._checked(found, f'"{choice}"')

    def _checked(self, found: Any, choice: str) -> Any:
        if self._base is None:
            if not callable(found):
                raise ConfigError(f"{self.setting} = {choice} is not callable; name a function or a class")
            return found
        base = _imported(self._base)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ConfigError(f"{self.setting} = {choice} is not a subclass of {base.__name__}; use one that is")
        return found

    def name_of(self, found: Any) -> str:
        """Return the name of a choice in a config file."""
        if isinstance(found, str):
            return found
        if not hasattr(found, "__qualname__"):  # an instance has no name, so show its class as a call
            return f"{type(found).__module__}:{type(found).__qualname__}()"
        reference = f"{found.__module__}:{found.__qualname__}"
        return next((name for name, target in self._builtin.items() if target == reference), reference)

    @contextmanager
    def running(self, choice: Any) -> Iterator[None]:
        """Convert exceptions of custom code to a ConfigError that names the setting. Built-in code is not guarded."""
        try:
            yield
        except (ConfigError, RunError):
            raise
        except Exception as error:
            name = self.name_of(choice)
            if name in self._builtin:
                raise
            raise ConfigError(
                f'{self.setting} = "{name}" failed ({named_line(error)}); fix it, or its settings'
            ) from error

    def section(self, table: Any, default: str) -> Any:
        """Validate a table with the class that it names. An instance of such a class is returned as it is."""
        if not isinstance(table, Mapping):
            base = _imported(str(self._base))
            if not isinstance(table, base):
                raise ConfigError(
                    f"{self.table} = {table!r} is not a table; write [{self.table}], or pass an instance of "
                    f"{base.__name__}"
                )
            return table
        settings = dict(table)
        kind = self.resolve(settings.pop(self.key, default))
        try:
            return kind.model_validate(settings)
        except ValidationError as error:
            raise InvalidSection(kind, self.name_of(kind), error) from None

    def dump(self, section: Section) -> dict[str, Any]:
        """Return a table that `section` reads back to the same object."""
        return {self.key: self.name_of(type(section)), **section.model_dump(exclude_none=True)}

    def keep_valid(self, table: Mapping[str, Any], choice: Any) -> dict[str, Any]:
        """Return those settings of a table that another choice also has."""
        known = self.resolve(choice).model_fields
        return {name: value for name, value in table.items() if name in known}

    def without_defaults(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return those settings of a table that are not the defaults of its choice."""
        fields = {} if self.key not in table else self.resolve(table[self.key]).model_fields
        defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
        found = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
        return {name: value for name, value in table.items() if name not in found or value != found[name]}


class InvalidSection(ValueError):
    """A table with settings that its class rejects."""

    def __init__(self, section: type[Section], name: str, error: ValidationError) -> None:
        super().__init__(str(error))
        self.section, self.name, self.error = section, name, error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion for a misspelled name, or an empty string."""
    close = difflib.get_close_matches(str(name).lower(), list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


def _imported(reference: str) -> Any:
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
