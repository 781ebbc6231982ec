"""The recovery times of chaos trials as a table."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos.trial import KINDS


def recovery_table(trials: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of recovery times by kind of event."""
    lines = ["| event | events | median | worst | ended the driver |", "|---|---|---|---|---|"]
    for kind in KINDS:
        events = [event for trial in trials for event in trial["events"] if event["kind"] == kind]
        times = [event["recovered_at"] - event["at"] for event in events if event["recovered_at"] is not None]
        ended = sum(event["exit_code"] is not None for event in events)
        shown = (f"{statistics.median(times):.1f} s", f"{max(times):.1f} s") if times else ("", "")
        lines.append(f"| {kind} | {len(events)} | {' | '.join(shown)} | {ended} |")
    return "\n".join(lines) + "\n"


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the trials in a results file, in order. Of a repeated trial, only the last result counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = {trial["trial"]: trial for trial in map(json.loads, lines)}
    return [found[number] for number in sorted(found)]
