"""Read a values file, and write the cluster files that it describes."""

import json
import tomllib
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from raybcgd.cluster.kubernetes import kubernetes_objects
from raybcgd.cluster.ray_up import aws_file, aws_policy, gcp_file
from raybcgd.cluster.settings import Values
from raybcgd.config.explain import explain
from raybcgd.errors import ConfigError


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes multi-line strings as blocks and repeated parts in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def read_values(path: Path) -> Values:
    """Read a values file. An error is one line that names the setting."""
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the values {path}: {error.strerror}; check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; fix the file") from None
    try:
        values = Values.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(explain(error, Values)) from None
    job = values.kubernetes.job if values.kubernetes else None
    if values.kubernetes is None or job is None:
        return values
    here = job.model_copy(update={"config": str(path.parent / job.config)})
    return values.model_copy(update={"kubernetes": values.kubernetes.model_copy(update={"job": here})})


def render(values: Values, source: str) -> dict[str, str]:
    """Return the cluster files, by relative path. `source` is the name of the values file, for the header."""
    header = f"# Written by `raybcgd cluster render {source}`. Change the values there and render again.\n"
    made: dict[str, str] = {}
    if values.kubernetes is not None:
        for name, objects in kubernetes_objects(values, values.kubernetes).items():
            made[name] = header + "".join(f"---\n{_yaml(one)}" for one in objects)
    if values.aws is not None:
        made["cluster.yaml"] = header + _yaml(aws_file(values, values.aws))
        made["iam-policy.json"] = json.dumps(aws_policy(values, values.aws), indent=2) + "\n"
    if values.gcp is not None:
        made["cluster.yaml"] = header + _yaml(gcp_file(values, values.gcp))
    return made


def _yaml(document: dict[str, Any]) -> str:
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


def write_files(files: dict[str, str], out: Path) -> None:
    """Write files below a folder."""
    try:
        for name, text in files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(text)
    except OSError as error:
        raise ConfigError(f"cannot write to {out} ({error.strerror}); choose another --out") from None
