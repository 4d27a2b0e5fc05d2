"""What a software stack executes: by hand, and against what torch's dispatcher sees."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from every import every
from steptime import predict
from steptime.build import build_step, make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op, TensorSpec
from steptime.hardware import catalog
from steptime.hardware.stack import Execution, Stack, stack_from_table
from steptime.network.count import count, peak_bytes
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.execution import Launch, execution_of, list_launches
from steptime.network.ops.optimizers import STATES
from steptime.network.ops.training import training_graph
from steptime.prediction.kernel import Settings
from steptime.prediction.lower import lower

EAGER = catalog.stack("torch-eager")
PLAIN = Stack("plain", "a test")


def launches(graph: Graph, stack: Stack = EAGER) -> dict[str, Launch]:
    return {launch.ops[0].name: launch for launch in list_launches(graph, stack)}


def builder(training: bool = False) -> Builder:
    return Builder("test", precision("float32"), training)


@every("name", catalog.stack_names())
def test_a_stack_speaks_of_kinds_that_there_are(name):
    stack = catalog.stack(name)
    assert stack.name == name
    assert len(stack.source) > 10
    for kind, execution in stack.kinds.items():
        specs = OPS[kind].example.specs
        assert len(execution.reads) <= len(specs)
        inputs = len(specs) + kind.startswith("lstm")  # what projects its output comes last
        assert all(place < inputs for place in execution.step_inputs)
    for kind, into in stack.joins.items():
        assert {kind, *into} <= OPS.keys() | {"vector"}  # or any loop


def test_without_a_word_every_tensor_is_moved_once():
    graph = build_step(make_workload(read_model("fc:layers=2,nodes=8,batch=4"), optimizer="adam"))
    found = count(graph, PLAIN)
    assert found.executed_traffic_bytes == found.traffic_bytes
    assert found.executed_flop == found.flop
    assert found.kernels == len(graph.ops)


def test_a_bias_is_part_of_the_product_before_it():
    b = builder()
    x = b.op("linear", b.input("x", (4, 6)), b.weight("w", (5, 6)), name="linear")
    y = b.op("bias", x, b.weight("b", (5,)), name="bias")
    found = launches(b.graph(y))
    assert found.keys() == {"linear"}
    assert found["linear"].traffic_bytes == (4 * 6 + 5 * 6 + 5 + 4 * 5) * 4
    assert found["linear"].flop == 2 * 4 * 6 * 5 + 4 * 5
    both = b.graph(y)
    z = b.op("add", x, y, name="add")  # the product has another reader: it must be written out
    assert launches(b.graph(z)).keys() == {"linear", "bias", "add"}
    assert len(both.ops) == 2


def test_a_product_under_autocast_waits_for_the_cast_of_its_bias():
    b = Builder("test", precision("float16-mixed"), False)
    x = b.op("linear", b.input("x", (4, 6)), b.weight("w", (5, 6)), name="linear")
    y = b.op("bias", x, b.weight("b", (5,)), name="bias")
    found = list_launches(b.graph(y), EAGER)
    assert [one.ops[0].kind for one in found] == ["cast", "cast", "cast", "linear"]
    assert found[-1].traffic_bytes == (4 * 6 + 5 * 6 + 5 + 4 * 5) * 2


def test_a_product_whose_result_others_read_does_not_wait_for_the_cast_of_a_bias():
    b = builder()
    x, w, v = b.input("x", (4, 8)), b.weight("w", (8, 8)), b.input("v", (8,))
    y = b.op("linear", x, w, name="product")
    half = b.op("relu", y, name="relu")
    shift = b.op("relu", v, name="cast")
    z = b.op("bias", half, shift, name="bias", axis=1)
    graph = b.graph(z, b.op("add", y, x, name="sum"))
    table = {"name": "own", "fuses": ["matrix", "vector"], "joins": {"bias": ["linear"]}}
    found = list_launches(graph, stack_from_table({**table, "source": "a test"}, "own.toml"))
    made: set[str] = {"x", "w", "v"}
    for one in found:  # each reads only what was made before it
        for op in one.ops:
            assert {*op.inputs} <= made
            made |= {*op.outputs}


def test_batch_norm_reads_its_input_twice_in_training():
    for training, times in ((True, 2), (False, 1)):
        b = builder()
        c = [b.weight(f"c{i}", (3,)) for i in range(4)]
        b.op("batch_norm", b.input("x", (2, 3, 4, 4)), *c, name="norm", training=training)
        x = 2 * 3 * 4 * 4
        assert launches(b.graph("norm"))["norm"].traffic_bytes == (times * x + 4 * 3 + x) * 4


def test_views_move_nothing_and_the_gradient_of_a_concatenation_is_one():
    b = builder(training=True)
    parts = [b.weight(f"w{i}", (2, 3)) for i in range(2)]
    joined = b.op("concat", *parts, name="concat", axis=1)
    graph = training_graph(b.graph(b.op("mean", joined, name="loss")), "sgd")
    found = launches(graph)
    assert found["concat"].traffic_bytes == 2 * 12 * 4
    for name in ("concat/grad_0", "concat/grad_1"):
        assert (found[name].kernels, found[name].traffic_bytes) == (0, 0)


@every(
    ("optimizer", "passes", "kernels", "temporaries"),
    [("sgd", 3, 1, 0), ("momentum", 8, 3, 0), ("rmsprop", 13, 5, 1), ("adam", 18, 7, 1),
     ("adamw", 20, 8, 1)],
)  # fmt: skip
def test_an_optimizer_runs_over_all_weights_together(optimizer, passes, kernels, temporaries):
    b = builder(training=True)
    weights = [b.weight(f"w{i}", (2, 3)) for i in range(2)]
    loss = b.op("mean", b.op("add", *weights, name="add"), name="loss")
    graph = training_graph(b.graph(loss), optimizer)
    updates = [one for one in list_launches(graph, EAGER) if one.ops[0].part == "update"]
    assert [one.traffic_bytes for one in updates] == [passes * 6 * 4] * 2
    assert [one.kernels for one in updates] == [kernels, 0]
    states = STATES[optimizer]
    if temporaries:  # the mean's gradient, one tensor, is that of both weights; loss and seed
        held = (2 * (1 + states) + 1 + 2 * temporaries) * 6 * 4 + 2 * 4
        assert peak_bytes(graph, EAGER) == held


@pytest.mark.parametrize("projected", [False, True])
def test_the_recurrent_weights_are_read_at_every_step(projected):
    b, state = builder(True), 2 if projected else 5
    x = b.weight("x", (2, 3, 4))
    shapes = ((20, 4), (20, state), (20,), (20,), (2, 5))[: 5 if projected else 4]
    y = b.op("lstm", x, *(b.weight(f"w{i}", s) for i, s in enumerate(shapes)), name="lstm")
    graph = training_graph(b.graph(b.op("mean", y, name="loss")), "sgd")
    found, kept = launches(graph), 2 * 3 * (7 * 5 + (2 if projected else 0))
    weights = 20 * (4 + state + 2) + (10 if projected else 0)
    again, made = (3 - 1) * (20 * state + (10 if projected else 0)), 2 * 3 * state
    assert found["lstm"].traffic_bytes == (24 + weights + made + kept + again) * 4
    back = 24 + weights + made + kept + made + 24 + weights
    assert found["lstm/grad"].traffic_bytes == (back + again) * 4


@pytest.mark.parametrize("causal", [False, True])
def test_attention_computes_scores_again_and_skips_what_is_masked(causal):
    b = builder(training=True)
    q, k, v = (b.weight(name, (2, 3, 8)) for name in "qkv")
    y = b.op("attention", q, k, v, name="y", heads=4, kv_heads=4, causal=causal)
    found = launches(training_graph(b.graph(b.op("mean", y, name="loss")), "sgd"))
    forward = 4 * 2 * 4 * 3 * 3 * 2 * (0.5 if causal else 1)
    assert found["y"].flop == forward
    assert found["y/grad"].flop == 2.5 * forward


def test_fused_ops_keep_what_is_between_them():
    b = builder()
    x = b.op("softmax", b.input("x", (1, 1)), name="made")
    y = b.op("tanh", b.op("relu", x, name="relu"), name="tanh")
    (one,) = list_launches(b.graph(y), Stack("fusing", "a test", fuses=("vector",)))
    assert [op.name for op in one.ops] == ["made", "relu", "tanh"]
    assert one.traffic_bytes == 8
    apart = list_launches(b.graph(y), EAGER)
    assert [launch.traffic_bytes for launch in apart] == [8, 8, 8]


@pytest.mark.parametrize("shown", [False, True])
def test_a_compiled_loop_sees_through_views_and_ends_in_reductions(shown):
    b = builder()
    x, y = b.input("x", (4, 8)), b.input("y", (4, 8))
    added = b.op("add", x, y, name="added")
    turned = b.op("flatten", added, name="turned")
    made = b.op("relu", turned, name="made")
    b.op("softmax", made, name="shares")
    graph = b.graph(*([turned] if shown else []), "shares")
    size = 4 * 8 * 4
    eager, compiled = (
        launches(graph, catalog.stack(f"torch-{one}")) for one in ("eager", "compile")
    )
    assert [launch.traffic_bytes for launch in eager.values()] == [
        3 * size, 0, 2 * size, 2 * size,
    ]  # fmt: skip
    assert [len(launch.ops) for launch in compiled.values()] == [4]
    assert compiled["added"].traffic_bytes == (4 if shown else 3) * size  # what others read, too


def test_a_loop_that_alone_reads_parts_of_what_it_made_keeps_it():
    b = builder()
    x = b.input("x", (4, 8))
    made = b.op("relu", x, name="made")
    first, second = b.append("parts", "split", (made,), axis=1, sizes=(4, 4))
    graph = b.graph(b.op("mul", first, second, name="gated"))
    (one,) = list_launches(graph, catalog.stack("torch-compile"))
    assert one.traffic_bytes == 4 * (32 + 16)


def test_a_fused_kernel_reads_only_what_was_made_before_it():
    graph = build_step(make_workload(read_model("resnet50:batch=1")))
    made: dict[str, int] = {}
    kernels = list_launches(graph, Stack("fusing", "a test", fuses=("vector", "matrix")))
    assert len(kernels) < len(graph.ops)
    for i, kernel in enumerate(kernels):
        made.update({name: i for op in kernel.ops for name in op.outputs})
        assert all(made.get(name, 0) <= i for op in kernel.ops for name in op.inputs)
    assert sorted(op.name for one in kernels for op in one.ops) == sorted(
        op.name for op in graph.ops
    )


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "'name' is missing"),
    ({"name": "a", "source": "b", "fusse": []}, "unknown key 'fusse'; did you mean 'fuses'?"),
    (
        {"name": "a", "source": "b", "fuses": ["all"]},
        "unknown fuses[0] 'all'; known: vector, matrix",
    ),
    ({"name": "a", "source": "b", "joins": {"bias": "linear"}}, "'joins.bias' must be a list"),
    ({"name": "a", "source": "b", "kinds": {"relu": 2}}, "kinds.relu must be a table, not '2'"),
    ({"name": "a", "source": "b", "kinds": {"relu": {}}}, "kinds.relu: 'source' is missing"),
    (
        {"name": "a", "source": "b", "kinds": {"relu": {"source": "c", "passes": -1}}},
        "kinds.relu: 'passes' must be a number above 0, not '-1'",
    ),
]


@pytest.mark.parametrize(("table", "message"), WRONG, ids=[w[1] for w in WRONG])
def test_a_file_that_is_not_a_stack_is_refused(table, message):
    with pytest.raises(InputError) as error:
        stack_from_table(table, "my.toml")
    assert str(error.value).startswith("my.toml: ")
    assert message in str(error.value)


def test_a_stack_is_found_by_name_or_file(tmp_path):
    assert catalog.stack("Torch-Eager") == EAGER
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nsource = "me"\n')
    assert catalog.stack(str(path)) == Stack("mine", "me")
    with pytest.raises(InputError, match="unknown stack 'torch-eger'; did you mean 'torch-eager'"):
        catalog.stack("torch-eger")
    assert catalog.stack("torch") == EAGER


# what torch's dispatcher sees


def dispatched(call: Callable[[], object]) -> list[tuple[str, int]]:
    """Return the ops that torch dispatches, views left out: name, and bytes moved.

    A tensor that is read twice by one op counts once.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    seen: list[tuple[str, int]] = []

    class Seer(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            views = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
            read = {id(t): t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
            written = tree_leaves(made) if made is not None else tree_leaves(args[0])
            if not views:
                every = [*read.values(), *(t for t in written if isinstance(t, torch.Tensor))]
                seen.append((func.__name__, sum(t.nbytes for t in every)))
            return made

    with Seer():
        call()
    return seen


@pytest.mark.slow
@pytest.mark.framework
@every("optimizer", ("sgd", "momentum", "rmsprop", "adam", "adamw"))
def test_passes_of_an_optimizer_are_those_that_torch_dispatches(optimizer):
    import torch

    from steptime.measure.backends.torch.module import optimizer_of

    weights = [torch.nn.Parameter(torch.ones(100, 100)) for _ in range(3)]
    update = optimizer_of(optimizer, weights, "float32")
    for group in update.param_groups:
        group["foreach"] = True  # the default on a CUDA device
    for weight in weights:
        weight.grad = torch.ones(100, 100)
    update.step()  # makes the states
    how = EAGER.kinds[optimizer]
    seen = [(name, size) for name, size in dispatched(update.step) if size > 4000]
    assert len(seen) == how.kernels
    minimal = 2 * (1 + STATES[optimizer]) + 1
    assert sum(size for _, size in seen) == (how.passes or minimal) * 3 * 100 * 100 * 4


@pytest.mark.framework
@every("kind", ["rotary", "local_response_norm", "prelu", "maximum"])
def test_passes_of_a_kind_are_those_that_torch_dispatches(kind):
    import torch

    from steptime.measure.backends.torch.kinds import RUNS

    shape = (4, 64, 64, 64) if kind != "rotary" else (64, 64, 256)
    how: dict[str, Any] = dict(OPS[kind].example.attrs)
    inputs = [torch.rand(shape, requires_grad=True)]
    if kind == "rotary":
        inputs, how = [*inputs, torch.rand(64, 32)], {"head_width": 32}
    if kind == "prelu":
        inputs.append(torch.rand(64, requires_grad=True))
    if kind == "maximum":
        inputs.append(torch.rand(shape, requires_grad=True))
    made: list[Any] = []
    forward = dispatched(lambda: made.append(RUNS[kind](*inputs, **how)))
    grad = torch.ones_like(made[0])
    backward = dispatched(lambda: made[0].backward(grad))
    size = inputs[0].nbytes
    row = EAGER.kinds.get(kind, Execution(passes=len(OPS[kind].example.specs) + 1))
    if kind != "prelu":  # the slopes are few: two passes, as counted
        assert sum(n for _, n in forward) == pytest.approx(row.passes * size, rel=0.05)
    if kind == "rotary":  # autograd negates a half: one pass more
        assert sum(n for _, n in backward) == pytest.approx((row.passes + 1) * size, rel=0.05)
        return
    row = EAGER.kinds[f"{kind}_grad"]
    assert sum(n for _, n in backward) == pytest.approx(row.passes * size, rel=0.05)
    assert len([n for _, n in backward if n > size / 8]) == row.kernels


@pytest.mark.framework
def test_torch_takes_a_bias_in_the_product():
    import torch
    from torch.nn import functional

    from steptime.measure.backends.torch.kinds import convolution

    x, w, b = torch.ones(4, 6), torch.ones(5, 6), torch.ones(5)
    assert [name for name, _ in dispatched(lambda: functional.linear(x, w, b))] == ["addmm.default"]
    image, kernel = torch.ones(1, 3, 8, 8), torch.ones(5, 3, 3, 3)
    assert [name for name, _ in dispatched(lambda: convolution(image, kernel, b))] == [
        "convolution.default"
    ]


def test_an_attribute_says_whether_a_row_holds():
    norm = Op("norm", "batch_norm", ("x",), ("y",), {"training": True})
    assert execution_of(norm, EAGER).reads == (2,)
    still = Op("norm", "batch_norm", ("x",), ("y",), {"training": False})
    assert execution_of(still, EAGER) == Execution()
    assert TensorSpec((2, 3)).size_bytes == 24


@pytest.mark.slow
@pytest.mark.framework
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler: g++")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
def test_what_a_compiled_stack_reads_twice_is_read_twice_by_inductors_code(tmp_path, monkeypatch):
    import torch
    from torch._inductor.utils import run_and_get_code
    from torch.nn import functional

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")

    def code_of(call: Callable[[], Any]) -> tuple[Any, str]:
        made, parts = run_and_get_code(call)
        return made, "\n".join(parts)

    def loads(code: str) -> Counter[str]:
        return Counter(re.findall(r"loadu\((in_ptr\d+)", code))

    x, dy = torch.rand(8, 16, 32, 32, requires_grad=True), torch.ones(8, 16, 32, 32)
    w, b = (torch.rand(16, requires_grad=True) for _ in range(2))
    norm = torch.compile(
        lambda: functional.batch_norm(x, torch.zeros(16), torch.ones(16), w, b, training=True)
    )
    y, forward = code_of(norm)
    _, backward = code_of(lambda: y.backward(dy))
    compiled = catalog.stack("torch-compile").kinds
    assert max(loads(forward).values()) == compiled["batch_norm"].reads[0]
    twice = [times for times in loads(backward).values() if times == 2]
    assert len(twice) == len(compiled["batch_norm_grad"].reads)

    rows, weight, bias = torch.rand(128, 64), torch.rand(32, 64), torch.rand(32)
    product = torch.compile(lambda: functional.linear(rows, weight, bias).relu())
    _, code = code_of(product)
    assert "extern_kernels.addmm" in code  # the bias within, what follows in a kernel of its own
    assert len(re.findall(r"(cpp_fused_relu\w*) = async_compile", code)) == 1


@pytest.mark.framework
@every("groups", [1, 4, 32, 64])
@every("filters", [32, 64, 256])
def test_a_compiled_network_has_the_layout_that_inductor_decides(groups, filters):
    import torch
    from torch._inductor.graph import GraphLowering

    for training in (False, True):
        b, theirs = builder(training), torch.fx.Graph()
        x = b.input("x", (8, 64, 28, 28))
        for i, (made, each) in enumerate(((filters, 1), (64 * groups, 1), (64 * groups, groups))):
            w = b.weight(f"w{i}", (made, b.shape(x)[1] // each, 3, 3))
            x = b.op("conv2d", x, w, name=f"conv{i}", padding=(1, 1, 1, 1), groups=each)
        loss = b.op("mean", x, name="loss") if training else x
        graph = b.graph(loss)
        for op in graph.ops[:3]:
            read = [theirs.placeholder(f"{op.name}_{i}") for i in range(2)]
            how = None, (1, 1), (1, 1), (1, 1), False, (0, 0), op.attrs.get("groups", 1)
            node = theirs.call_function(torch.ops.aten.convolution.default, (*read, *how))
            for one, tensor in zip((*read, node), (*op.inputs, *op.outputs), strict=True):
                shape = graph.tensors[tensor].shape
                one.meta["val"] = torch.empty(shape, device="meta")
        network: Any = SimpleNamespace(graph=theirs)
        decided = GraphLowering.decide_layout_opt(network, is_inference=not training)
        step = training_graph(graph, "sgd") if training else graph
        kernels = lower(step, "float32", Settings(stack="torch-compile")).kernels
        last = {one.channels_last for one in kernels if one.kind.startswith("conv")}
        assert last == {decided}


def test_attention_that_is_not_one_kernel_moves_its_scores():
    """Batch 2, 4 heads of 8, length 16: 2048 scores of 4 bytes; 6 times between two products."""
    stack = Stack("apart", "a test", kinds={"attention": Execution(scores=6, kernels=3)})
    b = builder()
    q, k, v = (b.input(name, (2, 16, 32)) for name in "qkv")
    y = b.op("attention", q, k, v, name="y", heads=4, kv_heads=4, causal=True)
    products, softmax = list_launches(b.graph(y), stack)
    scores = 4 * 2 * 4 * 16 * 16
    moved = 4 * 4 * 2 * 16 * 32
    flop = 4 * 2 * 4 * 16 * 16 * 8  # a mask saves nothing
    found = (products.flop, products.traffic_bytes, products.kernels, products.runs_as)
    assert found == (flop, moved + 2 * scores, 2, "matmul")
    assert (softmax.traffic_bytes, softmax.kernels, softmax.row) == (6 * scores, 3, 16)
    assert softmax.runs_as == "softmax"


def test_older_torch_reads_scores_again_backward():
    model = read_model("transformer:layers=1,width=64,length=32,vocabulary=100")
    graph = build_step(make_workload(model, batch=2))
    older = [one for one in list_launches(graph, catalog.stack("torch-eager-1")) if one.runs_as]
    assert [one.runs_as for one in older] == ["matmul", "softmax", "matmul", "softmax_grad"]
    assert [len(one.products) for one in older] == [2, 0, 4, 0]


def test_hooks_of_zero_3_keep_the_host_busy_where_steps_are_short():
    """70 us more an op, forward and backward: seconds of hooks that long sequences hide."""
    seconds = {}
    for length in (64, 16384):
        model = f"transformer:layers=2,width=1024,heads=16,vocabulary=1000,length={length}"
        for stack in ("hf-2025", "deepspeed-2023"):
            options = {"stack": stack}
            step = predict(model, device="a100", batch=1, dtype="bfloat16-mixed", options=options)
            seconds[length, stack] = step.step_s
    short_ratio = seconds[64, "deepspeed-2023"] / seconds[64, "hf-2025"]
    long_ratio = seconds[16384, "deepspeed-2023"] / seconds[16384, "hf-2025"]
    assert short_ratio > 2.5
    assert long_ratio == pytest.approx(1, abs=0.1)
