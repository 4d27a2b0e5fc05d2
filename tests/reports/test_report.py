"""The report: one file, nothing fetched, nothing hidden, everything escaped."""

from __future__ import annotations

import gzip
import json
import math
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import synthetic
from steptime.analysis import analyses
from steptime.analysis.headline import (
    LargeErrors,
    ResultsSummary,
    describe_results,
    summarise_results,
)
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.records import store
from steptime.records.data import Data
from steptime.records.record import Quantity, Record, to_utc
from steptime.reports import templating, write_report
from steptime.reports.page import page
from steptime.reports.sources import describe_sources, format_time

pytestmark = pytest.mark.slow

PLOTS = (*analyses.PLOTS, "roofline")
EVIL = "</script><img src=x onerror=alert(1)><b>&amp;"


class Page(HTMLParser):
    """What a browser would see: tags with their attributes, and text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.json: dict[str, str] = {}
        self._open = ""
        self._script = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._open = tag
            self._script = dict(attrs).get("id") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open:
            self._open = ""

    def handle_data(self, data: str) -> None:
        if not self._open:
            self.text += data
        elif self._script:
            self.json[self._script] = self.json.get(self._script, "") + data

    @property
    def report(self) -> dict[str, Any]:
        """What the page's script makes the table, the charts and the details from."""
        found: dict[str, Any] = json.loads(gzip.decompress(b64decode(self.json["report"])))
        return found

    @property
    def columns(self) -> dict[str, list[str]]:
        return {one["heading"]: one["cells"] for one in self.report["columns"]}


def on(record: Record, host: str = "", **options: object) -> Record:
    """Return a record as if measured with other options, on another host."""
    method = replace(record.method, options={**record.method.options, **options})
    return replace(record, method=method, env={**record.env, "host": host or "test-host"})


def headings(text: str) -> list[str]:
    return list(Page(text).columns)


def write(folder: Path, records: list[Record]) -> Path:
    with store.open_writer(folder) as writer:
        for record in records:
            writer.append(record)
    return folder


@pytest.fixture(scope="module")
def whole():
    return page(synthetic.sweep(ops=True, failures=True), "results")[0]


def test_nothing_is_fetched_from_anywhere(whole):
    seen = Page(whole)
    for tag, attributes in seen.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, value)
    assert not re.search(r"@import|url\(", whole[: whole.index("</style>")])
    policy = next(a["content"] for t, a in seen.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert len(whole.encode()) < 1_000_000  # Vega is 0.4 MB of them


def test_every_plot_and_every_network_is_there(whole):
    seen = Page(whole)
    assert set(seen.json) == {"config", "report"}
    assert set(PLOTS) <= set(seen.report["specs"])
    assert all(spec["$schema"] for spec in seen.report["specs"].values())
    assert len(seen.columns["network"]) == 24
    assert "fc layers 16, nodes 1024, batch 256" in seen.columns["network"]
    assert "2 did not succeed (1 oom, 1 timeout)" in seen.text
    assert "oom (killed): the worker was killed: <b>out of memory</b> & more" in seen.text
    assert "peak_flop_per_s = 2.04e+11" in seen.text
    assert not any(tag == "b" for tag, _ in seen.tags)


def test_whatever_a_record_says_is_text(tmp_path):
    workload = synthetic.workloads()[0]
    evil = replace(workload, model=EVIL, params={EVIL: EVIL})
    records = [*synthetic.predicted(workload, ops=True), synthetic.measured(workload)]
    records = [
        replace(
            r,
            workload=evil,
            platform=EVIL,
            note=EVIL,
            cause=EVIL,
            taken_at=EVIL,
            env={"host": EVIL, "framework": [EVIL]},
            method=replace(r.method, name=EVIL, options={**r.method.options, EVIL: EVIL}),
        )
        for r in records
    ]
    records.append(replace(records[-1], status="failed", quantities={}, platform="other" + EVIL))
    folder = write(tmp_path / "a<b>", records)
    write_report(folder, tmp_path / "x.html")
    seen = Page((tmp_path / "x.html").read_text())
    assert not any(tag in ("img", "b") for tag, _ in seen.tags)
    assert sum(tag == "script" for tag, _ in seen.tags) == 6
    assert EVIL in seen.text


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (
            [r for w in synthetic.workloads() for r in synthetic.predicted(w)],
            "24 networks here, none of them measured.",
        ),
        (
            [synthetic.measured(w) for w in synthetic.workloads()],
            "24 of 24 networks measured; a step takes ",
        ),
        (
            [replace(synthetic.measured(w), origin="published") for w in synthetic.workloads()],
            "24 results published by others; a step takes ",
        ),
        (
            [synthetic.failed(synthetic.workloads()[0], "failed", "crashed", "signal 11")],
            "failed (crashed): signal 11",
        ),
    ],
)
def test_a_folder_of_one_kind_of_records_has_a_report(records, says, tmp_path):
    found = write_report(write(tmp_path / "in", records), tmp_path / "x.html")
    seen = Page((tmp_path / "x.html").read_text())
    assert says in seen.text
    assert "Not drawn" in seen.text
    assert found["path"] == str(tmp_path / "x.html")


def test_what_others_published_is_a_row_of_the_networks_and_says_its_options_once(tmp_path):
    records = []
    for devices, gpu in ((1, "k80"), (2, "k80"), (2, "p100"), (2, "p100")):
        record = synthetic.measured(synthetic.workloads()[0])
        options = {"gpu": gpu, "device_count": devices, "strategy": "", "program": None}
        records.append(
            replace(
                record,
                origin="published",
                method=replace(record.method, options=options),
                quantities={"step_s": Quantity(0.25), "published_examples_per_s": Quantity(10.0)},
            )
        )
    copied = {**records[-1].env, "duplicate_of": "first.txt"}
    records[-1] = replace(records[-1], env=copied)
    write_report(write(tmp_path / "in", records), tmp_path / "x.html")
    seen = Page((tmp_path / "x.html").read_text())
    assert "3 results published by others; a step takes 250 ms." in seen.text
    assert seen.columns["GPU"] == ["k80", "k80", "p100"]  # the copied one is left out
    assert seen.columns["published step"] == ["250 ms"] * 3
    assert seen.columns["throughput"] == ["256 examples/s"] * 3  # 64 in 250 ms
    assert seen.text.count("gpu = k80 or p100") == 1
    assert " = ," not in seen.text


def test_results_of_unlike_input_are_told_apart(tmp_path):
    plain = synthetic.measured(synthetic.workloads()[0])
    fed = []
    for more in ({"input": "dataset"}, {"input": "dataset", "loaders": 2}):
        options = {**plain.method.options, **more}
        fed.append(replace(plain, method=replace(plain.method, options=options)))
    write_report(write(tmp_path / "in", [plain, *fed]), tmp_path / "x.html")
    found = Page((tmp_path / "x.html").read_text()).columns
    assert "loaders" in found
    assert set(found["input"]) == {"device", "dataset"}
    write_report(write(tmp_path / "one", [plain]), tmp_path / "y.html")
    assert "loaders" not in headings((tmp_path / "y.html").read_text())


def test_networks_are_counted_once_however_many_platforms_they_ran_on():
    four = [synthetic.measured(workload) for workload in synthetic.workloads()[:4]]
    both = [*four, *(replace(record, platform="h100-sxm5") for record in four)]
    text, found = page(both, "results")
    assert (found["networks"], found["measured"], found["platforms"]) == (4, 4, 2)
    assert "4 of 4 networks measured on 2 platforms; a step takes " in Page(text).text


def test_a_platform_of_predictions_alone_is_not_one_that_was_measured_on():
    workloads = synthetic.workloads()[:4]
    measured = [synthetic.measured(workload) for workload in workloads]
    predicted = [record for workload in workloads for record in synthetic.predicted(workload)]
    elsewhere = [replace(record, platform="h100-sxm5") for record in predicted]
    text, found = page([*measured, *predicted, *elsewhere], "results")
    assert (found["platforms"], found["measured_platforms"]) == (2, 1)
    assert "4 of 4 networks measured; a step takes " in Page(text).text


def test_every_setting_in_which_rows_differ_is_a_column():
    plain = synthetic.measured(synthetic.workloads()[0])
    data = {"input": "dataset"}
    records = [
        on(plain, gpu=gpu, host=host, staging=staging, loaders=2, prefetch=prefetch, **data)
        for gpu, host in (("p100", "node-1"), ("v100", "node-2"))
        for staging in ("local", "shared")
        for prefetch in (2, 4)
    ]
    text, _ = page([*records, on(plain, threads=8)], "results")
    told = {"GPU", "host", "staging", "prefetch", "threads", "input"}
    assert told <= set(headings(text))
    settings = [cells for name, cells in Page(text).columns.items() if name in told]
    assert len(set(zip(*settings, strict=True))) == 9
    assert headings(page([plain], "results")[0])[:3] == [
        "network",
        "status",
        "measured step, median",
    ]


def test_a_report_of_a_thousand_networks_is_under_3_megabytes():
    records = []
    for index in range(1000):
        workload = replace(synthetic.workloads()[0], params={"layers": 4, "nodes": 8 + index})
        records += [*synthetic.predicted(workload), synthetic.measured(workload)]
    text, found = page(records, "results")
    assert found["networks"] == 1000
    assert len(text.encode()) < 3_000_000


def row(**values: object) -> dict[str, object]:
    names = (
        "measured_s",
        "peak_fraction",
        "roof_fraction",
        "ratio",
        "flop_per_s",
        "status",
        "steady",
    )
    base = dict.fromkeys(names) | {"platform": "p", "peak_flop_per_s": 2e11, "batch": 1}
    return {**base, "workload_key": values["name"], "model": values["name"], **values}


_TEXTS = ("name", "model", "platform", "workload_key", "status", "origin")


def _summary(rows: list[dict[str, Any]]) -> ResultsSummary:
    """Return the summary of results; other columns than those of `rows` are unknown."""
    base = dict.fromkeys(("origin", "predicted_s", "roof_fraction", "disturbed_share"))
    complete = [base | result for result in rows]
    schema = {name: pl.String() if name in _TEXTS else pl.Float64() for name in complete[0]}
    schema |= {"batch": pl.Int64(), "steady": pl.Boolean()}
    frame = pl.DataFrame(complete, schema={name: schema[name] for name in complete[0]})
    return summarise_results(frame.lazy())


def test_the_headline_by_hand():
    rows = [
        row(name="a", status="ok", measured_s=0.1, peak_fraction=0.5, flop_per_s=1e11, ratio=2.0),
        row(name="b", status="ok", measured_s=0.3, peak_fraction=0.1, flop_per_s=2e10, ratio=8.0),
        row(name="c", status="oom"),
        row(name="d"),
    ]
    found = _summary(rows)
    assert found.median_peak_fraction == pytest.approx(0.3)
    assert describe_results(found) == [
        (
            "The best network reaches 50 % of the peak: a, 100 GFLOP/s of 200 GFLOP/s. "
            "The median network reaches 30 %."
        ),
        # 1/2 and 7/8 off
        (
            "Predictions have a median error of 68.8 %; 50 % of the 2 lie within a factor of 2. "
            "Farthest: b, which takes 8 times the predicted time."
        ),
        "2 of 4 networks measured; a step takes 100 ms to 300 ms.",
        "1 did not succeed (1 oom); see below the table.",
    ]


def test_predictions_that_miss_are_explained_where_other_work_disturbed():
    off = {"a": 1.1, "b": 1.3, "c": 0.5, "d": 3.0}  # 1 / 1.1 is 9 % off, the others over 20 %
    share = {"a": 0.0, "b": 0.2, "c": 0.9, "d": 0.6}
    rows = [
        row(name=name, status="ok", measured_s=0.1, ratio=ratio, disturbed_share=share[name])
        for name, ratio in off.items()
    ]
    said = "3 predictions off by more than 20 %; of these 2 measured while other work disturbed"
    assert any(line.startswith(said) for line in describe_results(_summary(rows)))
    assert _summary(rows[:1]).far == LargeErrors(number=0, disturbed=None)


def test_more_than_the_peak_is_doubted():
    rows = [row(name="a", status="ok", measured_s=0.1, peak_fraction=1.2, flop_per_s=2.4e11)]
    assert "1 network above 100 %" in describe_results(_summary(rows))[1]


def test_a_published_number_above_the_peak_is_no_reason_to_calibrate():
    values = {"status": "ok", "measured_s": 0.1, "peak_fraction": 1.2, "flop_per_s": 2.4e11}
    ours, theirs = row(name="a", **values), row(name="b", **values, predicted_s=0.2)
    theirs |= {"origin": "published"}
    assert "calibrate again" in describe_results(_summary([ours]))[1]
    said = describe_results(_summary([theirs]))
    assert said[1] == ("1 published result above 100 %: the type, batch or device is not what ran.")
    assert not any("calibrate" in line for line in said)
    assert said[-1] == "1 of 1 network measured by others; a step takes 100 ms."
    both = describe_results(_summary([ours, theirs]))
    assert both[-1] == "2 of 2 networks measured (1 by others); a step takes 100 ms."


@pytest.mark.parametrize(
    ("taken_at", "shown"),
    [
        ("2026-01-01T09:30:00+09:00", "2026-01-01 00:30 UTC"),
        ("2026-01-01T09:30:00Z", "2026-01-01 09:30 UTC"),
        ("2026-01-01T09:30:00", "2026-01-01 09:30"),
        ("2026-01-01", "2026-01-01"),
        ("yesterday", "yesterday"),
    ],
)
def test_a_time_is_shown_with_its_zone(taken_at, shown):
    assert format_time(to_utc(taken_at)) == shown


def test_times_of_several_zones_sort_as_instants():
    early, late = "2026-01-02T01:00:00+09:00", "2026-01-01T23:00:00+00:00"  # 16:00 and 23:00 UTC
    records = [
        replace(record, taken_at=at)
        for record, at in zip(synthetic.sweep()[:2], (early, late), strict=True)
    ]
    said = describe_sources(Data.from_records(records))
    assert said.endswith("2026-01-01 16:00 UTC to 2026-01-01 23:00 UTC")


def test_a_torn_line_is_reported_and_a_bad_place_refused(tmp_path, capsys):
    folder = write(tmp_path / "in", [synthetic.measured(synthetic.workloads()[0])])
    (folder / "records-z.jsonl").write_text('{"schema": 1, "orig')
    write_report(folder, tmp_path / "x.html")
    assert "torn last line" in capsys.readouterr().err
    with pytest.raises(InputError, match="does not exist"):
        write_report(folder, tmp_path / "absent" / "x.html")
    with pytest.raises(InputError, match="no such folder"):
        write_report(tmp_path / "no", tmp_path / "x.html")


def test_markdown_has_the_words_the_worst_networks_and_the_failures(tmp_path):
    folder = write(tmp_path / "in", synthetic.sweep(failures=True))
    document = write_report(folder, tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert document["networks"] == 24
    assert text.startswith("# Step times: in\n")
    assert "* 2 did not succeed (1 oom, 1 timeout)" in text
    assert "The first 20 of 24 networks." in text
    rows = text.split("## Networks")[1].split("##")[0].splitlines()
    table = [line for line in rows if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1  # as many cells in each row
    assert len(table) == 2 + 20
    assert {"oom", "timeout"} == {row.split(" | ")[1] for row in table[2:4]}  # they come first
    ratios = [abs(math.log(float(row.split(" | ")[4]))) for row in table[4:] if " - " not in row]
    assert ratios == sorted(ratios, reverse=True)  # then what is farthest off
    assert f"`steptime report {folder} -o {tmp_path}/report.md`" in text
    assert len(text) < 20_000


def test_markdown_shows_whatever_a_record_says_as_text(tmp_path):
    failed = synthetic.failed(synthetic.workloads()[0], "failed", "*crashed*", "<b>|line\nnext")
    write_report(write(tmp_path / "in", [failed]), tmp_path / "x.md")
    text = (tmp_path / "x.md").read_text()
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert "| &lt;b>\\|line next |" in text


def test_an_analysis_that_cannot_answer_leaves_the_others(monkeypatch):
    from steptime.analysis import errors

    def refused(data: object) -> None:
        raise InputError("no errors today")

    monkeypatch.setattr(errors, "ANALYSIS", replace(errors.ANALYSIS, table=refused))
    text, _ = page(synthetic.sweep(), "results")
    assert "no errors today" in text
    assert 'id="roofline"' in text


def test_of_more_networks_than_a_page_shows_those_that_matter_are_taken(monkeypatch):
    from steptime.reports import findings

    monkeypatch.setattr(findings, "MAX_NETWORKS", 5)
    monkeypatch.setattr(findings.gather, "__kwdefaults__", {"pictures": True, "max_networks": 5})
    text, numbers = page(synthetic.sweep(failures=True), "results")
    seen = Page(text)
    assert numbers["networks"] == 24  # of all, not of those that are shown
    assert len(seen.columns["network"]) == 5
    assert set(seen.columns["status"][:2]) == {"oom", "timeout"}
    assert "The 5 of 24 networks that matter most" in seen.text


def test_the_library_is_kept_and_made_again_where_it_is_torn(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = templating._library.__wrapped__
    made = library()
    (kept,) = (tmp_path / "steptime").iterdir()
    assert kept.read_text() == made == library()
    kept.write_text(made[:-100])
    assert library() == kept.read_text() == made
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))  # takes no file
    assert library() == made
