"""The figures of a report: axes, ticks, colours and what they leave out."""

import json
import re
import shutil
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from raybcgd.record.rounds import ClientQuality
from raybcgd.report import figures
from raybcgd.report.client_figure import client_accuracy
from raybcgd.report.heat_map import label_map
from raybcgd.report.plots import upload_figure
from raybcgd.report.runs import Method, Run, methods_of, read_runs
from raybcgd.report.style import drawing, line_styles, log_scale, log_ticks
from tests.report.conftest import report


def test_heat_maps_share_one_scale(folder: Path) -> None:
    """Runs of different lengths; zeros, which a logarithmic scale cannot show; unknown values."""
    long, short = read_runs([folder / "fedavg", folder / "fedbcgd"])
    short = replace(short, records=short.records[:3])
    values = {long.label: [[0.5, 0.0, 3.0]] * 6, short.label: [[None, 7.0, 1.0]] * 3}
    with drawing() as new:
        figure = figures.by_block(new, methods_of([long, short]), lambda run: values[run.label], "x")
        assert figure is not None
        images = [axes.images[0] for axes in figure.axes if axes.images]
        assert [(image.norm.vmin, image.norm.vmax) for image in images] == [(0.5, 7.0)] * 2
        assert [image.get_array().shape for image in images] == [(3, 6), (3, 3)]
        assert figures.by_block(new, methods_of([long, short]), lambda _: [[None, 0.0]] * 3, "x") is None


def test_a_heat_map_does_not_stretch_rounding_errors(folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    with drawing() as new:
        figure = figures.by_block(new, methods_of([run]), lambda _: [[1.0000002, 0.9999998, None]] * 6, "x")
        assert figure is not None
        (image,) = (axes.images[0] for axes in figure.axes if axes.images)
        assert image.norm.vmax / image.norm.vmin == pytest.approx(2)
        known = image.get_array().compressed()
        assert np.ptp(image.norm(known)) < 1e-5
        assert figure.axes[0].patch.get_hatch(), "what did not move is hatched, unlike any colour"


@pytest.mark.parametrize(
    ("methods", "seeds", "note"),
    [
        (13, 3, "the first 12 of 13 methods, one seed each (12 of 39 runs)"),
        (2, 3, "one seed per method (2 of 6 runs)"),
        (13, 1, "the first 12 of 13 runs"),
        (2, 1, ""),
    ],
)
def test_heat_maps_say_which_runs_they_show(methods: int, seeds: int, note: str, folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    with drawing() as new:
        shown = [Method(f"M{k}", (run,) * seeds) for k in range(methods)]
        figure = figures.by_block(new, shown, lambda _: [[1.0, 2.0]] * 6, "x")
    assert figure is not None
    assert figure.get_supxlabel() == note


@pytest.mark.parametrize(("low", "high"), [(0.27, 1.57), (0.6, 1.3), (0.36, 0.9), (0.0101, 0.0202), (1.0, 1.0)])
def test_a_colour_bar_has_readable_ticks_on_a_logarithmic_scale(low: float, high: float, folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    with drawing() as new:
        figure = figures.by_block(new, methods_of([run]), lambda _: [[low, high]] * 6, "drift")
        assert figure is not None
        figure.canvas.draw()
    bar = figure.axes[-1]
    bottom, top = bar.get_ylim()
    inside = [label for label in bar.get_yticklabels() if bottom <= label.get_position()[1] <= top]
    assert 3 <= len({label.get_text() for label in inside}) == len(inside) <= 6
    boxes = [label.get_window_extent() for label in inside]
    assert all(lower.y1 < upper.y0 for lower, upper in pairwise(boxes))
    assert bar.get_ylabel() == "drift (log scale)"


def test_times_are_means_over_the_seeds(folder: Path) -> None:
    """As the page says, one line per method. A run that stopped in its first round has no times."""
    (run,) = read_runs([folder / "fedavg"])

    def seed(seconds: float) -> Run:
        timing = run.records[0].timing.model_copy(update={"seconds": seconds})
        return replace(run, records=tuple(record.model_copy(update={"timing": timing}) for record in run.records))

    short = replace(run, records=run.records[:1])
    with drawing() as new:
        figure = figures.stages(new, [Method("A", (seed(1.0), seed(3.0), short)), Method("B", (seed(5.0),))])
    times = figure.axes[1]
    assert [line.get_xdata().tolist() for line in times.lines] == [[0, 2, 4, 6, 8, 10], [0, 5, 10, 15, 20, 25]]
    assert [list(line.get_ydata()) for line in times.lines] == [[1, 2, 3, 4, 5, 6]] * 2
    (band,) = times.collections
    assert band.get_paths()[0].vertices[:, 0].max() == pytest.approx(10 + 50**0.5)


def test_times_leave_out_the_first_round(folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    first = run.records[0]
    timing = first.timing.model_copy(update={"seconds": 99.0, "stage_seconds": {"train": 99.0}})
    slow = replace(run, records=(first.model_copy(update={"timing": timing}), *run.records[1:]))
    with drawing() as new:
        figure = figures.stages(new, methods_of([slow]))
    bars, times = figure.axes
    assert max(bar.get_x() + bar.get_width() for bar in bars.patches) < 9
    assert times.lines[0].get_xdata()[0] == 0.0
    assert times.lines[0].get_xdata()[-1] < 9


def test_one_slow_round_does_not_make_the_bars_longer(folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    *others, last = run.records
    assert len(others) >= 5
    timing = last.timing.model_copy(update={"seconds": 99.0, "stage_seconds": {"train": 99.0}})
    slow = replace(run, records=(*others, last.model_copy(update={"timing": timing})))
    with drawing() as new:
        bars = figures.stages(new, methods_of([slow])).axes[0]
    assert max(bar.get_x() + bar.get_width() for bar in bars.patches) < 9


def test_a_run_with_one_round_has_no_times(folder: Path) -> None:
    first, second = read_runs([folder / "fedavg", folder / "fedbcgd"])
    short = replace(first, records=first.records[:1])
    with drawing() as new:
        assert figures.stages(new, methods_of([short])) is None
        bars = figures.stages(new, methods_of([short, second])).axes[0]
    assert [text.get_text() for text in bars.get_yticklabels()] == ["FedBCGD"]


def test_a_band_of_losses_ends_at_the_lowest_run(folder: Path) -> None:
    """On a logarithmic axis, a deviation above the mean would reach the bottom."""
    (run,) = read_runs([folder / "fedavg"])
    seeds = []
    for loss in (0.1, 0.1, 9.0):
        quality = run.records[0].quality.model_copy(update={"loss": loss})
        seeds.append(replace(run, records=tuple(one.model_copy(update={"quality": quality}) for one in run.records)))
    with drawing() as new:
        figure = figures.loss(new, methods_of(seeds))
    assert figure is not None
    for axes in figure.axes:
        (band,) = axes.collections
        assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(0.1)


def test_the_accuracies_of_the_clients_are_means_over_the_seeds(folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])

    def seed(mean: float) -> Run:
        clients = ClientQuality(mean=mean, worst_tenth=mean / 2, deviation=0.1)
        quality = run.records[0].quality.model_copy(update={"clients": clients})
        return replace(run, records=tuple(record.model_copy(update={"quality": quality}) for record in run.records))

    with drawing() as new:
        figure = client_accuracy(new, [Method("A", (seed(0.5), seed(0.7)))])
        assert client_accuracy(new, [Method("A", (seed(0.5), run))]) is None
    assert figure is not None
    assert [axes.lines[0].get_ydata()[0] for axes in figure.axes] == pytest.approx([60.0, 30.0, 10.0])
    assert [len(axes.collections) for axes in figure.axes] == [1, 1, 1], "one band each"


def test_a_run_has_the_same_colour_in_the_plot_and_on_the_page(folder: Path) -> None:
    runs = read_runs([folder])
    with drawing() as new:
        methods = methods_of(runs)
        plot = upload_figure(new, {run.label: [run.records] for run in runs}, 0.2, "subject")
        page = [figures.accuracy(new, methods, 0.2), figures.loss(new, methods)]
        bars = figures.uploads(new, methods)
    styles = [_line_styles(axes) for figure in (plot, *page) for axes in figure.axes]
    assert list(styles[0]) == ["FedAvg", "FedBCGD", "FedBCGD+"]
    assert len(set(styles[0].values())) == 3
    assert styles == [styles[0]] * 7
    filled = {bar.get_label(): to_hex(bar.patches[0].get_facecolor()) for bar in bars.axes[0].containers}
    assert filled == {label: colour for label, (colour, _) in styles[0].items()}


def _line_styles(axes: Any) -> dict[str, tuple[str, str]]:
    """Return the colour and dash of each labelled line."""
    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    return {line.get_label(): (to_hex(line.get_color()), line.get_linestyle()) for line in lines}


def test_axes_fit_the_data_and_count_whole_rounds(folder: Path) -> None:
    methods = methods_of(read_runs([folder]))
    values = [100 * value for method in methods for value in method.first.accuracies]
    with drawing() as new:
        figure = figures.accuracy(new, methods, 0.99)
        figure.canvas.draw()
    low, high = figure.axes[0].get_ylim()
    assert high - low < 1.3 * (max(values) - min(values))
    assert all(tick == int(tick) for tick in figure.axes[0].get_xticks())
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.get_xticklabels() if text.get_text()]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.0, 60.0, [1, 2, 5, 10, 20, 50]),
        (0.01, 3.0, [0.01, 0.03, 0.1, 0.3, 1, 3]),
        (1e3, 1e9, [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9]),
        (1e-6, 1e6, [1e-6, 1e-4, 1e-2, 1e0, 1e2, 1e4, 1e6]),
    ],
)
def test_ticks_of_a_logarithmic_axis(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high, most=7) == pytest.approx(ticks)


@pytest.mark.parametrize("values", [[400.0, 9000.0], [1000.0, 3000.0], [0.5, 999.6]])
def test_ticks_below_ten_thousand_have_no_exponent(values: list[float]) -> None:
    with drawing() as new:
        figure = new(4, 3)
        axes = figure.add_subplot()
        axes.plot(values, values)
        log_scale(axes.xaxis, values)
        figure.canvas.draw()
        labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels
    assert all(re.fullmatch(r"[\d.]+", label) for label in labels), labels


def test_losses_of_zero_are_plotted(folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    quality = run.records[0].quality.model_copy(update={"loss": 0.0})
    perfect = replace(run, records=tuple(one.model_copy(update={"quality": quality}) for one in run.records))
    with drawing() as new:
        assert figures.loss(new, methods_of([perfect])) is not None


def test_a_method_has_one_colour_in_every_report() -> None:
    assert line_styles(["FedBCGD+", "Mine"])["FedBCGD+"] == line_styles(["FedAvg", "FedBCGD+"])["FedBCGD+"]
    many = line_styles([*"abcdefghijkl", "FedAvg", "SCAFFOLD"]).values()
    assert len({(style["color"], style["linestyle"]) for style in many}) == 14


def test_lines_with_the_same_dashes_have_different_colours() -> None:
    styles = list(line_styles(f"method {k}" for k in range(14)).values())
    for one, other in combinations(styles, 2):
        near = float(np.linalg.norm(np.subtract(to_rgb(one["color"]), to_rgb(other["color"]))))
        assert one["linestyle"] != other["linestyle"] or near > 0.35, (one, other)
    assert len({tuple(style.values()) for style in line_styles(map(str, range(56))).values()}) == 56


def test_figures_without_data_are_left_out(folder: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(folder / "fedbcgd", tmp_path / "bare")
    (bare / "partition.json").unlink()
    lines = [json.loads(line) for line in (bare / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["blocks"]["movement"] = []
        del line["blocks"]["server_norms"]
    (bare / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert report(bare).exit_code == 0
    found = re.findall(r'<figure id="(\w+)">', (bare / "report.html").read_text())
    assert found == ["accuracy", "loss", "stages", "drift", "upload"]


@pytest.mark.parametrize("clients", [1, 7, 11, 20, 100])
def test_clients_are_numbered_at_equal_distances(clients: int) -> None:
    with drawing() as new:
        axes = new(4, 3).add_subplot()
        label_map(axes, np.ones((clients, 3), dtype=np.int64), range(clients), clients)
        ticks = axes.get_xticks().tolist()
        assert [label.get_text() for label in axes.get_xticklabels()] == [str(tick) for tick in ticks]
    assert len({after - before for before, after in pairwise(ticks)}) <= 1
    assert len(ticks) == clients if clients <= 11 else 6 <= len(ticks) <= 11


def test_a_partition_shows_the_names_of_the_clients(folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    assert run.partition is not None
    names = tuple(f"hospital number {k:02d}" if k else "H" for k in range(run.partition.clients))
    with drawing() as new:
        figure = figures.partitions(new, [replace(run, partition=run.partition.model_copy(update={"names": names}))])
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()][:2] == ["H", "hospital nu…"]


def test_a_partition_names_its_runs(folder: Path) -> None:
    runs = read_runs([folder])
    assert runs[0].partition is not None
    other = runs[0].partition.model_copy(update={"dataset": "others"})
    last = replace(runs[-1], partition=other)
    with drawing() as new:
        one = figures.partitions(new, runs)
        two = figures.partitions(new, [*runs[:-1], last])
        many = figures.partitions(new, [*runs, runs[0], last])
    assert one is not None
    assert two is not None
    assert many is not None
    titles = [[axes.get_title(loc="left") for axes in figure.axes[::2]] for figure in (one, two, many)]
    assert titles == [
        ["digits"],
        ["digits (FedAvg, FedBCGD)", "others (FedBCGD+)"],
        ["digits (FedAvg and 3 more)", "others (FedBCGD+)"],
    ]
