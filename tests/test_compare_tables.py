"""The table and the plot of a comparison: seeds, the target, and centralised training."""

from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import Standing, over_seeds, standing
from raybcgd.report.html_tables import _reduction
from raybcgd.report.plots import headline, upload_figure
from raybcgd.report.style import drawing
from raybcgd.report.tables import comparison_markdown, comparison_table
from tests.test_compare import THREE, records


def lines_of(target: float, *runs: tuple[RoundRecord, ...], ended_by: str | None = None) -> Standing:
    """Return the row of a method with these runs. The first one was `ended_by` a limit."""
    rows = {}
    for seed, run in enumerate(runs):
        values = [record.quality.accuracy or 0.0 for record in run]
        summary = {"algorithm": "x", "rounds": len(run), "final_accuracy": values[-1], "best_accuracy": max(values)}
        summary |= {"last_tenth_accuracy": values[-1], "upload_d_total": 1.0, "upload_floats": 1, "upload_bytes": 4}
        for record in run:
            record.traffic.__dict__.update(upload_floats=1, upload_bytes=4)
        summary["ended_by"] = None if seed else ended_by
        rows[seed] = standing("A", "", run, {**summary, "seconds": 1.0, "round_seconds_median": 0.25}, target)
    return over_seeds(rows)


def test_some_seeds_that_reach_the_target_are_not_never() -> None:
    line = lines_of(0.9, records(1, 0.1, 0.9), records(1, 0.2, 0.95), records(1, 0.1, 0.2))
    assert line.reached == 2
    text = comparison_markdown([line], 0.9)
    assert "| 2 of 3 seeds | - |" in text
    assert "never" not in text
    assert "2 of 3 seeds: only these reach 90 %, so there is no mean." in text
    with drawing() as new:
        runs = [records(1, 0.1, 0.9), records(1, 0.2, 0.95), records(1, 0.1, 0.2)]
        figure = upload_figure(new, {"A": runs, "B": [runs[2]] * 3}, 0.9, "x")
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["A: only 2 of 3 seeds", "B: never"]


def test_the_star_agrees_with_the_accuracy_that_the_table_shows() -> None:
    """One seed ends below the target, but the mean does not."""
    above = comparison_markdown([lines_of(0.9, records(1, 0.95, 0.98), records(1, 0.95, 0.88))], 0.9)
    below = comparison_markdown([lines_of(0.9, records(1, 0.95, 0.88), records(1, 0.95, 0.89))], 0.9)
    assert "*" not in above
    assert "| 1.0* |" in below
    assert "* 90 % is reached, but the mean of the last tenth is below it." in below


def test_the_plot_has_the_star_of_the_table_and_the_methods_that_failed() -> None:
    runs = {"A": [records(1, 0.95, 0.88), records(1, 0.95, 0.89)], "B": [records(1, 0.95, 0.98)] * 2}
    with drawing() as new:
        figure = upload_figure(new, runs, 0.9, "x", failed=["C"])
        plain = upload_figure(new, {"B": runs["B"]}, 0.9, "x")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A: 1.0 d*", "B: 1.0 d", "C: failed"]
    note = "*: the mean of the last tenth is below 90 %"
    assert note in figure.axes[0].get_title(loc="left").replace("\n", " ")
    assert note not in plain.axes[0].get_title(loc="left").replace("\n", " ")


def test_means_over_seeds_have_one_decimal_and_the_deviation_is_explained() -> None:
    two = comparison_markdown([lines_of(0.9, records(1, 0.1, 0.9), records(1, 0.1, 0.2, 0.9))], 0.9)
    assert "| 2.5 | 2.5 | 0.250 |" in two  # d and rounds to the target, and seconds per round
    assert "± is one standard deviation over the seeds." in two
    one = comparison_markdown([lines_of(0.9, records(1, 0.1, 0.9))], 0.9)
    assert "| 2.0 | 2 |" in one
    assert "±" not in one


def test_equal_uploads_are_equally_bold_and_centralised_training_has_none() -> None:
    first, second = (lines_of(0.9, records(d, 0.1, 0.9)) for d in (1.0, 1.02))
    other = lines_of(0.9, records(0.1, 0.9))._replace(label="Centralised SGD", pooled=True)
    table = comparison_table([first, second, other], 0.9, 200)
    assert [row.style for row in table.rows] == ["bold", "bold", None]
    assert str(table.caption).startswith("Centralised SGD: the data is in one place")
    row = next(line for line in comparison_markdown([other, first], 0.9).splitlines() if "Centralised" in line)
    assert row.split(" | ")[3:7] == ["-", "-", "-", "1"]


def test_the_plot_marks_equal_uploads_with_rings_and_centralised_training_with_a_level() -> None:
    runs = {"FedAvg": [records(1, 0.1, 0.9)], "B": [records(1, 0.2, 0.9)], "Centralised SGD": [records(1, 0.8, 0.95)]}
    with drawing() as new:
        figure = upload_figure(new, runs, 0.9, "x", ["Centralised SGD"])
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert [dot.get_xydata().tolist() for dot in dots] == [[[2.0, 90.0]]] * 2
    assert dots[0].get_markersize() > dots[1].get_markersize()
    assert "dots: upload after the first round with 90 %" in figure.axes[0].get_title(loc="left").replace("\n", " ")
    level = next(line for line in figure.axes[0].lines if line.get_label() == "Centralised SGD")
    assert level.get_ydata() == [95.0, 95.0]
    assert "Centralised SGD: no upload" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_centralised_training_saves_no_upload_in_a_title() -> None:
    methods = {"FedAvg": THREE, "SGD": [records(0.5, 0.9)] * 3}
    assert "reaches 90 %" in headline(methods, 0.9)
    assert headline(methods, 0.9, ["SGD"]) == "Accuracy and upload of FedAvg and SGD"


def test_the_table_says_which_runs_ended_early() -> None:
    limit = "budget.target_accuracy = 0.9, which is reached"
    ended, whole = lines_of(0.9, *THREE, ended_by=limit), lines_of(0.9, *THREE)._replace(label="B")
    note = f"Ended early: A ({limit})."
    assert lines_of(0.9, THREE[0], ended_by=limit).ended_by == ended.ended_by == (limit,)
    assert note in comparison_markdown([ended, whole], 0.9)
    assert note in str(comparison_table([ended, whole], 0.9, 200).caption)
    assert "Ended early" not in comparison_markdown([whole], 0.9)


def test_the_reduction_on_the_page_is_the_number_in_the_title() -> None:
    """Both count up to the first round with the target, and divide means: 11 / 4, not the mean of 4, 4 and 3 / 2."""
    other = [*[records(1, 0.9, 0.1, 0.9)] * 2, records(1, 0.1, 0.9)]
    assert "with 2.8 ± 1.4 times less upload" in headline({"FedAvg": THREE, "B": other}, 0.9)
    reference, line = lines_of(0.9, *THREE), lines_of(0.9, *other)
    assert _reduction(line, reference, 0.9).text.rstrip("*") == "2.75\N{MULTIPLICATION SIGN}"
