"""Texts of strangers in every field of records, through every page and picture: nothing runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

import synthetic
from browsing import browse
from record_cases import HOSTILE
from steptime.analysis.data import Data
from steptime.core.errors import InputError
from steptime.core.record import Quantity, Record
from steptime.core.workload import Workload
from steptime.plots import draw, kinds
from steptime.plots.files import POLICY, save
from steptime.report.markdown import markdown_page
from steptime.report.page import page

pytestmark = pytest.mark.browser

RAN = '<img src=x onerror="document.title=`it ran`">'
TEXTS = tuple(one.replace("window.ran=1", "document.title=`it ran`") for one in (*HOSTILE, RAN))


def hostile() -> list[Record]:
    """Return records of every kind; each text that a stranger can choose is one that may run."""
    found, texts = [], cycle(TEXTS)
    for one in synthetic.sweep(ops=True, failures=True):
        params = {**one.workload.params, f"{TEXTS[0]} {next(texts)}": next(texts)}
        workload = Workload(f"{one.workload.model}{TEXTS[0]}", params, 64, dtype=TEXTS[3])
        found.append(
            replace(
                one,
                workload=replace(workload, file=""),
                platform=f"{TEXTS[3]}{TEXTS[0]}",
                method=replace(one.method, options={**one.method.options, "gpu": next(texts)}),
                quantities={**one.quantities, TEXTS[0]: Quantity(1.0)},
                cause=next(texts),
                note=next(texts),
                scope=one.scope and f"{one.scope}{next(texts)}",
                env={**one.env, "host": next(texts), "framework": next(texts)},
            )
        )
    return found


@pytest.fixture(scope="module")
def data() -> Data:
    return Data.of(hostile(), TEXTS[0])


def ran(chromium: str, path: Path) -> bool:
    answer = browse(chromium, path, "--dump-dom", budget_ms=5_000)
    return "<title>it ran</title>" in answer.stdout


def test_a_page_without_a_policy_would_show_it(chromium: str, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text(f"<title>x</title>{RAN}")
    assert ran(chromium, tmp_path / "x.html")


@pytest.mark.parametrize("ending", ["html", "svg"])
@pytest.mark.parametrize("kind", kinds())
def test_no_text_runs_in_a_picture(
    chromium: str, tmp_path: Path, data: Data, kind: str, ending: str
) -> None:
    try:
        spec = draw(kind, data)
    except InputError:
        pytest.skip("these records have no such picture")
    save(spec, tmp_path / f"x.{ending}")
    text = (tmp_path / f"x.{ending}").read_text()
    assert "<script>document" not in text
    assert '<svg onload="document' not in text
    assert ending == "svg" or POLICY in text
    assert not ran(chromium, tmp_path / f"x.{ending}")


def test_no_text_runs_in_a_report(chromium: str, tmp_path: Path, data: Data) -> None:
    text, _ = page(data, TEXTS[0], TEXTS[0])
    (tmp_path / "x.html").write_text(text)
    assert not ran(chromium, tmp_path / "x.html")
    (tmp_path / "m.html").write_text(markdown_page(data, TEXTS[0], "steptime report x")[0])
    assert "<script>document" not in (tmp_path / "m.html").read_text()
