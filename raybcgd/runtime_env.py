"""The runtime environment of a job: what Ray installs and sets on the nodes before the job's code runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from raybcgd.errors import ConfigError, first_line


def runtime_environment(package: Path, file: Path | None = None, variables: Sequence[str] = ()) -> dict[str, Any]:
    """Return the environment of a job: this package, and what a YAML file and NAME=VALUE pairs add."""
    given = {} if file is None else _read(file)
    if "working_dir" in given:
        raise ConfigError(f"--runtime-env {file} sets working_dir; use --working-dir instead")
    modules = given.pop("py_modules", [])
    env_vars = {**given.pop("env_vars", {}), **dict(_pair(text) for text in variables)}
    merged = {"excludes": ["runs"], **given, "py_modules": [str(package), *modules]}
    return {**merged, "env_vars": {key: str(value) for key, value in env_vars.items()}} if env_vars else merged


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ConfigError(f"--env {text}: write it as NAME=VALUE, such as --env HF_HOME=/shared/cache")
    return key, value


def _read(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read --runtime-env {file}: {error.strerror}; check the path") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--runtime-env {file} is not valid YAML ({first_line(error)}); fix the file") from None
    if not isinstance(content, dict):
        raise ConfigError(f"--runtime-env {file} is not a table of settings such as pip or env_vars; fix the file")
    return content
