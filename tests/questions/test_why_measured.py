"""Steps that are bound by one thing by construction, measured on this machine's CPU."""

import json
import os

import pytest

import idx_folder
from steptime.cli.main import run

pytestmark = [pytest.mark.slow, pytest.mark.framework]

DEVICE = """
name = "a-core"
kind = "cpu"
source = "about one core of a server: any CPU comes to the same answers here"
memory_GB_per_s = 20
launch_us = 1
peak_TFLOP_per_s = { float32 = 0.08 }
"""
SLEEPY = """
import importlib.util, sys, time

NAME = "steptime.measure.data.loader"


class Finder:
    def find_spec(self, name, path, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(NAME)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            arrays = module.ImageInputs.arrays

            def slow(self, images, labels):
                time.sleep(0.1)
                return arrays(self, images, labels)

            module.ImageInputs.arrays = slow

        spec.loader.exec_module = executed
        return spec


sys.meta_path.insert(0, Finder())
"""
CASES = {  # bound by: how it is run
    "compute": "fc:layers=2,nodes=2048,inputs=2048 --batch 256",
    "memory": "fc:layers=3,nodes=4096,inputs=4096 --batch 1 --optimizer adam",
    "host": "fc:layers=64,nodes=16,inputs=16,outputs=16 --batch 2",
    "input": "fc:layers=1,nodes=8,inputs=16,outputs=4 --batch 8 --input dataset --data images",
    "communication": "fc:layers=2,nodes=2048,inputs=2048 --batch 1 --replicas 2 --no-overlap",
}


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param(name, marks=() if name in {"compute", "input"} else pytest.mark.rare)
        for name in CASES
    ],
)
def test_a_measured_step_is_bound_by_what_was_constructed(bound, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "core.toml").write_text(DEVICE)
    idx_folder.write(tmp_path / "images")
    if bound == "input":  # what reads batches sleeps, in the worker
        (tmp_path / "sitecustomize.py").write_text(SLEEPY)
        path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        monkeypatch.setenv("PYTHONPATH", path)
    words = ["run", *CASES[bound].split(), "--threads", "1", "--budget", "0.5", "--out", "results"]
    assert run(words) == 0
    capsys.readouterr()
    assert run(["why", "--in", "results", "--device", "core.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bound"] == bound, found["headline"]
    assert found["origin"] == "measured"
    assert found["evidence"]["predicted_s"] > 0
