"""Generate prometheus-operator-schema.json: python -m tests.cluster.distil_types 0.90.1 PodMonitor.d.ts … > …

The npm package @kubernetes-models/prometheus-operator (5.0.1: operator 0.90.1) contains the operator's custom resource
definitions as TypeScript types. This turns them into a JSON Schema that forbids unknown fields.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.cluster.distil import Sharing

_TOKEN = re.compile(r'"[^"]*"|Array<|\[key: string\]|\w+|[{}<>|:;?]')
_PLAIN = {"string": {"type": "string"}, "number": {"type": "number"}, "boolean": {"type": "boolean"}, "any": {}}


class Types:
    """Reads the types of a `.d.ts` file from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)

    def schema(self) -> dict[str, Any]:
        """Read a type: one, or alternatives."""
        found = [self._one()]
        while self._tokens[0] == "|":
            self._next("|")
            found.append(self._one())
        if all("const" in one for one in found):
            return {"enum": [one["const"] for one in found]}
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _one(self) -> dict[str, Any]:
        token = self._next()
        if token == "{":
            return self._object()
        if token == "Array<":
            items = self.schema()
            self._next(">")
            return {"type": "array", "items": items}
        if token.startswith('"'):
            return {"const": json.loads(token)}
        return dict(_PLAIN[token]) if token in _PLAIN else {"type": "object"}  # metadata, which Kubernetes checks

    def _object(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        required, others = [], None
        while (name := self._next()) != "}":
            optional = self._tokens[0] == "?" and bool(self._next("?"))
            self._next(":")
            value = self.schema()
            self._next(";")
            if name == "[key: string]":
                others = value
                continue
            fields[json.loads(name)] = value
            required += [] if optional else [json.loads(name)]
        return {
            "type": "object",
            "properties": fields,
            "required": required,
            "additionalProperties": False if others is None else others,
        }

    def _next(self, expected: str | None = None) -> str:
        token = self._tokens.pop(0)
        assert expected is None or token == expected, (token, expected)
        return token


def kind_and_schema(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the kind and the schema of a file's interface."""
    kind = path.name.removesuffix(".d.ts")
    schema = Types(path.read_text().split(f"export interface I{kind} ")[1]).schema()
    del schema["properties"]["status"]
    return kind, schema


def main() -> None:
    """Print the schemas of the types named on the command line, after the operator's version."""
    kinds = dict(kind_and_schema(Path(name)) for name in sys.argv[2:])
    share = Sharing(list(kinds.values()))
    shared = {kind: share(schema) for kind, schema in kinds.items()}
    print(json.dumps({"version": sys.argv[1], "$defs": share.definitions, "kinds": shared}, separators=(",", ":")))


if __name__ == "__main__":
    main()
