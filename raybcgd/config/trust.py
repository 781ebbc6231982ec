"""Which settings of an untrusted config make this machine execute code."""

import os
import shlex
import sys
from collections.abc import Container, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.config.objects import ObjectsConfig
from raybcgd.data.settings import PARTITIONS, SOURCES
from raybcgd.errors import ConfigError
from raybcgd.lazy import searched
from raybcgd.model.settings import LOSSES, METRICS, MODELS
from raybcgd.registry import Registry
from raybcgd.storage import RunFolder
from raybcgd.wire.settings import CODECS

_REGISTRIES = (ALGORITHMS, CODECS, PARTITIONS, SOURCES, MODELS, LOSSES, METRICS)


def check_trusted(tables: Mapping[str, Any], given: Container[str], folder: RunFolder, call: str = "") -> None:
    """Raise an error if the config of a run folder names code, or a Ray cluster, that the user has not approved.

    The user approves a setting by giving it on the command line, and a class by installing its package. `call` is the
    Python function that the user called, if any.
    """
    approve = f"call {call}(trust=True)" if call else "add --trust"
    resume = f'resume the run there: run(config, out="{folder.path}", resume=True)'
    for registry, reference in _references(tables):
        if reference.startswith("__main__:"):
            raise ConfigError(
                f'{registry.setting} = "{reference}" in {folder.config} was defined in a script or a notebook; '
                + (f"define it here too, then {approve}" if call else resume)
            )
        if registry.setting not in given and not (registry.takes_classes and _is_installed(reference, folder.path)):
            raise ConfigError(
                f'{registry.setting} = "{reference}" in {folder.config} names code outside raybcgd; '
                f"read that code, then {approve} to run it"
            )
    address = _value(tables, "hosts.address")
    if address not in (None, "auto", "local") and "hosts.address" not in given:
        # Ray's messages are pickles, so a cluster can execute code in its drivers.
        raise ConfigError(
            f'hosts.address = "{address}" in {folder.config} names a Ray cluster, which can run code on this machine; '
            f"{approve} if you know the cluster" + ("" if call else ", or set hosts.address with --set")
        )


def resume_command(tables: Mapping[str, Any], folder: RunFolder) -> str:
    """Return what resumes a run that has this config: a command, or a Python call if the run used objects."""
    if tables.get("objects"):
        return ObjectsConfig.model_validate(tables["objects"]).call
    packages = {_package(reference) for _, reference in _references(tables)}
    beside = [path for path in searched if any(PathFinder.find_spec(package, [path]) for package in packages)]
    path = f"PYTHONPATH={shlex.quote(os.pathsep.join(beside))} " if beside else ""  # for modules in a config's folder
    try:
        check_trusted(tables, (), folder)
        trust = " --trust" if beside else ""
    except ConfigError:
        trust = " --trust"
    return f"{path}raybcgd resume {shlex.quote(str(folder.path))}{trust}"


def _references(tables: Mapping[str, Any]) -> Iterator[tuple[Registry, str]]:
    """Yield the references to code in a config."""
    for registry in _REGISTRIES:
        found = _value(tables, registry.setting)
        for choice in found if isinstance(found, list) else [found]:
            if registry.is_foreign(choice):
                yield registry, choice


def _value(tables: Mapping[str, Any], setting: str) -> Any:
    value: Any = tables
    for name in setting.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _package(reference: str) -> str:
    return reference.partition(":")[0].partition(".")[0]


def _is_installed(reference: str, folder: Path) -> bool:
    """Return whether a reference is to a package outside the current folder and the run folder."""
    untrusted = (Path.cwd().resolve(), folder.resolve())
    paths = [path for path in sys.path if Path(path).resolve() not in untrusted]
    spec = PathFinder.find_spec(_package(reference), paths)
    # A namespace package has no origin. The current folder can add modules to it.
    return spec is not None and spec.origin is not None and os.path.exists(spec.origin)
