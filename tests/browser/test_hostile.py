"""Texts of strangers in every field of records, through every page and picture: nothing runs."""

from __future__ import annotations

import re
from itertools import cycle
from pathlib import Path

import pytest
from markupsafe import escape

import synthetic
from browsing import browse
from record_cases import HOSTILE
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.workload import Workload
from steptime.records.data import Data
from steptime.records.record import Quantity, Record
from steptime.reports.charts import draw, list_plots
from steptime.reports.files import save
from steptime.reports.markdown import markdown_page
from steptime.reports.page import page
from steptime.reports.templating import POLICY

pytestmark = pytest.mark.browser

DEVICE = """name = '{0}'
kind = "gpu"
source = '{0}'
note = '{0}'
memory_GB = 40
memory_GB_per_s = 900
peak_TFLOP_per_s = {{float32 = 15, bfloat16 = 30}}
"""
PAGES = {  # a page: what writes it of a network's file and a device's
    "choose": "choose {model} --device {device} --page {out}",
    "weights": "choose gpt2 --device {device} --weights q4_k_m,q8_0 --page {out}",
    "plan": "plan {model} --device {device} --device-count 2 --global-batch 4 --inside nvlink-3 "
    "--link infiniband-ndr --page {out}",
}

IMAGE = '<img src=x onerror="window.ran=1">'
RAN = IMAGE.replace("window.ran=1", "document.title=`it ran`")
TOLD = "document.title=parent.postMessage(`it ran`,`*`)||`it ran`"  # to a page around it, too
TEXTS = tuple(one.replace("window.ran=1", TOLD) for one in (*HOSTILE, IMAGE))
AROUND = """<script>
onmessage = ({ data, source }) => {
  for (const one of document.querySelectorAll("iframe"))
    if (one.contentWindow === source) one.className = data;
};
</script>
"""


PLACE = f"{TEXTS[3]}{TEXTS[0]}"


def hostile(platform: str = PLACE, host: str = "", is_alike: bool = False) -> list[Record]:
    """Return records of every kind; each text that a stranger can choose is one that may run.

    Where networks are `is_alike`, all have the same hyperparameter of a stranger.
    """
    found, texts = [], cycle(TEXTS)
    for one in synthetic.sweep(ops=True, failures=True):
        name, value = next(texts), next(texts)
        added = {TEXTS[0]: TEXTS[1]} if is_alike else {f"{TEXTS[0]} {name}": value}
        params = {**one.workload.params, **added}
        workload = Workload(f"{one.workload.model}{TEXTS[0]}", params, 64, dtype=TEXTS[3])
        found.append(
            replace(
                one,
                workload=replace(workload, file=""),
                platform=platform,
                method=replace(one.method, options={**one.method.options, "gpu": next(texts)}),
                quantities={**one.quantities, TEXTS[0]: Quantity(1.0)},
                cause=next(texts),
                note=next(texts),
                scope=one.scope and f"{one.scope}{next(texts)}",
                env={**one.env, "host": host or next(texts), "framework": next(texts)},
            )
        )
    return found


@pytest.fixture(scope="module")
def data():
    return Data.from_records(hostile(), TEXTS[0])


def _together(*several: list[Record]) -> Data:
    return Data.from_records([one for some in several for one in some], TEXTS[0])


COMPARED = {  # by picture: what compares more than one folder of one machine holds
    "nodes": lambda: _together(*(hostile(host=f"{TEXTS[0]}{i}") for i in range(3))),
    "history": lambda: Data((TEXTS[0], hostile()), (TEXTS[3], hostile())),
    "sensitivity": lambda: Data.from_records(hostile(is_alike=True), TEXTS[0]),
    "speedup": lambda: _together(hostile(), hostile(f"{PLACE}2")),
}


def ran(chromium: str, path: Path) -> bool:
    answer = browse(chromium, path, "--dump-dom", budget_ms=5_000)
    return "<title>it ran</title>" in answer.stdout


def test_a_page_without_a_policy_would_show_it(chromium, tmp_path):
    (tmp_path / "x.html").write_text(f"<title>x</title>{RAN}")
    assert ran(chromium, tmp_path / "x.html")


@pytest.mark.parametrize("kind", PAGES)
def test_no_text_runs_in_a_page_to_choose_in(chromium, tmp_path, kind):
    told = f"{RAN}{TEXTS[0]}".replace("'", "")
    (device := tmp_path / "device.toml").write_text(DEVICE.format(told))
    (model := tmp_path / f"{RAN}.toml").write_text('family = "transformer"\nlayers = 2\n')
    out = tmp_path / "x.html"
    words = [one.format(model=model, device=device, out=out) for one in PAGES[kind].split()]
    assert run(words) == 0
    text = out.read_text()
    assert "it ran" in text
    assert "<script>document" not in text
    assert not ran(chromium, out)


@pytest.mark.rare
@pytest.mark.parametrize("ending", ["html", "svg"])
def test_no_text_runs_in_a_picture(chromium, tmp_path, data, ending):
    """All in one page, beside a frame that has no policy."""
    for kind in list_plots():
        spec = draw(kind, COMPARED[kind]() if kind in COMPARED else data)
        save(spec, tmp_path / f"{kind}.{ending}")
        text = (tmp_path / f"{kind}.{ending}").read_text()
        assert "<script>document" not in text
        assert '<svg onload="document' not in text
        assert ending == "svg" or escape(POLICY) in text
    (tmp_path / "bare.html").write_text(TEXTS[-1])
    frames = [f'<iframe src="{path.name}"></iframe>' for path in sorted(tmp_path.iterdir())]
    assert len(frames) > 10
    (tmp_path / "around.html").write_text(AROUND + "".join(frames))
    answer = browse(chromium, tmp_path / "around.html", "--dump-dom", budget_ms=20_000)
    assert re.findall(r'<iframe src="([^"]+)" class="it ran"', answer.stdout) == ["bare.html"]


def test_no_text_runs_in_a_report(chromium, tmp_path, data):
    text, _ = page(data, TEXTS[0], TEXTS[0])
    (tmp_path / "x.html").write_text(text)
    assert not ran(chromium, tmp_path / "x.html")
    (tmp_path / "m.html").write_text(markdown_page(data, TEXTS[0], "steptime report x")[0])
    assert "<script>document" not in (tmp_path / "m.html").read_text()
