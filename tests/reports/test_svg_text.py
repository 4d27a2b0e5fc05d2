"""Texts of SVG pictures fit into the pictures, whatever font their reader has."""

from __future__ import annotations

import re

import pytest
import vl_convert

from steptime.reports.charts import style
from steptime.reports.svg_text import measure_text, state_text_lengths

SVG = (
    '<text font-size="12px" font-weight="bold">a &lt; b</text>'
    '<text font-size="10px"><tspan>ii</tspan><tspan x="0" dy="14">mm</tspan></text>'
    '<text font-size="10px"></text>'
)


def test_each_text_and_each_line_states_its_width():
    lengths = re.findall(r'textLength="([\d.]+)"', state_text_lengths(SVG))
    bold = 12 * (556 + 278 + 584 + 278 + 611) / 1000
    assert [float(length) for length in lengths] == pytest.approx(
        [bold, 10 * 0.444, 10 * 1.666], abs=0.05
    )


@pytest.mark.parametrize("is_bold", [False, True])
@pytest.mark.parametrize("text", ["transformer on t4", "WWWWWW", "12.5 GFLOP/s", "(ijl|!)"])
def test_widths_are_those_by_which_pictures_are_laid_out(text, is_bold):
    def width_of_picture(label: str) -> float:
        spec = {
            "$schema": style.SCHEMA,
            "data": {"values": [{"name": label, "x": 1}]},
            "mark": "point",
            "encoding": {
                "x": {"field": "x", "type": "quantitative"},
                "color": {"field": "name", "type": "nominal", "legend": {"title": None}},
            },
            "config": style.config()
            | {
                "legend": {
                    "labelFontSize": 100,
                    "labelLimit": 0,
                    "labelFontWeight": "bold" if is_bold else "normal",
                }
            },
        }
        svg = vl_convert.vegalite_to_svg(spec)
        return float(re.search(r'<svg[^>]* width="([\d.]+)"', svg)[1])  # type: ignore[index]

    added = width_of_picture(f"{text}{text}") - width_of_picture(text)
    assert added == pytest.approx(measure_text(text, 100, is_bold=is_bold), rel=0.02)
