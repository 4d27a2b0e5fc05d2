"""Adapters of data/adapters.toml, and bases in few bits: weights, FLOP, bytes, values.

FLOP and weights were compared with those of peft 0.21.2 over the same network in transformers:
counted by torch's FlopCounterMode, which leaves out attention on a CPU.
"""

from __future__ import annotations

import pytest

import steptime
from every import every
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.adapters import ADAPTERS, FEW_BITS
from steptime.core.errors import InputError
from steptime.core.graph import Graph, check
from steptime.core.tuning import make_tuning
from steptime.core.workload import Tuning, Workload
from steptime.network.count import count, peak_bytes

TOKENS = 2 * 32
DECODER = (
    "transformer:kind=decoder,layers=2,width=64,heads=4,kv_heads=2,ffn=128,length=32,"
    "vocabulary=96,norm=rms,activation=swiglu,positions=rotary"
)
LINEAR = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "out": (64, 64)}
LINEAR |= {"gate": (128, 64), "up": (128, 64), "down": (64, 128)}
HEAD = 96 * 64


def make_step(text: str = DECODER, dtype: str = "float32", **words: str) -> Workload:
    tuning = make_tuning(**words)  # type: ignore[arg-type]
    return make_workload(read_model(text), 2, dtype=dtype, optimizer="sgd", tuning=tuning)


def product_flop(graph: Graph) -> int:
    """Return the FLOP of all products but those of attention."""
    return sum(row.flop for row in count(graph).ops if row.kind in ("linear", "matmul"))


@every(
    ("words", "trained", "forward", "step"),
    [
        ({"lora": "r=4,on=linear"}, 8192, 11_272_192, 22_446_080),
        ({"adapter": "dora,r=4,on=linear"}, 9216, 12_517_376, 23_691_264),
        ({"adapter": "dora,r=4,on=linear,dropout=0.1"}, 9216, 21_954_560, 41_517_056),
        ({"adapter": "ia3"}, 384, 10_223_616, 19_398_656),
        ({"adapter": "prefix,tokens=5"}, 640, 10_223_616, 19_398_656),
    ],
)
def test_an_adapter_trains_and_computes_as_peft_does(words, trained, forward, step):
    workload = make_step(**words)
    graph, whole_step = build(workload), build_step(workload)
    check(graph)
    check(whole_step)
    assert graph.parameters == trained
    assert product_flop(graph) == forward
    assert product_flop(whole_step) == step


@every(
    ("words", "trained"),
    [
        ({"adapter": "dora,r=16,on=linear"}, 43_319_296),
        ({"adapter": "ia3"}, 524_288),
        ({"adapter": "prefix,tokens=30"}, 1_966_080),
        ({"lora": "r=16,on=linear", "modules_to_save": "embed_tokens,lm_head"}, 1_092_616_192),
    ],
)
def test_the_adapters_of_llama_3_are_as_many_as_in_peft(words, trained):
    tuning = make_tuning(**words)
    workload = make_workload(read_model("llama3_8b:length=8"), 1, "bfloat16", tuning=tuning)
    assert build(workload).parameters == trained


def test_dora_makes_each_adapted_matrix_whole():
    """By hand: ones on the diagonal by A, by B; then a scaling, a sum, a square, a sum."""
    rows = {row.name: row.flop for row in count(build(make_step(adapter="dora,r=4,on=linear"))).ops}
    for name, (outputs, inputs) in LINEAR.items():
        path = f"block1/{'attention' if name in ('q', 'k', 'v', 'out') else 'ffn'}/{name}/linear"
        assert rows[f"{path}/dora_down"] == 2 * inputs * inputs * 4
        assert rows[f"{path}/dora_up"] == 2 * inputs * 4 * outputs
        norm = ("scaled", "matrix", "squares", "sums")
        assert sum(rows[f"{path}/dora_{part}"] for part in norm) == 4 * outputs * inputs
        both = ("base", "low_rank", "both", "sum")
        assert sum(rows[f"{path}/dora_{part}"] for part in both) == 4 * TOKENS * outputs


def test_dora_keeps_both_products_for_the_gradient_of_its_magnitudes():
    """Two results of each adapted product more than LoRA; 7 products of 512 columns a layer."""
    text = DECODER.replace("layers=2", "layers=20")
    lora, dora = (
        peak_bytes(build_step(make_step(text, adapter=f"{name},r=4,on=linear")))
        for name in ("lora", "dora")
    )
    columns = sum(outputs for outputs, _ in LINEAR.values())
    assert dora - lora == pytest.approx(20 * TOKENS * columns * 4 * 2, rel=0.05)


def test_a_prefix_lengthens_keys_and_values_alone():
    graph = build(make_step(adapter="prefix,tokens=5"))
    ops = {op.name: op for op in graph.ops}
    query, keys, values = (
        graph.tensors[name].shape for name in ops["block1/attention/attention"].inputs
    )
    assert (query, keys, values) == ((2, 32, 64), (2, 37, 32), (2, 37, 32))
    flop = {row.name: row.flop for row in count(graph).ops}
    assert flop["block1/attention/attention"] == 2 * 2 * 2 * 32 * 37 * 64


def test_vectors_scale_the_parts_of_a_product_of_queries_keys_and_values():
    """GPT-2 makes all three at once: 12 layers of 768 keys, 768 values and 3072 inputs."""
    workload = make_step("gpt2:length=8", adapter="ia3")
    assert build(workload).parameters == 12 * (768 + 768 + 3072)


def test_saved_modules_are_trained_in_a_copy():
    """The original stays in memory; with SGD a trained copy costs a gradient besides."""
    text = DECODER.replace("vocabulary=96", "vocabulary=96000")
    plain, saved = (
        build(make_step(text, lora="r=4", **words))
        for words in ({}, {"modules_to_save": "lm_head"})
    )
    assert saved.parameters - plain.parameters == 96_000 * 64
    step = build_step(make_step(text, lora="r=4", modules_to_save="embedding"))
    held = sum(step.tensors[name].size_bytes for name in (*step.weights, *step.frozen))
    before = sum(plain.tensors[name].size_bytes for name in (*plain.weights, *plain.frozen))
    assert held - before == 96_000 * 64 * 4


def test_layers_trained_alone_stop_the_backward_pass_below_them():
    """Of two layers the last: its products have two gradients, the first layer has none."""
    graph = build_step(make_step(train="block2/*,final_norm/*"))
    layer = sum(outputs * inputs for outputs, inputs in LINEAR.values())
    biases = sum(outputs for outputs, _ in LINEAR.values())
    assert graph.parameters == layer + biases + 3 * 64
    backward = {op.forward_op.partition("/")[0] for op in graph.ops if op.part == "backward"}
    assert "block1" not in backward
    forward, of_weights, of_data = 2 * layer + HEAD, layer, layer + HEAD  # down to its first norm
    assert product_flop(graph) == 2 * TOKENS * (forward + of_weights + of_data)


BITS = {  # by hand, for a matrix of 4096 x 4096
    "nf4": 4 + 32 / 64,
    "nf4-dq": 4 + 8 / 64 + 32 / (64 * 256),
    "int4": 4 + (16 + 16) / 128,
    "awq": 4 + (16 + 4) / 128,
    "gptq": 4 + (16 + 4) / 128 + 32 / 4096,
    "mxfp4": 4 + 8 / 32,
    "float4": 4 + 8 / 16,
    "int8": 8 + 32 / 4096,
    "float8": 8 + 32 / 128**2,
}


@every(("name", "bits"), [*BITS.items()])
def test_what_lies_beside_weights_of_few_bits(name, bits):
    sizes = {"int4": 4, "int8": 8, "float16": 16, "bfloat16": 16, "float32": 32, "int32": 32}
    row = FEW_BITS[name]
    extra = sum(size * sizes[dtype] for size, dtype in row.extra_tensors((4096, 4096)).values())
    assert sizes[row.type] + extra / 4096**2 == pytest.approx(bits, rel=1e-6)


def test_every_base_is_smaller_than_the_one_of_more_bits():
    """Weights of Llama-3-8B but embedding and head: 6.98e9 of them in few bits."""
    for name in ("int4", "awq", "gptq", "float4", "int8", "float8"):
        tuning = Tuning(rank=8, weights=name)
        graph = build(make_workload(read_model("llama3_8b:length=8"), 1, "bfloat16", tuning=tuning))
        held = sum(graph.tensors[one].size_bytes for one in (*graph.weights, *graph.frozen))
        products = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
        wide = 8_030_261_248 - products
        adapters = 32 * 8 * (2 * 8192 + 2 * 5120)
        expected = products * BITS[name] / 8 + 2 * (wide + adapters)
        assert held == pytest.approx(expected, rel=5e-4), name


def test_experts_are_kept_in_few_bits_where_the_type_says_so():
    """GPTQ, AWQ, MXFP4 and FP8 files hold experts; of nf4 the software decides."""
    weights = {
        name: build(
            make_workload(
                read_model(f"{DECODER},experts=4,experts_per_token=2"),
                1,
                "bfloat16",
                tuning=Tuning(rank=8, weights=name),
            )
        )
        for name in ("nf4", "gptq", "mxfp4")
    }
    types = {name: graph.tensors["block1/experts/up/w"].dtype for name, graph in weights.items()}
    assert types == {"nf4": "bfloat16", "gptq": "int4", "mxfp4": "int4"}
    assert weights["mxfp4"].tensors["block1/attention/q/w"].dtype == "bfloat16"


@every(
    ("words", "says"),
    [
        ({"adapter": "dorra,r=8"}, "unknown adapter 'dorra'; did you mean 'dora'?"),
        ({"adapter": "prefix,r=8"}, "unknown key 'r'; known: tokens"),
        ({"adapter": "dora,r=0"}, "--adapter r: must be at least 1, not 0"),
        ({"lora": "8", "adapter": "ia3"}, "--lora and --adapter: one of them"),
        ({"modules_to_save": "lm_head"}, "goes with an adapter, such as --lora 16"),
        ({"adapter": "prefix", "packed": "16"}, "leave --packed out"),
        ({"lora": "8", "modules_to_save": "lm_hed"}, "has no such module; some are embedding"),
        ({"adapter": "ia3,on=queries"}, "on=queries: transformer has no such product"),
        ({"lora": "8", "weights": "mxfp4"}, "of experts, and transformer has none; nearest"),
        ({"train": "block2/*,nothing*"}, "--train 'nothing*': no weight is named so"),
    ],
)
def test_a_wrong_adapter_is_one_clear_line(words, says):
    with pytest.raises(InputError) as error:
        build(make_step(**words))
    assert says in str(error.value)


def test_dora_of_some_parts_of_one_product_names_the_nearest():
    with pytest.raises(InputError, match="together; nearest: on=attention"):
        build(make_step("gpt2:length=8", adapter="dora,on=q+v"))


def test_every_adapter_names_its_source_and_is_priced():
    for name, row in ADAPTERS.items():
        assert row.source
        answer = steptime.predict("gpt2:length=64", "a100", 1, adapter=name, dtype="bfloat16")
        assert row.title in answer.tuning
        assert answer.step_s > 0


@pytest.mark.framework
@pytest.mark.parametrize("adapter", ["dora,r=3,on=linear", "ia3", "prefix,tokens=3"])
def test_torch_trains_every_adapter_and_its_gradients_are_finite(adapter):
    """The graph runs: each adapter gets a gradient, no frozen weight does."""
    import torch

    from steptime.core.dtypes import precision
    from steptime.measure.backends.torch.module import initial_values, module_of

    graph = build(make_step(dtype="float64", adapter=adapter))
    values = initial_values(graph, torch.device("cpu"), 0)
    module = module_of(graph, values, precision("float64"))
    module(*(values[name] for name in graph.inputs)).backward()
    for name in graph.weights:
        assert torch.isfinite(values[name].grad).all()
    assert not any(getattr(values.get(name), "grad", None) is not None for name in graph.frozen)


@pytest.mark.framework
def test_torch_computes_dora_as_its_paper_writes_it():
    """One product: m (W + 2 B A) x over the norm of rows, through which no gradient goes back.

    The ones on the diagonal that B A is made of are a buffer, which is set to 0 here.
    """
    import torch
    from torch.nn import functional as f

    from steptime.core.dtypes import precision
    from steptime.measure.backends.torch.module import initial_values, module_of

    text = "fc:layers=1,nodes=32,inputs=16,outputs=8"
    graph = build(make_step(text, "float64", adapter="dora,r=3,on=output"))
    values = initial_values(graph, torch.device("cpu"), 0)
    with torch.no_grad():
        values["identity32/constant"].zero_()
    loss = module_of(graph, values, precision("float64"))(*(values[n] for n in graph.inputs))
    first = next(name.removesuffix("/w") for name in graph.frozen if name.endswith("/w"))
    x, labels = (values[name] for name in graph.inputs)
    x = torch.relu(x @ values[f"{first}/w"].T + values[f"{first}/b"])
    path, weight = "output/linear", values["output/w"]
    low_rank = values[f"{path}/lora_b"] @ values[f"{path}/lora_a"]
    share = values[f"{path}/dora_magnitude"] / weight.norm(dim=1)
    y = share * (x @ (weight + 2 * low_rank).T) + values["output/b"]
    wanted = f.cross_entropy(y, labels)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-9)
    loss.backward()
    for name, grad in zip(
        graph.weights, torch.autograd.grad(wanted, [values[n] for n in graph.weights]), strict=True
    ):
        assert torch.allclose(values[name].grad, grad, rtol=1e-9, atol=1e-12)
