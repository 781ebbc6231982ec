"""What the committed results say about a method."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from website.links import ROOT


def measured(name: str, folder: Path = ROOT / "results") -> str:
    """Return the final runs of a method as a table, or nothing if there are none."""
    lines = [line for path in sorted(folder.glob("*.json")) for line in _lines(path.stem, path.read_text(), name)]
    if not lines:
        return ""
    head = "| study | run | seeds | accuracy, % | upload, d |\n|---|---|---:|---:|---:|\n"
    tail = (
        "\n\nAccuracy is the mean test accuracy over the last tenth of a run, with the standard deviation over seeds. "
        "Upload is per sampled client. [Results](../results.md) compares all methods and says how they were tuned."
    )
    return head + "\n".join(lines) + tail


def _lines(study: str, text: str, name: str) -> Iterator[str]:
    found = json.loads(text)
    default = found.get("config", {}).get("algorithm", {}).get("name")
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in found.get("runs", ()):
        # Runs with a gap to the optimum are about that gap, not about accuracy.
        if run["stage"] == "final" and "gap" not in run and run["settings"].get("algorithm.name", default) == name:
            runs.setdefault(run["label"], []).append(run)
    for label, seeds in runs.items():
        finished = [run for run in seeds if "error" not in run]
        if not finished:
            yield f"| {study} | {label} | {len(seeds)} | diverged | |"
            continue
        scores = [100 * run["last_tenth_accuracy"] for run in finished]
        deviation = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
        upload = mean(run["upload_d"] for run in finished)
        yield f"| {study} | {label} | {len(finished)} | {mean(scores):.1f}{deviation} | {upload:.1f} |"
