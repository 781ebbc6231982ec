"""The few shapes that our panels have, on top of Grafana's own typed builders."""

from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
OURS = '{run=~"$run", algorithm=~"$algorithm"}'
"""The runs that are chosen at the top of a dashboard."""


RATE = "$__rate_interval"
"""What Grafana puts in place of this is long enough for every scrape interval."""


class Query(NamedTuple):
    """An expression, and what its series are called."""

    expr: str
    legend: str = "{{run}}"


class Step(NamedTuple):
    """From this value on, this colour."""

    value: float
    colour: str


def ours(metric: str) -> str:
    """A metric of the chosen runs."""
    return f"raybcgd_{metric}{OURS}"


def page(uid: str, title: str, description: str, rows: Sequence[tuple[str, Sequence[Any]]]) -> models.Dashboard:
    """A dashboard of titled rows of panels, with the runs and methods to choose from."""
    builder = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["raybcgd"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_choice("algorithm", "Method", "label_values(raybcgd_round, algorithm)"))
        .with_variable(_choice("run", "Run", 'label_values(raybcgd_round{algorithm=~"$algorithm"}, run)'))
        .link(
            dashboard.DashboardLink("raybcgd")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["raybcgd"])
            .keep_time(True)
            .include_vars(True)
        )
    )
    number = 0
    for heading, panels in rows:
        number += 1
        builder = builder.with_row(dashboard.Row(heading).id(number))
        for panel in panels:
            number += 1
            builder = builder.with_panel(panel.id(number))
    return builder.build()


def _choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(text="All", value="$__all", selected=True))
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_DESC)
    )


def _target(
    query: Query, name: str = "A", style: PromQueryFormat = PromQueryFormat.TIME_SERIES
) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(name).expr(query.expr).legend_format(query.legend).format(style).range()


def _thresholds(steps: Sequence[Step], base: str) -> dashboard.ThresholdsConfig:
    first = models.Threshold(value=None, color=base)
    rest = [models.Threshold(value=step.value, color=step.colour) for step in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps([first, *rest])


def number(
    title: str, description: str, unit: str, query: Query, steps: Sequence[Step] = (), base: str = "blue"
) -> stat.Panel:
    """The latest value, large."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(4)
        .height(4)
        .thresholds(_thresholds(steps, base))
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_target(query))
    )


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    stacked: bool = False,
    steps: Sequence[Step] = (),
    span: int = 8,
) -> timeseries.Panel:
    """Lines over time."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(8)
        .line_width(2)
        .fill_opacity(40 if stacked else 0)
        .span_nulls(True)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
        .thresholds(_thresholds(steps, "transparent" if steps else "green"))
    )
    if steps:
        panel = panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
        )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    for name, query in zip(ascii_uppercase, queries, strict=False):
        panel = panel.with_target(_target(query, name))
    return panel.override_by_name("target", [models.DynamicConfigValue("custom.lineStyle", {"fill": "dash"})])


def heat(title: str, description: str, unit: str, query: Query, buckets: bool = False, span: int = 12) -> heatmap.Panel:
    """A row a block (or a bucket of a histogram), and the value as the shade: viridis, which everybody can read."""
    style = PromQueryFormat.HEATMAP if buckets else PromQueryFormat.TIME_SERIES
    colours = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_models.HeatmapColorMode.SCHEME)
        .scheme("Viridis")
        .scale(heatmap_models.HeatmapColorScale.LINEAR)
        .steps(64)
    )
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(8)
        .calculate(False)
        .color(colours)
        .y_axis(heatmap.YAxisConfig().unit(unit if buckets else "none"))
        .with_target(_target(query, style=style))
    )


def rate(metric: str, by: str = "run") -> str:
    """By how much a counter of the chosen runs grows in a second."""
    return f"sum by ({by}) (rate({ours(metric)}[{RATE}]))"


def block_heat(title: str, description: str, metric: str) -> heatmap.Panel:
    """A metric by block, as the mean of the chosen runs."""
    return heat(title, description, "none", Query(f"avg by (block) ({ours(metric)})", "{{block}}"))
