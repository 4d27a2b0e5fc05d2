"""The page of plans: one file, nothing fetched, every search on it, whole or not at all."""

import json
import re

import pytest

from page_data import data_of
from steptime.cli.main import run

SMALL = "transformer:layers=4,width=512,heads=8,vocabulary=8000"
LARGE = "transformer:layers=8,width=20480,heads=128,vocabulary=51200"
WHERE = "--device h100-sxm5 --inside nvlink-4 --length 512"


@pytest.mark.slow
def test_every_search_is_on_the_page(tmp_path, capsys):
    page = tmp_path / "plans.html"
    words = f"{SMALL},{LARGE} {WHERE} --device-count 1,4 --global-batch 8,16 --page {page} --json"
    words += " --optimizer adam --zero 0 --sequence-parallel"
    assert run(["plan", *words.split()]) == 0
    told = json.loads(capsys.readouterr().out)
    data = data_of(page)
    assert told["search_count"] == len(data["cells"]) == 8
    assert told["models"] == [SMALL, LARGE]
    assert told["device_counts"] == ["1", "4"]
    good = [cell for cell in data["cells"] if "best" in cell]
    assert told["successful_count"] == len(good) == 4
    said = " ".join(data["words"])  # of the line to copy
    assert "--optimizer adam" in said
    assert "--zero 0" in said
    assert "--sequence-parallel --" in said
    assert all(cell["at"]["model"] == SMALL for cell in good)
    for cell in good:
        for name in ("why", "memory", "pipeline"):
            names, *rows = cell["drawn"][name]
            assert rows
            assert all(len(row) == len(names) for row in rows)
        names, *rows = cell["drawn"]["why"]
        assert rows[-1][names.index("to")] == pytest.approx(cell["best"]["step_s"], rel=1e-5)
    text = page.read_text("utf-8")
    assert not re.search(r"""(src|href)=["']?https?:""", text)
    assert page.stat().st_size < 700_000  # most of it Vega


def test_no_plan_at_all_is_no_page(tmp_path, capsys):
    page = tmp_path / "plans.html"
    assert (
        run(
            [
                "plan",
                LARGE,
                *WHERE.split(),
                *f"--device-count 1 --global-batch 8 --page {page}".split(),
            ]
        )
        == 2
    )
    assert "none of 1 searches finds a plan: plan: none of" in capsys.readouterr().err
    assert not page.exists()
