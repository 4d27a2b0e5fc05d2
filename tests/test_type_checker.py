"""A type checker names each wrong argument of a user's script.

The file comes late in the slow group: `make check` has filled the cache of mypy by then.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from api.test_questions import FUNCTIONS
from places import ROOT

USE = """
import steptime

steptime.predict("fc", "t4", batch=[1.5, None])
steptime.fit(3, "t4")
steptime.choose("fc", device=4)
steptime.scale("fc", "t4", replicas={1: 2})
steptime.split("fc", "t4", "v100", link=7)
steptime.count("fc", by_op="yes")
steptime.why("fc", device=object())
steptime.plan("gpt2", "h100", global_batch=object())
steptime.serve("llama3_8b", "h100", concurrency=[2j])
steptime.list(4)
steptime.fit("fc", "t4", dtyp="float16")
steptime.energy_("alexnet", accelerator=4)
steptime.systolic("fc", rows=object())
steptime.whatif("t4", set_=7)
steptime.doctor("all")
steptime.calibrate(of=3.5)
steptime.run("fc", runs=[4])
steptime.data_(5, out="new")
steptime.sweep("experiment.toml", out=None)
steptime.sweep_status(3)
steptime.sweep_collect(None)
steptime.sweep_cancel(["a", "b"])
steptime.import_(3, out="new")
steptime.report(["a", "b"])
steptime.compare(3)
steptime.analyse(3)
steptime.evaluate(3)
steptime.query("records", memory=None)
steptime.convert("fc", out=3)
"""


@pytest.mark.slow
def test_a_type_checker_names_each_wrong_argument(tmp_path):
    script = tmp_path / "use.py"
    script.write_text(USE, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    wrong = {int(line) for line in re.findall(r"use\.py:(\d+): error", done.stdout)}
    calls = {
        number: match[1]
        for number, line in enumerate(USE.splitlines(), 1)
        if (match := re.match(r"steptime\.(\w+)\(", line))
    }
    assert set(calls.values()) == set(FUNCTIONS)
    assert wrong == set(calls), done.stdout
