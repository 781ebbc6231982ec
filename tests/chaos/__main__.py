"""`python -m tests.chaos`: run chaos trials, append their results to a file, and print the table of recovery times."""

import argparse
import json
import math
import os
import subprocess
import tempfile
import time
from pathlib import Path

from raybcgd.config import load_config
from raybcgd.experiment import run
from tests.chaos.table import read_results, recovery_table
from tests.chaos.trial import ROOT, Trial, config_text, draw

TRIALS = 60
SEED = 16


def may_mount() -> bool:
    """Return whether this user may mount a small file system, which trials with a full disk need."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False)
        return mounted.returncode == 0 and subprocess.run(["umount", folder], check=False).returncode == 0


def reference() -> str:
    """Return the SHA-256 of the undisturbed run, in one process."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        config.write_text(config_text("local"))
        return str(run(load_config(config), out=Path(folder) / "run", progress=False).summary["sha256"])


def product() -> str:
    """Return the Git hash of the package's code, to record which code the results are from."""
    command = ["git", "rev-parse", "--short", "HEAD:raybcgd"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def run_trials(first: int, count: int, seed: int, results: Path, minutes: float = math.inf) -> list[str]:
    """Run trials and return their faults. Skip those in the results file; start none after `minutes`."""
    deadline = time.monotonic() + 60 * minutes
    expected, mounts = reference(), may_mount()
    print(f"seed {seed}; {'with' if mounts else 'without'} full disks (these need root); SHA-256 {expected[:16]}")
    done = {trial["trial"] for trial in read_results(results)}
    faults = []
    for number in range(first, first + count):
        if number in done or time.monotonic() > deadline:
            continue
        events = draw(seed, number, mounts)
        print(f"trial {number}: {', '.join(f'{e.kind} (+{e.gap_seconds:g} s)' for e in events)}", flush=True)
        found = {"seed": seed, "product": product(), **Trial(number, events, expected).run()}
        with results.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"  {found['seconds']:g} s, {found['resumes']} resumes, faults: {found['faults'] or 'none'}", flush=True)
        faults += [f"trial {number}: {fault}" for fault in found["faults"]]
    return faults


def main() -> int:
    """Run the trials that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--count", type=int, default=TRIALS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--results", type=Path, default=Path("chaos.jsonl"), help="file to which results are appended")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no trial after this many minutes")
    options = parser.parse_args()
    faults = run_trials(options.first, options.count, options.seed, options.results, options.minutes)
    print(recovery_table(read_results(options.results)))
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
