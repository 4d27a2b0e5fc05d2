"""Weights of hyperparameters with their intervals, and what each level of one changes."""

from collections.abc import Sequence

from steptime.core.tables.table import Table
from steptime.core.units import format_count
from steptime.reports.charts import EmptyPlotError, style
from steptime.reports.charts.heatmap import describe_quantity

PLACE = ("family", "platform", "method")
MAX_TERMS = 16  # of a panel, the largest
NUMBERS = ("weight", "low", "high")
PANEL_WIDTH, CURVE_WIDTH = 250, 190  # pixels


def chart(table: Table) -> style.Spec:
    """Draw weights as dots with whiskers, the largest first, above the effect of each level.

    Raises:
        EmptyPlotError: where nothing varies.
    """
    # The summary is itself the first regression; `others` are those of other platforms or methods.
    regressions = [table.summary, *table.summary["others"]][: style.MAX_PANELS]
    names = _name_regressions(regressions)
    points, curves = [], []
    for name, regression in zip(names, regressions, strict=True):
        points += _make_weight_points(table, name, regression)
        curves += [{**row, "of": name} for row in regression["curves"]]
    if not points:
        raise EmptyPlotError("sensitivity: no hyperparameter varies")
    # Weights and curves share colours, so that one legend is right for both.
    regression_encoding = style.encode_categories("of", [*points, *curves], style.NO_TITLE)
    views = [_draw_weights(points, regression_encoding)]
    if curves:
        views.append(_draw_curves(curves, regression_encoding))
    title = f"Sensitivity of {_describe_response(table)}"
    return style.finish(title, _describe_chart(table), [], vconcat=views, spacing=30)


def _describe_response(table: Table) -> str:
    """Return the quantity that the weights explain, or the ratio of two platforms' quantities."""
    summary = table.summary
    quantity = describe_quantity(summary["quantity"])
    if summary["against"]:
        quantity += f", {summary['platform']} over {summary['against']}"
    return quantity


def _describe_chart(table: Table) -> list[str]:
    """Return the caption: how the weights were fitted, and what has none."""
    summary = table.summary
    # `order` of the regression: 1, or 2 with squares and products of hyperparameters.
    fit = f"Order {summary['order']}, {summary['scale']} scale."
    caption = [f"Whiskers: 95 %; hollow: may be 0. {fit}"]
    constant = ", ".join(summary["never_varies"])
    if constant:
        caption.append(f"Never varies, so without a weight: {constant}.")
    return [*caption, table.source]


def _name_regressions(regressions: Sequence[style.Row]) -> list[str]:
    """Return the name of each regression: by what they differ, or else by its family."""
    differing = [name for name in PLACE if len({row[name] for row in regressions}) > 1]
    return [
        " on ".join(str(regression[name]) for name in differing) or str(regression["family"])
        for regression in regressions
    ]


def _make_weight_points(table: Table, name: str, regression: style.Row) -> list[style.Row]:
    """Return the points of the largest weights of a regression."""
    size = f"{format_count(regression['networks'], 'network')}, R\u00b2\u00a0{regression['r2']:.3f}"
    panel = style.wrap_panel_name(f"{name}, {size}", PANEL_WIDTH)
    rows = [
        row
        for row in table.rows
        if row["weight"] and all(row[key] == regression[key] for key in PLACE)
    ]
    return [{"panel": panel, **_make_weight_point(dict(row), name)} for row in rows[:MAX_TERMS]]


def _make_weight_point(row: style.Row, regression_name: str) -> style.Row:
    """Return the point of a weight, `unsure` if the weight may be 0."""
    low, high = row["low"], row["high"]
    has_interval = low is not None and high is not None
    is_sure = has_interval and (low > 0 or high < 0)  # the interval leaves out 0
    term = row["hyperparameter"]
    place = {"term": term, "at": f"{regression_name}|{term}", "of": regression_name}
    numbers = {key: row[key] for key in NUMBERS}
    return numbers | place | {"sure" if is_sure else "unsure": True}


def _draw_weights(points: list[style.Row], regression_encoding: style.Spec) -> style.Spec:
    """Return a panel for each regression, with weights in their order."""
    layers = _weight_layers(points, regression_encoding)
    panel: style.Spec = {"layer": layers, "height": {"step": 24}}
    names = list(dict.fromkeys(point["panel"] for point in points))
    if len(names) == 1:
        title = {"text": names[0].replace("|", " "), "fontSize": 12, "frame": "group", "offset": 6}
        return {**panel, "width": PANEL_WIDTH * 2, "title": title, "data": {"values": points}}
    rows, view = style.facet_panels(points, "panel", panel, columns=2, gap=120, width=PANEL_WIDTH)
    view["resolve"] = {"scale": {"y": "independent"}}
    return {**view, "data": {"values": rows}}


def _weight_layers(
    points: Sequence[style.Row], regression_encoding: style.Spec
) -> list[style.Spec]:
    """Return a rule at 0, whiskers, filled dots of sure weights and hollow ones of unsure."""
    x = style.encode_number("weight", "weight (standard deviations)")
    y = _encode_terms(points)
    layers = [style.layer("rule", {"x": {"datum": 0}}, style="quiet")]
    if any(point["low"] is not None for point in points):
        whisker = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y}
        look: style.Spec = {"style": "ink", "strokeWidth": 1.6}
        layers.append(style.layer("rule", whisker, needed_fields=("low",), **look))
    dot = {"x": x, "y": y, **regression_encoding, "tooltip": style.tooltip(("term", *NUMBERS))}
    for field in ("sure", "unsure"):
        if any(field in point for point in points):
            is_sure = field == "sure"
            layers.append(style.layer("point", dot, needed_fields=(field,), filled=is_sure))
    return layers


def _encode_terms(points: Sequence[style.Row]) -> style.Spec:
    """Return the axis of the terms; `at` is `regression|term`, and the label the term alone.

    So each panel has an order of its own.
    """
    longest = max(len(point["term"]) for point in points)
    min_extent = style.CHARACTER_WIDTH * longest
    axis = {"title": None, "labelExpr": "split(datum.label, '|')[1]", "minExtent": min_extent}
    return style.encode_name("at", sort=None, axis=axis)


def _draw_curves(curves: list[style.Row], regression_encoding: style.Spec) -> style.Spec:
    """Return a panel for each hyperparameter: the ratio to its least level, all else equal."""
    title = "ratio to smallest level"
    ratios = [row["ratio"] for row in curves]
    is_wide = max(ratios) > 5 * min(ratios)
    if is_wide:
        y = style.encode_log_number("ratio", ratios, title)
    else:
        y = style.encode_number("ratio", title) | {"scale": {"zero": False}}
    encoding = {
        "x": {"field": "level", "type": "ordinal", "axis": {"title": None, "labelAngle": 0}},
        "y": y,
        **regression_encoding,
        "tooltip": style.tooltip(("hyperparameter", "level", "ratio", "pairs")),
    }
    panel = {"mark": {"type": "line", "point": True}, "encoding": encoding}
    rows, view = style.facet_panels(
        curves, "hyperparameter", panel, 3, width=CURVE_WIDTH, height=130
    )
    has_panels = "facet" in view
    if has_panels:  # each hyperparameter has levels of its own
        view["resolve"] = {"scale": {"x": "independent"}}
    return {**view, "data": {"values": rows}}
