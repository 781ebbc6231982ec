"""The plots of the page."""

from pathlib import Path

from raybcgd.report.style import drawing, plain_numbers
from results.numbers import target_of
from results.store import Store


def upload_plot(stores: dict[str, Store], labels: tuple[str, ...], path: Path) -> None:
    """Plot accuracy against upload, one panel per study by title. Lines are the first seed."""
    with drawing() as new:
        figure = new(9.0, 3.6)
        panels = figure.subplots(1, len(stores), sharey=True, squeeze=False)[0]
        for axes, (title, store) in zip(panels, stores.items(), strict=True):
            axes.set_xscale("log", subs=[2, 5])
            plain_numbers(axes.xaxis)
            axes.set_title(title)
            axes.set_xlabel("upload per client, in d")
            for label in labels:
                runs = [run for run in store.of("final", label) if "curve" in run]
                if runs:
                    curve = runs[0]["curve"]
                    axes.plot(curve["upload_d"], [100 * value for value in curve["accuracy"]], label=label, lw=1.3)
            target = target_of(store)
            if target is not None:
                axes.axhline(100 * target, color="#777777", lw=0.8, ls=":")
        panels[0].set_ylabel("test accuracy, %")
        panels[0].legend(fontsize=7)
        figure.savefig(path, dpi=100)
        figure.clear()


def rounds_plot(store: Store, path: Path) -> None:
    """Plot accuracy against rounds for all variants of a study."""
    with drawing() as new:
        figure = new(6.4, 3.2)
        axes = figure.subplots()
        axes.set_xlabel("round")
        axes.set_ylabel("test accuracy, %")
        for label in store.labels():
            curve = store.of("final", label)[0]["curve"]
            axes.plot(curve["round"], [100 * value for value in curve["accuracy"]], label=label, lw=1.3)
        axes.legend(fontsize=8)
        figure.savefig(path, dpi=100)
        figure.clear()
