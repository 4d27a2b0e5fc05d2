"""Compare what `steptime run --backend onnxruntime` measures with a loop written by hand.

The other side is a file of the same network as anybody would write it with onnx.helper, run by a
session of its own: see `measuring_overhead.py`, whose rules hold here.

    python benchmarks/onnxruntime_loop.py --pairs 20
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from time import perf_counter

from measuring_overhead import BATCH, BLOCK_S, INPUTS, LAYERS, NODES, OUTPUTS, main


def by_hand(threads: int) -> None:
    """Answer every line of standard input with a block of times."""
    from steptime.measure.cpus import bind_threads

    bind_threads(threads)
    import numpy as np
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0).standard_normal
    nodes, kept, x = [], [], "x"
    widths = [*pairwise([INPUTS, *[NODES] * LAYERS]), (NODES, OUTPUTS)]
    for i, (fan_in, width) in enumerate(widths):
        weight = (draw((width, fan_in)) * (2 / fan_in) ** 0.5).astype(np.float32)
        kept.append(numpy_helper.from_array(weight, f"w{i}"))
        kept.append(numpy_helper.from_array(np.zeros(width, np.float32), f"b{i}"))
        nodes.append(helper.make_node("Gemm", [x, f"w{i}", f"b{i}"], [f"y{i}"], transB=1))
        x = f"y{i}"
        if i < LAYERS:
            nodes.append(helper.make_node("Relu", [x], [f"z{i}"]))
            x = f"z{i}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, width])
        for name, width in (("x", INPUTS), (x, OUTPUTS))
    ]
    graph = helper.make_graph(nodes, "fc", ends[:1], ends[1:], kept)
    imports = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    for _ in sys.stdin:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        given = {"x": draw((BATCH, INPUTS)).astype(np.float32)}
        times: list[float] = []
        began = perf_counter()
        while perf_counter() - began < BLOCK_S:
            start = perf_counter()
            session.run(None, given)
            times.append(perf_counter() - start)
        print(json.dumps(times[len(times) // 3 :]), flush=True)  # the first third warms up


if __name__ == "__main__":
    main(__file__, by_hand, __doc__, "onnxruntime", "infer")
