"""The network files of Paleo's authors, against what their program said of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest

from paleo_net import by_name, workload
from steptime.build import build, build_step
from steptime.core.graph import check
from steptime.measure.contract import Options
from steptime.paleo.layers import Layer
from steptime.paleo.rules import RULES

PARAMETERS = {"alex_v2": 50_303_912, "vgg16": 138_357_544}


def files(shared: Path) -> dict[str, Path]:
    folder = shared / "paleo"
    found = [
        path for kind in ("nets", "synthetic_nets") for path in folder.glob(f"{kind}/**/*.json")
    ]
    assert len(found) == 17
    return {path.stem: path for path in found}


def test_every_file_builds(shared):
    for name, path in files(shared).items():
        for phase in ("infer", "train"):
            graph = build_step(workload(path, batch=2, phase=phase))
            check(graph)
            assert {made.kind for made in graph.source} <= {"input", *RULES, "other"}
            assert all(made.outputs[0] == 2 for made in graph.source)
            ops = {op.name for op in graph.ops}
            assert all(made.op in ops for made in graph.source if made.op)
            for made in graph.source:
                if made.op:
                    assert graph.tensors[made.op].size == prod(made.outputs)
        if name in PARAMETERS:
            assert sum(made.parameters for made in graph.source) == PARAMETERS[name]
            assert graph.parameters == PARAMETERS[name]


def assert_same(made: Layer, said: Mapping[str, Any]) -> None:
    assert made.name == said["name"]
    assert made.type == said["spec_type"]
    assert list(made.parents) == said["parents"]
    assert list(made.inputs) == said["inputs"]
    assert list(made.outputs) == said["outputs"]
    assert made.parameters == said["num_params"]
    padding = made.padding if isinstance(made.padding, str) else list(made.padding)
    assert padding == said.get("padding", "VALID")
    kernel = said["filters"][:2] if "filters" in said else said.get("kernel", [1, 1, 1, 1])[1:3]
    assert list(made.kernel) == kernel
    assert [1, *made.strides, 1] == said.get("strides", [1, 1, 1, 1])


def test_layers_are_those_of_the_original(shared):
    folder, found = shared / "paleo", files(shared)
    compared = 0
    for said in json.loads((folder / "layers_static.json").read_text()).values():
        graph = build(workload(found[said["net"]], said["batch"]))
        for made, layer_said in zip(graph.source, said["layers"], strict=True):
            assert_same(made, layer_said)
            compared += 1
    for said in json.loads((folder / "graph.json").read_text()).values():
        graph = build(workload(found[said["net"]]))
        assert [made.name for made in graph.source] == said["topology_order"]
        for made, layer_said in zip(graph.source, said["native_batch"], strict=True):
            assert_same(made, layer_said)
    for key, said in json.loads((folder / "synthetic_outputs.json").read_text()).items():
        graph = build(workload(found[key.partition("__")[0]]))
        for made, layer_said in zip(graph.source, said["static"], strict=True):
            assert_same(made, layer_said)
    assert compared == 3 * (15 + 19 + 25)


def test_split_layers_have_the_names_and_work_of_the_original(shared):
    with gzip.open(shared / "paleo/model_hybrid.json.gz", "rt") as stream:
        details = json.load(stream)["layer_detail_hybrid_mode"]
    for key, said in details.items():
        graph = build(workload(files(shared)[key.partition("__")[0]], 128))
        made = by_name(graph)
        assert made.keys() >= said["forward"].keys()
        for name, work in said["forward"].items():
            if made[name].kind == "conv":
                one, (kh, kw) = made[name], made[name].kernel
                assert 2 * kh * kw * one.inputs[3] * prod(one.outputs) == work["flops"]


@pytest.mark.slow
@pytest.mark.framework
@pytest.mark.parametrize("name", ["alex_v2_2gpu", "inception_v3", "deconv"])
def test_files_train_on_torch(shared, name):
    from steptime.measure.backends.torch import backend as torch_backend

    work = workload(files(shared)[name], batch=2)
    prepared = torch_backend.prepare(build(work), work, Options())
    prepared.step()
    prepared.sync()
