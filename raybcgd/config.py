"""The whole experiment as one frozen object, read from TOML. Each table's class lives with the code that it steers."""

import importlib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, SerializeAsAny, ValidationError, field_serializer, field_validator

from raybcgd.algorithms import METHODS, Algorithm, FedBCGDPlus
from raybcgd.client.batches import LocalConfig
from raybcgd.data.sources import DataConfig
from raybcgd.errors import ConfigError
from raybcgd.model.blocks import BlocksConfig
from raybcgd.model.zoo import ModelConfig
from raybcgd.plan.cohort import CohortConfig
from raybcgd.record.checkpoint import CheckpointConfig
from raybcgd.section import Section
from raybcgd.server.evaluate import EvaluationConfig
from raybcgd.server.placement import HostsConfig
from raybcgd.wire.codecs import Raw


class Config(Section):
    """An experiment."""

    seed: int = 0
    """Every random choice is a function of this and of what it is for."""
    rounds: Annotated[int, Field(ge=1)] = 60
    engine: Literal["ray", "local"] = "ray"
    """Client hosts as Ray actors, or everything in this process; the bits are the same."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    blocks: BlocksConfig = BlocksConfig()
    algorithm: SerializeAsAny[Algorithm] = FedBCGDPlus()
    local: LocalConfig = LocalConfig()
    cohort: CohortConfig = CohortConfig()
    wire: Raw = Raw()
    hosts: HostsConfig = HostsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @field_validator("algorithm", mode="before")
    @classmethod
    def _algorithm_by_name(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        settings = dict(value)
        name = settings.pop("name", FedBCGDPlus.name)
        return method(name).model_validate(settings)

    @field_serializer("algorithm")
    def _algorithm_with_name(self, algorithm: Algorithm) -> dict[str, Any]:
        return {"name": algorithm_name(algorithm), **algorithm.model_dump(exclude_none=True)}

    def to_toml(self) -> str:
        """The config as a TOML file that reads back to the same config."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def method(name: str) -> type[Algorithm]:
    """The class of a method by its name, or by `package.module:Class`."""
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        raise ConfigError(f'algorithm.name = "{name}" is unknown; use one of {", ".join(METHODS)}, or package.module:Class')
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f'algorithm.name = "{name}" cannot be imported: {error}') from None
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f'algorithm.name = "{name}" is not a subclass of raybcgd.Algorithm')
    return found


def algorithm_name(algorithm: Algorithm) -> str:
    """The name that finds an algorithm's class again."""
    kind = type(algorithm)
    return kind.name if METHODS.get(kind.name) is kind else f"{kind.__module__}:{kind.__qualname__}"


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a TOML file, with `key.subkey=value` overrides on top."""
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return make_config(override(values, overrides))


def make_config(values: Mapping[str, Any]) -> Config:
    """Validate nested tables; what is wrong comes back as one line that names the setting."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from None


def override(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of nested tables in which `key.subkey=value` settings, with TOML values, have been replaced."""
    result = _deep_copy(values)
    for text in overrides:
        key, equals, raw = text.partition("=")
        if not equals:
            raise ConfigError(f'--set {text}: write it as key=value, such as --set algorithm.lr=0.05')
        try:
            value = tomllib.loads(f"value = {raw}")["value"]
        except tomllib.TOMLDecodeError:
            value = raw  # a bare word is a string
        *tables, last = key.strip().split(".")
        table = result
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {text}: {name} is not a table")
        table[last] = value
    return result


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _deep_copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    names = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "constrained-", "literal["))]
    setting = ".".join(names) or "config"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"{setting} is not a setting; {_nearest(names)}{more}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{setting} = {first['input']!r}: {message[0].lower()}{message[1:]}{more}"


def _nearest(names: list[str]) -> str:
    """The settings that could have been meant."""
    section: Any = Config
    for name in names[:-1]:
        field = section.model_fields.get(name)
        section = getattr(field, "annotation", None)
        if not (isinstance(section, type) and issubclass(section, Section)):
            return "remove it"
    known = ", ".join(section.model_fields)
    return f"known here: {known}"
