"""Heat maps of the labels per client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raybcgd.data.inspect import shown_clients
from raybcgd.data.partition import Ints
from raybcgd.errors import ConfigError
from raybcgd.report.style import drawing, heat_map

_LONGEST_NAME = 12


def label_map(
    axes: Any,
    counts: Ints,
    shown: Sequence[int],
    clients: int,
    highest: int | None = None,
    label: str = "label",
    names: Sequence[str] | None = None,
) -> Any:
    """Plot samples per label (y) and client (x). `counts` has one row per client in `shown`, out of `clients`.

    Clients are labelled with their `names` in the data set, or with their numbers.
    """
    image = heat_map(axes, counts.T, vmin=0, vmax=highest)
    ticks = range(0, len(shown), -(-len(shown) // 11))
    axes.set_xticks(ticks, [str(shown[tick]) if names is None else _short(names[shown[tick]]) for tick in ticks])
    axes.set_xlabel("client" if len(shown) == clients else f"client ({len(shown)} of {clients:,}, evenly spaced)")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel(label)
    return image


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def draw_heat_map(counts: Ints, path: Path, title: str, label: str = "label") -> None:
    """Write a PNG heat map of `counts` (clients, classes)."""
    clients, classes = counts.shape
    shown = shown_clients(clients)
    with drawing() as new:
        figure = new(min(4 + 0.12 * len(shown), 16), min(2 + 0.22 * classes, 10))
        axes = figure.add_subplot()
        figure.colorbar(label_map(axes, counts[shown], shown.tolist(), clients, label=label), ax=axes, label="samples")
        axes.set_title(title)
        if classes <= 30:
            axes.set_yticks(range(classes))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, format="png")
        except OSError as error:
            raise ConfigError(f"cannot write {path} ({error.strerror}); choose another file") from None
