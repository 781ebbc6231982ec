"""Write docs/results.md from the stored runs. Every number on the page comes from results/*.json or from the papers."""

from pathlib import Path

from raybcgd.paper.catalogue import select
from raybcgd.paper.results import numbers as published
from raybcgd.storage import write_atomic
from results import plots, reading
from results.numbers import FEWER_BITS, FEWER_FLOATS, Row, accuracy_after, claims, row, rows, saving, target_of
from results.store import FOLDER, Store

DOCS = Path(__file__).parent.parent / "docs"
CURVES = ("FedAvg", "FedAvgM", "SCAFFOLD", "FedBCGD", "FedBCGD+", "QSGD+FedBCGD", "QSGD+FedBCGD+")

DATA = {"fashion-mnist": "Fashion-MNIST, MLP", "cifar10": "CIFAR-10, CNN"}

_DASH = "-"


def page(folder: Path = FOLDER) -> str:
    """Return the page as Markdown."""
    parts = [reading.HEAD, _claims(folder)]
    for data, title in DATA.items():
        stores = {rho: Store(f"{data}-rho{rho}", folder) for rho in (0.6, 0.1)}
        stores = {rho: store for rho, store in stores.items() if store.of("final", "FedBCGD")}
        parts += [_table(store, f"{title}, Dirichlet {rho}", rho == 0.6) for rho, store in stores.items()]
        if stores:
            parts.append(f"![Accuracy against upload, {title}](results-{data}.png)\n")
            parts += [_reading(store, rho) for rho, store in stores.items()]
            parts.append(reading.AFTER[data])
            parts += [f"Dirichlet {rho} has not been run yet.\n" for rho in (0.6, 0.1) if rho not in stores]
    parts += [_ablation(Store(name, folder), name) for name in reading.ABLATIONS if Store(name, folder).runs]
    for name, write in (("optimum", _optimum), ("block-cyclic", _cyclic)):
        store = Store(name, folder)
        if store.runs:
            parts.append(write(store))
    return "\n".join([*parts, reading.HOW, _versions(folder)])


def write(folder: Path = FOLDER, docs: Path = DOCS) -> None:
    """Write the page and its plots."""
    write_atomic(docs / "results.md", page(folder))
    for data in DATA:
        stores = {f"Dirichlet {rho}": Store(f"{data}-rho{rho}", folder) for rho in (0.6, 0.1)}
        stores = {title: store for title, store in stores.items() if store.of("final")}
        if stores:
            plots.upload_plot(stores, CURVES, docs / f"results-{data}.png")
    store = Store("block-cyclic", folder)
    if store.of("final"):
        plots.rounds_plot(store, docs / "results-block-cyclic.png")


def _claims(folder: Path) -> str:
    floats, bits = f"at least {FEWER_FLOATS:g} x fewer floats", f"at least {FEWER_BITS:g} x fewer bits with QSGD"
    lines = [f"| data | {floats} | {bits} | final accuracy no worse |", "|---|---|---|---|"]
    for name, title in reading.CLAIMED.items():
        store = Store(name, folder)
        if not {"FedAvg", "FedBCGD", "FedBCGD+", "QSGD+FedBCGD", "QSGD+FedBCGD+"} <= set(store.labels()):
            continue
        cells = [f"**{'yes' if claim.holds else 'no'}**: {claim.measured}" for claim in claims(store)]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return reading.CLAIMS + "\n".join(lines) + "\n"


def _table(store: Store, title: str, with_paper: bool) -> str:
    target = target_of(store)
    theirs = _published() if with_paper else {}
    head = ["method", "accuracy, %", "upload to target, d", "saved", "rounds to target", "tuned"]
    head += ["paper: LeNet-5, CIFAR-10"] if theirs else []
    found = sorted(rows(store, target), key=lambda one: reading.ORDER.index(one.label))
    lines = [head, ["---"] * len(head)]
    seeds = max(one.seeds for one in found)
    for one in found:
        name = one.label if one.seeds == seeds else f"{one.label} (seeds: {one.seeds})"
        cells = [name, accuracy(one), *_uploads(one), one.settings]
        lines.append([*cells, theirs.get(one.label, _DASH)] if theirs else cells)
    shown = "unknown" if target is None else f"{100 * target:.1f} %"
    intro = f"Target: {shown}, 95 % of FedAvg's accuracy. Seeds: {seeds}. In parentheses: with the running mean.\n\n"
    return f"## {title}\n\n{intro}" + _markdown(lines)


def _reading(store: Store, rho: float) -> str:
    """Return the paragraph on the upload per round, and on the accuracy after equal rounds and equal uploads."""
    found = {one.label: one for one in rows(store, target_of(store))}
    fedavg, fedbcgd = found["FedAvg"], found["FedBCGD"]
    last = fedavg.rounds or 1
    stop = max((run["upload_d"] for run in store.of("final", "QSGD+FedBCGD") if "upload_d" in run), default=0.0)
    return reading.ROUNDS.format(
        rho=rho,
        fedavg=_rounds(fedavg),
        fedbcgd=_rounds(fedbcgd),
        share=last / (fedbcgd.rounds or 1),
        last=last,
        fedavg_last=100 * accuracy_after(store, "FedAvg", last),
        fedbcgd_last=100 * accuracy_after(store, "FedBCGD", last),
        stop=stop,
        qsgd_stop=100 * accuracy_after(store, "QSGD+FedBCGD", stop, "upload_d"),
        fedavg_stop=100 * accuracy_after(store, "FedAvg", stop, "upload_d"),
    )


def _rounds(one: Row) -> str:
    return "never" if one.target_rounds is None else f"after {one.target_rounds:.0f} rounds"


def _uploads(one: Row) -> list[str]:
    if one.label == "SGD":  # centralised training uploads nothing
        return [_DASH] * 3
    saved = _DASH if one.saved is None else saving(one)
    if one.target_rounds is None:
        return ["never", saved, _DASH if one.rounds is None else f"never in {one.rounds}"]
    return [f"{_d(one.upload_d)} ({_d(one.smooth_d)})", saved, f"{one.target_rounds:.0f} of {one.rounds}"]


def _ablation(store: Store, name: str) -> str:
    target = target_of(Store("fashion-mnist-rho0.6", store.path.parent)) if name in reading.ON_TABLE else None
    head = ["variant", "seeds", "accuracy, %"] + (["upload to target, d"] if target else ["test loss", "tuned"])
    lines = [head, ["---"] * len(head)]
    for one in rows(store, target):
        more = [_d(one.upload_d)] if target else [_DASH if one.loss is None else f"{one.loss:.4f}", one.settings]
        lines.append([one.label, str(one.seeds), accuracy(one), *more])
    title, text = reading.ABLATIONS[name]
    shown = f"Target: {100 * target:.1f} %, as in the table above.\n\n" if target else ""
    return f"## {title}\n\n{text}\n\n{shown}" + _markdown(lines)


def _optimum(store: Store) -> str:
    lines = [["variant", "f(x) - f*", "distance of c from the mean of the c_i"], ["---"] * 3]
    for run in store.of("final"):
        if "error" in run:
            lines.append([run["label"], "diverged", _DASH])
        else:
            lines.append([run["label"], f"{run['gap']:.1e}", f"{run['drift']:.1e}" if "drift" in run else _DASH])
    return reading.OPTIMUM + _markdown(lines)


def _cyclic(store: Store) -> str:
    (experiment,) = select("block-cyclic", "figure2")
    theirs = {one.label: published(one) for one in experiment.rows}
    lines = [["method", "seeds", "best accuracy, %", "last tenth, %", "paper, best"], ["---"] * 5]
    for one in rows(store):
        best = _DASH if one.best is None else f"{one.best:.1f}"
        lines.append([one.label, str(one.seeds), best, accuracy(one), theirs[one.label]])
    order = [row(store, label).best or 0.0 for label in theirs if label in store.labels()]
    if len(order) == len(theirs):
        cyclic, shuffled, *own = order
        held = "yes" if cyclic < shuffled < min(own) else "**no**"
        verdict = f"\nThe same order as in the paper, FedAvg cyclic < FedAvg shuffled < MM-PSGD and MC-PSGD: {held}.\n"
    else:
        verdict = ""
    picture = "\n![Accuracy of the four methods on block-cyclic data](results-block-cyclic.png)\n"
    return reading.CYCLIC + _markdown(lines) + verdict + picture


def _versions(folder: Path) -> str:
    found = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        for path in sorted(folder.glob("*.json"))
        for run in Store(path.stem, folder).runs
    )
    return reading.VERSIONS + "".join(f"- {one}\n" for one in found)


def _published() -> dict[str, str]:
    """Return the paper's numbers for LeNet-5 on CIFAR-10 by method. Table 3 has priority over table 6."""
    found: dict[str, str] = {}
    for name in ("table3", "table6"):
        (experiment,) = select("fedbcgd", name, model="lenet5", data="cifar10")
        for one in experiment.rows:
            found.setdefault(one.label, published(one))
    return found


def accuracy(one: Row) -> str:
    """Return the accuracy of a row as text."""
    if one.accuracy is None:
        return "diverged" if one.diverged == one.seeds else f"{one.diverged} of {one.seeds} diverged"
    return f"{one.accuracy:.1f}" + ("" if one.deviation is None else f"\u00a0±\u00a0{one.deviation:.1f}")


def _d(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def _markdown(lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
