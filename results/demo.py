"""The demo's table and picture in README.md and docs/index.md, from the runs of results/demo.json."""

import re
from pathlib import Path

from raybcgd.storage import write_atomic
from results import plots
from results.numbers import mean, reached
from results.store import FOLDER, Store
from results.studies import DEMO

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "docs/demo.png", "docs/index.md": "demo.png"}
"""The pages with the table, and their paths to the picture."""
_PART = re.compile(r"(?<=<!-- demo -->\n).*?(?=<!-- /demo -->)", re.DOTALL)


def target() -> float:
    """Return the target accuracy: the demo measures the upload until it is reached."""
    return DEMO.base().with_compare_target().metrics.target


def uploads(store: Store) -> dict[str, dict[int, float | None]]:
    """Return the upload until the target is first reached, by method and seed. None: never."""
    found: dict[str, dict[int, float | None]] = {}
    for run in store.of("final"):
        at = reached(run, target())
        found.setdefault(run["label"], {})[run["seed"]] = None if at is None else at.upload_d
    return found


def part(picture: str, folder: Path = FOLDER) -> str:
    """Return the picture and the table as Markdown."""
    found = uploads(Store("demo", folder))
    means = {label: mean(list(by.values())) for label, by in found.items()}
    times = [_times(means["FedAvg"], means[label]) for label in ("FedBCGD", "FedBCGD+")]
    caption = (
        f"Test accuracy against upload, seeds {', '.join(map(str, DEMO.seeds))}: FedBCGD and FedBCGD+ reach "
        f"{100 * target():g} % with {times[0]} and {times[1]} times less upload than FedAvg"
    )
    lines = [["seed", *found], ["---"] * (1 + len(found))]
    for seed in DEMO.seeds:
        name = f"{seed} (`make demo`)" if seed == DEMO.base().seed else str(seed)
        lines.append([name, *(_shown(by[seed]) for by in found.values())])
    lines.append(["mean", *map(_shown, means.values())])
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    heading = f"Upload per sampled client until {100 * target():g} % test accuracy, in units of the model size d:"
    return f"![{caption}]({picture})\n\n{heading}\n\n{table}"


def page(path: str, folder: Path = FOLDER) -> str:
    """Return a page with its demo part replaced."""
    new, count = _PART.subn(lambda _: part(PAGES[path], folder), (ROOT / path).read_text())
    assert count == 1, f"{path} needs one pair of the marks <!-- demo --> and <!-- /demo -->"
    return new


def write() -> None:
    """Write the pages and the picture, if the demo has run."""
    store = Store("demo")
    if store.of("final"):
        for path in PAGES:
            write_atomic(ROOT / path, page(path))
        labels = {label: f"{label}: {_shown(mean(list(by.values())))} d" for label, by in uploads(store).items()}
        plots.target_plot(store, labels, target(), ROOT / "docs/demo.png")


def _times(base: float | None, value: float | None) -> str:
    return "?" if base is None or value is None else f"{base / value:.1f}"


def _shown(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"
