"""Generate kuberay-schema.json: python tests/cluster/distil.py 1.7.0 ray.io_rayclusters.yaml ray.io_rayjobs.yaml > …

The arguments are the version of KubeRay and the files of its release. Reduces version v1 of these custom resource
definitions to what a validator needs: drops descriptions and the status, forbids unknown fields, and moves repeated
parts to `$defs`.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

_SHARED = 300
"""Minimum length, in characters, of a repeated part that moves to `$defs`."""


def strict(node: Any) -> Any:
    """Return plain JSON Schema that forbids unknown fields."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            result[key] = {name: strict(schema) for name, schema in value.items()}
        elif not key.startswith("x-kubernetes") and not (key == "description" and isinstance(value, str)):
            result[key] = strict(value)
    if isinstance(node.get("properties"), dict) and not node.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    if node.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    return result


def kind_and_schema(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the kind and the schema of a definition."""
    definition = yaml.safe_load(path.read_text())["spec"]
    (version,) = [version for version in definition["versions"] if version["name"] == "v1"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"].pop("status", None)
    schema["properties"]["metadata"] = {"type": "object"}  # the definitions do not specify Kubernetes' own fields
    return definition["names"]["kind"], schema


class Sharing:
    """Moves repeated parts of the schemas to `$defs`."""

    def __init__(self, schemas: list[dict[str, Any]]) -> None:
        self._count: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        self.definitions: dict[str, Any] = {}
        for schema in schemas:
            self._walk(schema)

    def _walk(self, node: Any) -> None:
        if isinstance(node, dict):
            self._count[_text(node)] += 1
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            self._walk(child)

    def __call__(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self(item) for item in node]
        if not isinstance(node, dict):
            return node
        text = _text(node)
        if self._count[text] < 2 or len(text) < _SHARED or "type" not in node:
            return {key: self(value) for key, value in node.items()}
        if text not in self._names:
            self._names[text] = f"d{len(self._names)}"
            self.definitions[self._names[text]] = {key: self(value) for key, value in node.items()}
        return {"$ref": f"#/$defs/{self._names[text]}"}


def _text(node: Any) -> str:
    return json.dumps(node, sort_keys=True, separators=(",", ":"))


def main() -> None:
    """Print the schemas of the definitions named on the command line, after KubeRay's version."""
    kinds = dict(kind_and_schema(Path(name)) for name in sys.argv[2:])
    share = Sharing(list(kinds.values()))
    shared = {kind: share(schema) for kind, schema in kinds.items()}
    print(_text({"version": sys.argv[1], "$defs": share.definitions, "kinds": shared}))


if __name__ == "__main__":
    main()
