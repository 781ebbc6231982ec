"""Panel types of the dashboards, built with the Grafana Foundation SDK."""

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
SELECTION = '{run=~"$run", algorithm=~"$algorithm"}'
"""The runs selected at the top of a dashboard."""
RATE = "$__rate_interval"
"""Grafana replaces this with a window that is long enough for the scrape interval."""
Panels = Sequence[Any]
P = TypeVar("P", stat.Panel, timeseries.Panel, heatmap.Panel)


class Query(NamedTuple):
    """A PromQL expression and the legend of its series. Every raybcgd metric in it is filtered by the selected runs."""

    expr: str
    legend: str = "{{run}}"


class Step(NamedTuple):
    """A threshold, and the colour of values above it."""

    value: float
    colour: str


def rate(metric: str, by: str = "run") -> str:
    """Return the rate of a counter per second."""
    return f"sum by ({by}) (rate({metric}[{RATE}]))"


def page(uid: str, title: str, description: str, rows: Mapping[str, Panels]) -> models.Dashboard:
    """Return a dashboard with titled rows of panels and selectors for method and run."""
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
    panel_id = 0
    for heading, panels in rows.items():
        panel_id += 1
        builder = builder.with_row(dashboard.Row(heading).id(panel_id))
        for panel in panels:
            panel_id += 1
            builder = builder.with_panel(panel.id(panel_id))
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
    query: str | Query, name: str = "A", style: PromQueryFormat = PromQueryFormat.TIME_SERIES
) -> prometheus.Dataquery:
    expr, legend = Query(query) if isinstance(query, str) else query
    expr = re.sub(r"\braybcgd_\w+", rf"\g<0>{SELECTION}", expr)
    return prometheus.Dataquery().ref_id(name).expr(expr).legend_format(legend).format(style).range()


def _thresholds(steps: Sequence[Step], base: str) -> dashboard.ThresholdsConfig:
    first = models.Threshold(value=None, color=base)
    rest = [models.Threshold(value=step.value, color=step.colour) for step in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps([first, *rest])


def _described(panel: P, title: str, description: str, unit: str, span: int) -> P:
    return panel.title(title).description(description).datasource(SOURCE).unit(unit).span(span)


def number(
    title: str, description: str, unit: str, query: str, steps: Sequence[Step] = (), base: str = "blue"
) -> stat.Panel:
    """Return a panel with the last value."""
    return (
        _described(stat.Panel(), title, description, unit, span=4)
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
    *queries: str | Query,
    stacked: bool = False,
    steps: Sequence[Step] = (),
    span: int = 8,
) -> timeseries.Panel:
    """Return a panel with lines over time."""
    panel = (
        _described(timeseries.Panel(), title, description, unit, span)
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


def heat_map(
    title: str, description: str, unit: str, query: Query, buckets: bool = False, span: int = 12
) -> heatmap.Panel:
    """Return a heat map with one row per block or per histogram bucket, in colours safe for colour-blind readers."""
    style = PromQueryFormat.HEATMAP if buckets else PromQueryFormat.TIME_SERIES
    colours = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_models.HeatmapColorMode.SCHEME)
        .scheme("Viridis")
        .scale(heatmap_models.HeatmapColorScale.LINEAR)
        .steps(64)
    )
    return (
        _described(heatmap.Panel(), title, description, unit, span)
        .height(8)
        .calculate(False)
        .color(colours)
        .y_axis(heatmap.YAxisConfig().unit(unit if buckets else "none"))
        .with_target(_target(query, style=style))
    )


def block_heat_map(title: str, description: str, metric: str) -> heatmap.Panel:
    """Return a heat map of a metric by block, averaged over the selected runs."""
    return heat_map(title, description, "none", Query(f"avg by (block) ({metric})", "{{block}}"))
