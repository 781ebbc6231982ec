"""The result files: one JSON file per study, one line per run."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from raybcgd.storage import write_atomic

FOLDER = Path(__file__).parent
TUNING_SEED = 100

Entry = dict[str, Any]
"""A run as JSON: stage ("tune" or "final"), label, seed, settings, key, rounds, results, versions, sha256."""


class Store:
    """The runs of one study, in `results/<name>.json`."""

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        self.path = folder / f"{name}.json"
        found: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.config: dict[str, Any] = found.get("config", {})
        """The settings that all runs share."""
        self.runs: list[Entry] = found.get("runs", [])

    def find(self, key: str) -> Entry | None:
        """Return the run with this hash of its config, or None."""
        return next((run for run in self.runs if run["key"] == key), None)

    def elsewhere(self, key: str) -> Entry | None:
        """Return the run with this hash from the file of another study, or None."""
        others = (
            Store(path.stem, path.parent) for path in sorted(self.path.parent.glob("*.json")) if path != self.path
        )
        return next((found for found in (other.find(key) for other in others) if found is not None), None)

    def add(self, run: Entry) -> None:
        """Add a run and write the file."""
        self.runs.append(run)
        self.write()

    def write(self) -> None:
        """Write the file: a line per run, so that a new run is a small change."""
        head = json.dumps({"config": self.config}, indent=1)[:-2]
        lines = ",\n".join(f"  {json.dumps(run)}" for run in self.runs)
        write_atomic(self.path, f'{head},\n "runs": [\n{lines}\n ]\n}}\n')

    def of(self, stage: str, label: str | None = None) -> list[Entry]:
        """Return the runs of a stage, and of one method if `label` is given."""
        return [run for run in self.runs if run["stage"] == stage and label in (None, run["label"])]

    def labels(self) -> list[str]:
        """Return the methods with final runs, in the order of the study."""
        return list(dict.fromkeys(run["label"] for run in self.of("final")))


def best(runs: Iterable[Entry]) -> Entry | None:
    """Return the tuning run with the best validation score. On a tie, the first one."""
    scored = [run for run in runs if run["score"] is not None]
    return max(scored, key=lambda run: run["score"], default=None)


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as settings by path, such as "algorithm.lr"."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found.update(flat(value, f"{path}."))
        else:
            found[path] = value
    return found
