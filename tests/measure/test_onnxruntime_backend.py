"""The backend of ONNX Runtime infers what the graph says, and names what it cannot run."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from every import every
from reference.backend import execute
from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.workload import Workload
from steptime.formats.export.onnx import export_onnx
from steptime.hardware import catalog
from steptime.measure.contract import Options, Prepared, UnsupportedError, translate_backend_error
from steptime.measure.launch import Worker
from steptime.network.ops import OPS
from steptime.network.ops.execution import list_launches

pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'steptime[onnxruntime]'")

CNN = "cnn:block=residual,blocks=1,filters=4,image=33,classes=7,batch=3"
DECODER = (
    "transformer:kind=decoder,layers=1,width=8,heads=4,kv_heads=2,length=4,vocabulary=9,"
    "norm=rms,activation=swiglu,positions=rotary,bias=no,tied=no,batch=2"
)


def workload(text: str, **how: Any) -> Workload:
    return make_workload(read_model(text), None, **{"phase": "infer", "dtype": "float32", **how})


def prepared(work: Workload, options: Options | None = None) -> Prepared:
    from steptime.measure.backends.onnxruntime import backend

    return backend.prepare(build(work), work, options or Options(threads=1))


@every(
    "network",
    [
        "fc:layers=2,nodes=8,inputs=6,outputs=5,batch=4",
        CNN,
        "rnn:cell=gru,layers=2,embedding=4,length=3,vocabulary=5,batch=2",
        DECODER,
        f"{DECODER},experts=4,experts_per_token=2,expert_ffn=6",
    ],
)
def test_a_step_gives_what_numpy_gives_of_the_same_values(network):
    from steptime.measure.backends.onnxruntime import backend
    from steptime.measure.synthetic import initial_values

    work = workload(network)
    graph = build(work)
    values = initial_values(graph, 5, np.dtype)
    (ours,) = execute(graph, values).values()
    options = Options(threads=1, seed=5)
    held: dict[str, Any] = {}
    bound = backend._bind_tensors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            backend, "_bind_tensors", lambda *all_: held.setdefault("binding", bound(*all_))
        )
        backend.prepare(graph, work, options).step()
    (theirs,) = held["binding"].copy_outputs_to_cpu()
    near = 1e-5 * float(np.abs(ours).max())
    np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=near)


def test_compiling_is_told_apart_from_steps():
    made = prepared(workload(CNN))
    assert made.facts["compile_s"] > 0
    assert list(made.parts) == ["forward"]
    assert made.waited is None


def test_input_can_come_from_the_host():
    made = prepared(workload(CNN), Options(threads=1, input="host"))
    made.step()
    assert made.waited is not None
    assert made.waited() > 0


@every(
    ("how", "options", "said"),
    [
        ({"phase": "train"}, {}, "onnxruntime runs inference alone: --phase infer"),
        ({"dtype": "float16"}, {}, "no kernels for float16 on cpu, but for float32, float64"),
        ({"dtype": "bfloat16-mixed"}, {}, "no kernels for bfloat16-mixed on cpu"),
        ({"dtype": "float64"}, {}, "has no kernel for it here"),
        ({}, {"compile": True}, "leave out --compile"),
        ({}, {"tf32": True}, "a CPU has no TF32"),
        ({"replicas": 2}, {}, "without a parallel plan"),
    ],
)
def test_what_cannot_be_run_is_one_line(how, options, said):
    from steptime.measure.backends.onnxruntime import backend

    with pytest.raises(Exception) as raised:  # noqa: PT011  # the runtime's own, or one of ours
        prepared(workload(CNN, **how), Options(threads=1, **options))
    meant = translate_backend_error(backend, raised.value)
    assert isinstance(meant, UnsupportedError)
    assert said in str(meant)
    assert "\n" not in str(meant)


def test_a_device_that_is_not_here_is_refused():
    from steptime.measure.backends.onnxruntime import backend

    with pytest.raises(InputError, match="'mps' is not available to onnxruntime; there is: cpu"):
        backend.device_facts("mps")


@pytest.mark.onnx
@pytest.mark.parametrize("network", [CNN, DECODER])
def test_it_runs_the_kernels_that_the_stack_says(network, tmp_path):
    import onnx
    import onnxruntime as ort

    from steptime.measure.synthetic import initial_values

    graph = build(workload(network))
    options = ort.SessionOptions()
    options.optimized_model_filepath = path = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    values = initial_values(graph, 5, np.dtype)  # weights that are alike would be one product
    model = export_onnx(graph, lambda name, _: values[name].tobytes())
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(path).graph.node
    runs = Counter(node.op_type.removeprefix("Fused") for node in nodes)
    said = list_launches(graph, catalog.stack("onnxruntime"))
    products = {one.ops[0].name for one in said if one.kernels and OPS[one.ops[0].kind].products}
    assert sum(runs[kind] for kind in ("Conv", "Gemm", "MatMul", "Attention")) == len(products)
    assert runs["BatchNormalization"] == 0


@pytest.mark.slow
def test_a_worker_measures_and_refuses():
    from dataclasses import asdict

    from steptime.core.workload import workload_to_json

    options = Options(threads=1)
    request = {
        "do": "measure",
        "platform": "here",
        "timing": {"budget_s": 0.1},
        "parts": True,
        "energy": False,
        "options": asdict(options),
        "runs": 1,
        "env": {"cell": "", "round": 0},
    }
    with Worker("onnxruntime", options) as worker:
        made = [
            worker.ask({**request, "workload": workload_to_json(workload(CNN, phase=phase))}, 600)
            for phase in ("infer", "train")
        ]
    assert [one["status"] for one in made] == ["ok", "unsupported"]
    assert made[0]["method"]["name"] == "onnxruntime"
    assert made[0]["method"]["version"]
    assert made[0]["env"]["compile_s"] > 0
    json.dumps(made)
