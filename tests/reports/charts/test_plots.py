"""Every plot draws, says its units and sources, and says what it lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import synthetic
from steptime.analysis import analyses
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.records.data import Data
from steptime.records.record import Quantity, Record
from steptime.reports.charts import EmptyPlotError, draw
from steptime.reports.charts.style import config, log_number, log_ticks
from steptime.reports.files import FORMATS, save

pytestmark = pytest.mark.slow

PLOTS = (*analyses.PLOTS, "roofline")
RECORDS = synthetic.sweep(ops=True, failures=True)
UNITS = ("(s)", "(FLOP/s)", "(byte)", "(examples)", "(examples/s)", "(FLOP per byte", "devices")


def axis_titles(spec: Any) -> Iterator[str]:
    if isinstance(spec, dict):
        title = spec["axis"].get("title") if isinstance(spec.get("axis"), dict) else None
        if title:
            yield title
        for value in spec.values():
            yield from axis_titles(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from axis_titles(value)


@pytest.mark.parametrize("kind", PLOTS)
def test_every_plot_is_a_picture_with_units_and_sources(kind, tmp_path):
    spec = draw(kind, RECORDS)
    titles = set(axis_titles(spec))
    assert titles
    assert all(any(unit in title for unit in UNITS) for title in titles), titles
    caption = " ".join(spec["title"]["subtitle"])
    assert "roofline 1" in caption or "torch 2.13.0" in caption
    assert synthetic.PLATFORM in caption
    json.dumps(spec, allow_nan=False)
    save(spec, tmp_path / "x.png")
    save(spec, tmp_path / "x.svg")
    assert (tmp_path / "x.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    svg = (tmp_path / "x.svg").read_text()
    assert svg.startswith("<svg")
    assert spec["title"]["text"] in svg
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["x.png", "x.svg"]


def test_the_other_formats_and_a_wrong_one(tmp_path):
    spec = draw("memory", RECORDS)
    save(spec, tmp_path / "x.pdf")
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")
    save(spec, tmp_path / "x.html")
    assert "<script" in (tmp_path / "x.html").read_text()
    assert set(FORMATS) == {".png", ".svg", ".pdf", ".html"}
    with pytest.raises(InputError, match=r"unknown picture format '\.jpg'"):
        save(spec, tmp_path / "x.jpg")
    with pytest.raises(InputError, match="does not exist"):
        save(spec, tmp_path / "absent" / "x.png")
    with pytest.raises(InputError, match="did you mean 'roofline'"):
        draw("rofline", RECORDS)


LACKING = {
    "roofline": [synthetic.measured(synthetic.workloads()[0])],
    "ops": synthetic.predicted(synthetic.workloads()[0]),
    "predicted": [synthetic.measured(synthetic.workloads()[0])],
    "throughput": synthetic.predicted(synthetic.workloads()[0]),
    "memory": [synthetic.failed(synthetic.workloads()[0], "oom", "killed", "")],
    "samples": synthetic.predicted(synthetic.workloads()[0]),
    "devices": synthetic.predicted(synthetic.workloads()[0]),
}


@pytest.mark.parametrize("kind", PLOTS)
def test_a_plot_without_its_data_says_what_it_lacks(kind):
    with pytest.raises(EmptyPlotError, match=f"^{kind}: no "):
        draw(kind, LACKING[kind])


def only(records: list[Record], origin: str) -> list[Record]:
    return [record for record in records if record.origin == origin]


@pytest.mark.parametrize(
    ("kind", "origin"),
    [
        ("roofline", "predicted"),
        ("memory", "measured"),
        ("memory", "predicted"),
        ("throughput", "measured"),
    ],
)
def test_one_side_alone_is_drawn(kind, origin, tmp_path):
    save(draw(kind, only(RECORDS, origin)), tmp_path / "x.svg")


def test_two_platforms_and_dtypes_share_a_roofline(tmp_path):
    first = synthetic.predicted(synthetic.workloads()[0])[0]
    method = replace(first.method, options={**first.method.options, "peak_flop_per_s": 989e12})
    other = replace(
        first,
        platform="h100-sxm5",
        method=method,
        workload=replace(first.workload, dtype="bfloat16"),
    )
    spec = draw("roofline", [first, other])
    rows = [row for row in spec["data"]["values"] if "peak" in row]
    assert {(row["platform"], row["peak"]) for row in rows} == {  # the legend tells platforms
        ("h100-sxm5", "matrix bfloat16 989 TFLOP/s"),
        (synthetic.PLATFORM, "matrix float32 204 GFLOP/s"),
    }
    save(spec, tmp_path / "x.svg")


def test_ops_that_cost_the_same_are_one_point_and_shares_add_up():
    workload = synthetic.workloads()[0]
    ops = [record for record in synthetic.predicted(workload, ops=True) if record.scope]
    twins = [replace(ops[0], scope="twin"), *ops]
    spec = draw("ops", twins)
    points = [row for row in spec["data"]["values"] if "ops_alike" in row]
    assert sum(point["ops_alike"] for point in points) == 41 - 4  # 4 of 40 have no FLOP
    assert max(point["ops_alike"] for point in points) == 2
    idle = sum(op.quantities["step_s"].value or 0 for op in ops if not op.quantities["flop"].value)
    total = sum(op.quantities["step_s"].value or 0 for op in twins)
    assert sum(point["share"] for point in points) == pytest.approx(1 - idle / total, rel=1e-4)


@pytest.mark.parametrize("kind", PLOTS)
def test_many_networks_still_make_a_plot_of_bounded_size(kind):
    many = []
    for index in range(150):
        workload = replace(synthetic.workloads()[0], params={"layers": 4, "nodes": 8 + index})
        many += [*synthetic.predicted(workload, ops=kind == "ops"), synthetic.measured(workload)]
    assert len(json.dumps(draw(kind, many))) < 1_000_000


def test_every_bar_has_its_name_in_the_order_of_recording(tmp_path):
    first, many = synthetic.workloads()[0], []
    for batch in range(1, 25):
        many += synthetic.predicted(replace(first, batch_per_replica=batch), ops=True)
    spec = draw("breakdown", many)
    bars = dict.fromkeys(row["bar"] for row in spec["data"]["values"])
    assert [*bars] == [f"fc batch {batch}" for batch in range(1, 25)]
    save(spec, tmp_path / "x.svg")
    svg = (tmp_path / "x.svg").read_text()
    names = re.findall(r"<text([^>]*)>[^<]*batch \d+</text>", svg)
    assert (len(names), [one for one in names if 'opacity="0"' in one]) == (24, [])


def test_ticks_are_round_and_inside():
    assert log_ticks(0.8e-3, 1.2) == [1e-3, 1e-2, 1e-1, 1.0]
    assert log_ticks(0.9, 9.0) == [1.0, 2.0, 5.0]
    assert log_ticks(3.1, 6.5) == [4.0, 5.0, 6.0]
    assert log_ticks(1.01, 1.02) == [1.01, 1.015, 1.02]
    assert log_ticks(0.98, 1.04) == [0.98, 1.0, 1.02, 1.04]
    alone = log_number("bytes", [639e3, 639e3], "memory")  # no length without a domain
    assert alone["scale"]["domain"] == pytest.approx([639e3 / 1.2, 639e3 * 1.2])
    assert alone["axis"]["values"] == [5.5e5, 6e5, 6.5e5, 7e5, 7.5e5]


@pytest.mark.parametrize("factor", [0.999, 1.02, 1.3, 2.0, 50.0])
def test_an_axis_of_speed_ups_has_ticks_enough(factor):
    records = [synthetic.measured(workload) for workload in synthetic.workloads()]
    faster = [
        replace(
            record,
            platform="t4",
            quantities={
                "step_s": Quantity(
                    samples=tuple(n / factor for n in record.quantities["step_s"].samples)
                )
            },
        )
        for record in records
    ]
    spec = draw("speedup", [*records, *faster])
    axes = [
        layer["encoding"][side]["axis"]["values"]
        for view in spec["vconcat"]
        for layer in view["layer"]
        for side in "xy"
        if layer["encoding"].get(side, {}).get("title") == "speed-up"
        or layer["encoding"].get(side, {}).get("axis", {}).get("title") == "speed-up"
    ]
    assert axes
    assert min(map(len, axes)) >= 3


def test_the_legend_of_sensitivity_is_that_of_all_its_panels():
    records = [synthetic.measured(workload) for workload in synthetic.workloads()]
    weights, curves = draw("sensitivity", records)["vconcat"]
    colours = [
        layer["encoding"]["color"]["scale"]["domain"]
        for view in (weights, curves)
        for layer in view["spec"].get("layer", [view["spec"]])
        if "color" in layer["encoding"]
    ]
    assert len(colours) > 1
    assert all(domain == colours[0] for domain in colours)
    shown = {row["of"] for view in (weights, curves) for row in view["data"]["values"]}
    assert shown == {*colours[0]}


def test_a_roofline_of_devices_alone_names_them():
    one = analyses.analysis("roofline")
    titles = [
        one.draw(one.answer(Data.from_records([]), device=device))["title"]["text"]
        for device in ("t4", "t4,h100")
    ]
    assert titles == ["Roofline of t4", "Rooflines of t4, h100-sxm5"]


def on_gpus(*gpus: str) -> list[Record]:
    """Return two batches of a network measured on each of the types of GPU of a cluster."""
    found = []
    for gpu in gpus:
        for workload in synthetic.workloads()[:2]:
            one = synthetic.measured(workload, seed=gpu)
            options = {**one.method.options, "gpu": gpu}
            found.append(replace(one, method=replace(one.method, options=options)))
    return found


def test_each_type_of_gpu_has_a_line_of_its_own():
    points = draw("throughput", on_gpus("p100", "v100", "a100"))["data"]["values"]
    assert len(points) == 6
    lines = [point["line"] for point in points]
    assert {lines.count(line) for line in lines} == {2}  # two batches on a line
    assert {line.split(", ")[-1] for line in lines} == {"p100", "v100", "a100"}


def test_predictions_of_two_devices_have_two_colours():
    found = RECORDS + [replace(record, platform="h100-sxm5") for record in RECORDS]
    for kind in ("predicted", "memory"):
        marks = draw(kind, found)["layer"][-1]["encoding"]
        assert marks["color"]["field"] == "platform"
        assert marks["color"]["scale"]["domain"] == [synthetic.PLATFORM, "h100-sxm5"]


def devices_of(counts: tuple[int, ...], networks: int) -> list[Record]:
    """Return measurements of networks on several numbers of devices."""
    found = []
    for index in range(networks):
        for count in counts:
            workload = synthetic.workloads()[0]
            params = {**workload.params, "nodes": 8 + index}
            plan = replace(workload.plan, data=count)
            found.append(synthetic.measured(replace(workload, params=params, plan=plan)))
    return found


def test_numbers_of_devices_stand_in_panels_with_the_same_axes():
    spec = draw("devices", devices_of((1, 2, 4), 30))
    assert spec["columns"] == 3
    assert "resolve" not in spec  # Vega-Lite shares the scales of panels
    panels = {row["panel"] for row in spec["data"]["values"]}
    assert len(panels) == 24  # eight rows of 110 pixels
    assert spec["spec"]["height"] == 110
    assert "Not shown: 6 more; --model chooses." in spec["title"]["subtitle"]
    alone = draw("devices", [*devices_of((1, 2), 1), *devices_of((1,), 3)[1:]])
    found = [row["devices"] for row in alone["data"]["values"]]
    assert found == [1, 2, 1, 1]  # what compares comes first


def test_dark_charts_have_light_words_and_no_ink_of_their_own(tmp_path):
    light, dark = config(), config(dark=True)
    assert light["axis"]["labelColor"] == "#222222"
    assert dark["axis"]["labelColor"] == "#E6E6E6"
    assert dark["background"] == "#15181C"
    for kind in PLOTS:
        spec = draw(kind, RECORDS)
        assert spec.pop("config") == light
        assert "#" not in json.dumps({**spec, "data": None, "$schema": None}), kind
