"""Decoders of a `config.json` beside transformers: parameters, linear layers and FLOP."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from every import every
from steptime.build import build, make_workload, read_model
from steptime.core.graph import Graph
from steptime.network.count import count
from steptime.network.ops import OPS

_SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 120}
_WORDS = {
    **_SIZES,
    "intermediate_size": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_WORDS, "num_key_value_heads": 2}
_LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
_LATENT |= {"v_head_dim": 12, "n_routed_experts": 8, "moe_intermediate_size": 32}
_LATENT |= {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "arcee": ("arcee", _GROUPED),
    "apertus": ("apertus", _GROUPED),
    "hunyuan dense": ("hunyuan_v1_dense", {**_GROUPED, "head_dim": 24}),
    "cohere": ("cohere", {**_GROUPED, "attention_bias": True}),
    "cohere2": ("cohere2", _GROUPED),
    "exaone4": ("exaone4", _GROUPED),
    "ministral3": ("ministral3", {**_GROUPED, "head_dim": 24}),
    "olmoe": ("olmoe", {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    "phimoe": ("phimoe", {**_GROUPED, **_EXPERTS, "attention_bias": True, "lm_head_bias": True}),
    "granitemoe": ("granitemoe", {**_GROUPED, **_EXPERTS}),
    "granitemoe shared": (
        "granitemoeshared",
        {**_GROUPED, **_EXPERTS, "shared_intermediate_size": 48},
    ),
    "falcon": ("falcon", _SIZES),
    "falcon new": ("falcon", {**_SIZES, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon one norm": (
        "falcon",
        {**_SIZES, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    ),
    "falcon rw": (
        "falcon",
        {**_SIZES, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "glm": ("glm", {**_GROUPED, "head_dim": 16}),
    "glm4 lite": ("glm4_moe_lite", {**_WORDS, **_LATENT}),
    "helium": ("helium", {**_GROUPED, "head_dim": 16}),
    "nemotron": ("nemotron", {**_GROUPED, "head_dim": 16, "mlp_bias": True}),
    "gemma3n": (
        "gemma3n_text",
        {
            **_GROUPED,
            "head_dim": 16,
            "num_hidden_layers": 10,
            "num_kv_shared_layers": 5,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 112,
            "laurel_rank": 12,
        },
    ),
    "llama4": ("llama4_text", {**_GROUPED, **_EXPERTS, "intermediate_size_mlp": 160}),
    "llama4 every second": (
        "llama4_text",
        {**_GROUPED, **_EXPERTS, "interleave_moe_layer_step": 2},
    ),
    "llama4 listed": ("llama4_text", {**_GROUPED, **_EXPERTS, "moe_layers": [0, 3]}),
}


def _linear(graph: Graph) -> Counter[tuple[int, ...]]:
    found = (op for op in graph.ops if op.kind == "linear" and "router" not in op.name)
    return Counter(graph.tensors[op.inputs[1]].shape for op in found)


def _linear_of(model: Any, layer: type) -> Counter[tuple[int, ...]]:
    """Return the shapes of a model's linear layers: a gate and what it gates apart, no routers."""
    found: Counter[tuple[int, ...]] = Counter()
    for name, module in model.named_modules():
        if isinstance(module, layer) and not name.endswith(("router", "gate", "router.layer")):
            rows, columns = module.weight.shape
            both = 2 if name.endswith(("gate_up_proj", "input_linear")) else 1
            found[rows // both, columns] += both
    return found


@pytest.mark.parametrize("name", SMALL)  # not `every`, which makes a failure of a skip
def test_linear_layers_and_parameters_are_those_of_transformers(name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, table = SMALL[name]
    config = transformers.CONFIG_MAPPING[kind](**table)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **table}))
    graph = build(make_workload(read_model(str(path)), None, phase="infer"))
    assert graph.parameters == sum(one.numel() for one in model.parameters())
    assert _linear(graph) == _linear_of(model, torch.nn.Linear)


@every(
    ("name", "flop"),
    [  # FLOP of products that torch 2.13 counts in transformers 5.24, of 64 tokens
        ("arcee", 17_760_256),
        ("apertus", 17_760_256),
        ("hunyuan dense", 26_148_864),
        ("cohere", 20_905_984),
        ("exaone4", 20_905_984),
        ("ministral3", 26_148_864),
        ("falcon", 27_197_440),
        ("falcon new", 28_246_016),
        ("falcon rw", 30_343_168),
        ("glm", 20_905_984),
        ("nemotron", 17_760_256),
        ("gemma3n", 57_315_328),
    ],
)
def test_flop_of_products_are_those_of_transformers(name, flop, tmp_path):
    kind, table = SMALL[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **table}))
    model = read_model(f"{path}:length=64")
    graph = build(make_workload(model, None, phase="infer"))
    assert sum(op.flop for op in count(graph).ops if OPS[op.kind].work) == flop
