"""Mixed precision: the type of every op against torch's own autocast, on fake tensors.

The networks run as the torch backend runs them, op by op, under autocast for CUDA devices, whose
lists `OpKind.autocast` states. Fake tensors need no such device, but for batch norm, which follows
its input on every device: its networks run under autocast for CPUs. There norms and softmax follow
their input too, and a GRU is not cast, which the lists for CUDA devices do otherwise.
"""

from __future__ import annotations

from typing import Any

import pytest

from every import every
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.network.count import peak_bytes
from steptime.network.ops.builder import Builder
from steptime.network.ops.elementwise import FUNCTIONS

pytestmark = pytest.mark.framework

NETWORKS = {
    "fc": "cuda",
    "alexnet": "cuda",
    "squeezenet1_1": "cuda",
    "transformer:layers=2,width=64,length=16,vocabulary=99": "cuda",
    "transformer:kind=encoder,layers=2,width=64,length=16,vocabulary=99,dropout=0.1": "cuda",
    "transformer:layers=2,width=64,length=16,vocabulary=99,norm=rms,activation=swiglu,"
    "positions=rotary,tied=no": "cuda",
    "rnn:cell=lstm,layers=2": "cuda",
    "rnn:cell=rnn": "cuda",
    "cnn:block=residual,blocks=1,filters=8,image=64": "cpu",
    "resnet50": "cpu",
    "densenet_cifar": "cpu",
    "mobilenet_v2": "cpu",
}


def types_seen(graph: Graph, dtype: str, device: str) -> dict[str, str]:
    """Return the type of each op's output, by the op's name in the generated module."""
    import torch
    from torch import fx
    from torch._subclasses.fake_tensor import FakeTensorMode

    from steptime.measure.backends.torch.module import module_of

    types = precision(dtype)
    seen: dict[str, str] = {}

    class Seer(fx.Interpreter):
        def run_node(self, n: fx.Node) -> object:
            made = super().run_node(n)
            seen[n.name] = str(made.dtype).removeprefix("torch.")
            return made

    with FakeTensorMode(), torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
        values = {
            name: torch.empty(
                graph.tensors[name].shape,
                dtype=getattr(torch, graph.tensors[name].dtype),
                device=device,
            )
            for name in (*graph.inputs, *graph.weights, *graph.buffers)
        }
        module = module_of(graph, values, types)
        torch.set_autocast_enabled(device, True)  # `torch.autocast` asks for the device itself
        torch.set_autocast_dtype(device, getattr(torch, types.compute))
        try:
            Seer(module).run(*(values[name] for name in graph.inputs))
        finally:
            torch.set_autocast_enabled(device, False)
            torch.clear_autocast_cache()
    return seen


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("text", NETWORKS)
def test_every_op_has_the_type_that_torch_gives_it(text, turn):
    """Each network in either type, one of them quick: that of its place in the table."""
    from steptime.measure.backends.torch.module import _identifier

    dtype = ("bfloat16-mixed", "float16-mixed")[([*NETWORKS].index(text) + turn) % 2]
    graph = build(make_workload(read_model(text), 2, dtype))
    seen = types_seen(graph, dtype, NETWORKS[text])
    ours = {
        _identifier(op.name): graph.tensors[op.outputs[0]].dtype
        for op in graph.ops
        if op.kind != "cast" and _identifier(op.name) in seen
    }
    assert len(ours) >= len(seen) - len(graph.inputs) - len(graph.weights) - len(graph.buffers) - 1
    assert ours == {name: seen[name] for name in ours}


def one_op(kind: str, *shapes: tuple[int, ...], **attrs: Any) -> Graph:
    """A product, which is of the low type, and an op on it (and on weights)."""
    b = Builder("x", precision("bfloat16-mixed"), training=False)
    x = b.op("linear", b.input("x", (2, 6)), b.weight("w", (6, 6)), name="product")
    x = b.op("reshape", x, name="seen", shape=shapes[0])
    others = [b.weight(f"w{i}", shape) for i, shape in enumerate(shapes[1:])]
    return b.graph(b.op(kind, x, *others, name="op", **attrs))


def _function(name: str) -> Graph:
    how: dict[str, Any] = {"low": 0.0, "high": 1.0} if name == "clamp" else {}
    if len(FUNCTIONS[name].gradients) > 1:
        how["scalar"] = 2.0
    return one_op("pointwise", (3, 4), function=name, **how)


GENERAL = {
    **{name: _function(name) for name in FUNCTIONS if name not in ("where", "and", "or", "xor")},
    "1 / x": one_op("pointwise", (3, 4), function="div", scalar=1.0, scalar_place=0),
    **{
        name: one_op("reduce", (3, 4), function=name, axes=(1,))
        for name in ("sum", "mean", "max", "min", "prod", "argmax", "any")
    },
    "cumsum": one_op("cumsum", (3, 4), axis=1),
    "group_norm": one_op("group_norm", (3, 4), (4,), (4,), groups=2),
    "resize2d": one_op("resize2d", (1, 1, 3, 4), size=(6, 7), mode="bilinear"),
    "pad": one_op("pad", (3, 4), pads=(0, 0, 1, 1)),
    "tile": one_op("tile", (3, 4), times=(1, 2)),
    "broadcast": one_op("broadcast", (3, 4), shape=(2, 3, 4)),
    "matmul": one_op("matmul", (3, 4), (2, 4, 5)),
}


@every("name", GENERAL)
def test_every_general_kind_has_the_type_that_torch_gives_it(name):
    graph = GENERAL[name]
    assert types_seen(graph, "bfloat16-mixed", "cuda")["op"] == graph.tensors["op"].dtype


def tracked_bytes(work: Workload) -> int:
    """Return the peak of PyTorch's memory tracker over a step as the torch backend runs it."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from steptime.measure.backends.torch.module import module_of

    graph, types = build(work), precision(work.dtype)
    with FakeTensorMode():
        values: dict[str, torch.Tensor] = {}
        for name in (*graph.inputs, *graph.weights, *graph.buffers):
            spec = graph.tensors[name]
            values[name] = torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
            if name in graph.weights:
                values[name] = torch.nn.Parameter(values[name])
        module = module_of(graph, values, types)
        inputs = [values[name] for name in graph.inputs]
        update = torch.optim.SGD([values[name] for name in graph.weights], lr=0.1)

        def step() -> None:
            low = torch.autocast("cpu", dtype=torch.bfloat16, enabled=types.mixed)
            with low:
                if work.phase == "infer":
                    with torch.no_grad():
                        module(*inputs)
                    return
                loss = module(*inputs)
            loss.backward()
            del loss
            update.step()
            update.zero_grad()

        tracker = MemTracker()
        tracker.track_external(module, *inputs, update)
        with tracker:
            step()
            tracker.reset_mod_stats()
            step()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
        return int(peak["Total"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16-mixed"])
@pytest.mark.parametrize("phase", ["train", "infer"])
@pytest.mark.parametrize(
    "text",
    [
        "fc:batch=256",
        "alexnet:batch=8",
        pytest.param("resnet50:batch=8", marks=pytest.mark.slow),
        "cnn:block=residual,blocks=1,filters=16,image=200,batch=8",
        pytest.param("inception_v3:batch=2", marks=pytest.mark.rare),
        pytest.param("densenet121:batch=2", marks=pytest.mark.rare),
        "transformer:layers=2,width=256,length=256,vocabulary=1000,batch=4",
        pytest.param("bert_base", marks=pytest.mark.rare),
    ],
)
def test_peak_memory_is_that_of_the_module_that_is_run(text, phase, dtype):
    """A tensor that the caller holds, as the input, is there to the end of the step."""
    work = make_workload(read_model(text), dtype=dtype, phase=phase, optimizer="sgd")
    assert peak_bytes(build_step(work)) == pytest.approx(tracked_bytes(work), rel=0.001)
