"""Run the studies that are not finished, and write docs/results.md and the tables of the demo.

    FASHION_MNIST=FOLDER CIFAR10=FOLDER python -m results [--minutes 18] [--only STUDY ...] [--seeds N] [--fresh]

Every run is stored in results/*.json as soon as it is finished. Run the command again to continue.
"""

import argparse
import math
import os
import time
from typing import Any

# One thread: the sums of a matrix product, and so the bits of a result, depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from results import demo, page
from results.runner import OutOfTime, Runner
from results.store import Store, best
from results.studies import STUDIES, Study


def main() -> None:
    """Run the command."""
    torch.set_num_threads(1)
    options = _arguments()
    chosen = [study for study in STUDIES if options.only is None or study.name in options.only]
    if options.fresh:
        for study in chosen:
            Store(study.name).path.unlink(missing_ok=True)
    deadline = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    console = Console()
    for study in () if options.page else chosen:
        try:
            _run(study, console, deadline, options.seeds)
        except OutOfTime:
            console.print(f"{study.name}: time is up; run the command again to continue")
            break
    page.write()
    demo.write()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="start no new run after this time")
    parser.add_argument("--only", nargs="+", choices=[study.name for study in STUDIES], help="studies; default: all")
    parser.add_argument("--seeds", type=int, help="only this many seeds of each study; default: all")
    parser.add_argument("--page", action="store_true", help="run nothing; only write the page")
    parser.add_argument("--fresh", action="store_true", help="delete the stored results of these studies first")
    return parser.parse_args()


def _run(study: Study, console: Console, deadline: float, seeds: int | None) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(study.name)

        def observe(done: str) -> None:
            bar.update(task, advance=1, description=f"{study.name}: {done}")

        runner = Runner(study, Store(study.name), _tuned(study), observe, deadline)
        count = len(study.seeds) if seeds is None else min(seeds, len(study.seeds))
        bar.update(task, total=runner.total(count))
        runner.run(count)


def _tuned(study: Study) -> dict[str, Any]:
    """Return the settings that another study tuned for this one."""
    if study.tuned_as is None:
        return {}
    name, label = study.tuned_as
    found = best(Store(name).of("tune", label))
    if found is None:
        raise SystemExit(f"{study.name} needs the tuned settings of {label}; run the study {name} first")
    return dict(found["point"])


if __name__ == "__main__":
    main()
