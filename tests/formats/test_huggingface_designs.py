"""A `config.json` whose blocks differ: parameters by hand, caches, and published files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from every import every
from places import ROOT
from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.planning.ranks.site import Site
from steptime.serving.phases import Phases
from steptime.serving.service import Service

PUBLISHED = ROOT.parent / "shared/cases/llm/configs"
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
SIZES |= {"vocab_size": 100, "intermediate_size": 96}
ATTENTION = 64 * (4 + 2 * 2) * 16 + 4 * 16 * 64
WORDS = 2 * 100 * 64 + 64  # two tables, and the last norm
V3_ATTENTION = 7168 * (1536 + 576) + 1536 + 512 + 1536 * 128 * 192 + 512 * 128 * 256
V3_ATTENTION += 128 * 128 * 7168
MAMBA = {"mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 16}
NEMOTRON = {"model_type": "nemotron_h", **SIZES, **MAMBA, "hybrid_override_pattern": "M*-E"}
NEMOTRON |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
NEMOTRON |= {"moe_shared_expert_intermediate_size": 48, "moe_latent_size": 24}


def written(folder: Path, table: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(table))
    return str(path)


def network(path: str) -> Graph:
    return build(make_workload(read_model(path), None, phase="infer"))


def phases(path: str, tensor: int = 1) -> Phases:
    return Service(path, Site("h100-sxm5", 8, "nvlink-4"), tensor=tensor, stack="vllm").phases()


def test_blocks_of_nemotron_h_are_states_attention_dense_parts_and_experts(tmp_path):
    inner, keys = 4 * 32, 2 * 16
    channels = inner + 2 * keys
    state = 64 * (inner + channels + 4) + channels * 4 + channels + 3 * 4 + inner + inner * 64
    dense = 2 * 64 * 96
    experts = 64 * 8 + 2 * 64 * 24 + 8 * 2 * 24 * 40 + 2 * 64 * 48
    parameters = state + ATTENTION + dense + experts + 4 * 64 + WORDS
    assert network(written(tmp_path, NEMOTRON)).parameters == parameters


def test_a_sequence_of_nemotron_h_keeps_tokens_of_attention_and_a_state(tmp_path):
    one = phases(written(tmp_path, NEMOTRON))
    assert one.kv_token_bytes == 2 * 2 * 16 * 2  # keys and values of 2 heads, in 16 bit
    assert one.kv_bytes(0) == 4 * 32 * 16 * 4  # one state of 4 heads, in float32


def test_an_indexer_keeps_a_key_of_each_token_and_attention_all_of_them(tmp_path):
    latent = {"q_lora_rank": 32, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "v_head_dim": 16}
    table = {"model_type": "deepseek_v32", **SIZES, **latent, "qk_nope_head_dim": 16}
    table |= {"num_hidden_layers": 2, "first_k_dense_replace": 2, "index_topk": 64}
    table |= {"index_n_heads": 4, "index_head_dim": 32}
    path = written(tmp_path, table)
    one = phases(path)
    assert one.kv_token_bytes == 2 * (24 + 8 + 32) * 2
    assert one.kv_bytes(10_000) == 10_000 * one.kv_token_bytes
    indexer = 32 * 4 * 32 + 64 * 32 + 2 * 32 + 64 * 4
    without = {key: value for key, value in table.items() if not key.startswith("index_")}
    plain = network(written(tmp_path, without | {"model_type": "deepseek_v3"})).parameters
    assert network(written(tmp_path, table)).parameters == plain + 2 * indexer


def test_decoding_attends_to_as_many_tokens_as_the_indexer_chooses(tmp_path):
    """Beyond `index_topk` tokens only the scores of the indexer grow with the context."""
    table = {"model_type": "deepseek_v32", "num_hidden_layers": 4, "num_attention_heads": 128}
    one = phases(written(tmp_path, table | {"n_routed_experts": 8, "num_experts_per_tok": 2}))
    short, middle, long = (one.price_decode(64, n).attention_s for n in (2048, 32_768, 65_536))
    keys_s = 4 * 64 * 32_768 * 128 * 2 / one.device.datasheet.memory_bytes_per_s
    assert keys_s < long - middle < 3 * keys_s
    assert short < middle


def test_blocks_that_reuse_a_choice_have_no_indexer(tmp_path):
    table = {"model_type": "glm_moe_dsa", "num_hidden_layers": 2, "n_routed_experts": 8}
    shared = network(written(tmp_path, table | {"indexer_types": ["full", "shared"]}))
    both = network(written(tmp_path, table | {"indexer_types": ["full", "full"]}))
    indexer = 2048 * 32 * 128 + 6144 * 128 + 2 * 128 + 6144 * 32
    assert both.parameters - shared.parameters == indexer


def test_compressed_tokens_lie_in_the_cache_by_their_ratio(tmp_path):
    table = {"model_type": "deepseek_v4", "num_hidden_layers": 3, "n_routed_experts": 8}
    one = phases(written(tmp_path, table | {"compress_ratios": [0, 4, 128]}))
    window = 3 * 128 * 512 * 2  # of 128 tokens in each block, one vector a token
    compressed = 12_800 / 4 * (512 + 128) * 2 + 12_800 / 128 * 512 * 2
    assert one.kv_bytes(12_800) == pytest.approx(window + compressed)


def test_blocks_with_a_window_have_heads_of_their_own(tmp_path):
    table = {"model_type": "mimo_v2_flash", **SIZES, "num_hidden_layers": 2, "v_head_dim": 8}
    table |= {
        "hybrid_layer_pattern": [0, 1],
        "moe_layer_freq": [0, 0],
        "swa_num_key_value_heads": 4,
    }
    table |= {"swa_head_dim": 16, "swa_v_head_dim": 8, "sliding_window": 16}
    whole = 64 * (4 * 16 + 2 * 16 + 2 * 8) + 4 * 8 * 64
    windowed = 64 * (4 * 16 + 4 * 16 + 4 * 8) + 4 * 8 * 64 + 4  # and a sink of each head
    dense = 3 * 64 * 96
    path = written(tmp_path, table)
    assert network(path).parameters == whole + windowed + 2 * (dense + 2 * 64) + WORDS
    one = phases(path)
    assert one.kv_bytes(1000) == 1000 * 2 * (16 + 8) * 2 + 16 * 4 * (16 + 8) * 2


def test_blocks_of_gemma_4_share_keys_and_have_embeddings_of_their_own(tmp_path):
    table = {"model_type": "gemma4_text", **SIZES, "num_hidden_layers": 3, "global_head_dim": 32}
    table |= {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    table |= {"num_kv_shared_layers": 1, "hidden_size_per_layer_input": 8}
    table |= {"vocab_size_per_layer_input": 100, "tie_word_embeddings": True}
    sliding = ATTENTION + 2 * 16
    whole = 64 * (4 + 2 * 2) * 32 + 4 * 32 * 64 + 2 * 32
    reusing = 2 * 64 * 4 * 32 + 32
    own = 2 * 64 * 8 + 64
    block = 3 * 64 * 96 + 4 * 64 + own
    tables = 100 * 64 + 64 + 100 * 3 * 8 + 64 * 3 * 8 + 8
    path = written(tmp_path, table)
    assert network(path).parameters == sliding + whole + reusing + 3 * block + tables
    one = phases(path)
    assert one.kv_token_bytes == (2 * 2 * 16 + 2 * 2 * 32) * 2  # none of the third block


def test_blocks_of_gemma_3n_correct_streams_that_they_do_not_compute(tmp_path):
    table = {"model_type": "gemma3n_text", **SIZES, "num_hidden_layers": 3, "laurel_rank": 8}
    table |= {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    table |= {"num_kv_shared_layers": 1, "hidden_size_per_layer_input": 8}
    table |= {"vocab_size_per_layer_input": 90, "tie_word_embeddings": True}
    attention = ATTENTION + 2 * 16
    reusing = 2 * 64 * 4 * 16 + 16
    altup = 4 * 4 + 4 * 16 + 4 * 64 + 2 * 64  # two coefficients, a router and its norm, a scale
    laurel = 2 * 64 * 8 + 64
    block = 3 * 64 * 96 + 4 * 64 + 2 * 64 * 8 + 64 + altup + laurel
    tables = 100 * 64 + 64 + 90 * 3 * 8 + 64 * 3 * 8 + 8
    path = written(tmp_path, table)
    streams = 2 * 3 * 64 * 64
    assert network(path).parameters == 2 * attention + reusing + 3 * block + tables + streams
    assert phases(path).kv_token_bytes == 2 * (2 * 2 * 16) * 2  # none of the third block


def test_a_block_may_have_no_attention(tmp_path):
    blocks = [
        {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 6.0}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 3.0}},
    ]
    table = {"model_type": "nemotron-nas", **SIZES, "block_configs": blocks}
    first = ATTENTION + 3 * 64 * 256 + 2 * 64
    second = 3 * 64 * 256 + 64
    assert network(written(tmp_path, table)).parameters == first + second + WORDS
    linear = {"attention": {"replace_with_linear": True}, "ffn": {}}
    with pytest.raises(InputError, match="replace_with_linear: 'True' is not known"):
        network(written(tmp_path, table | {"block_configs": [blocks[0], linear]}))


@every("model_type", ["lfm2", "falcon_h1", "bamba", "granitemoehybrid", "kimi_linear", "mamba2"])
def test_blocks_with_states_divide_among_tensor_ranks(model_type, tmp_path):
    path = written(tmp_path, {"model_type": model_type})
    assert phases(path, tensor=2).weight_bytes < 0.6 * phases(path).weight_bytes


PARAMETERS = {  # as the checkpoint or transformers 5.24 counts the decoder of words
    "Qwen--Qwen3-235B-A22B-FP8": 235_093_634_560,
    "Qwen--Qwen3-VL-235B-A22B-Instruct": 235_093_634_560,
    "Qwen--Qwen3-VL-2B-Instruct": 1_720_574_976,
    "deepseek-ai--DeepSeek-V3.2": 671_877_929_216,
    "deepseek-ai--DeepSeek-V4-Flash": 284_332_230_231,
    "google--gemma-4-26B-A4B": 25_233_141_760,
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": 400_711_848_960,
    "nvidia--GLM-5-NVFP4": 743_911_199_232,
    "nvidia--Kimi-K2.5-NVFP4": 1_026_408_209_408,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_937_344,
}


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="shared/cases is not here")
def test_every_published_file_is_read():
    files = sorted(PUBLISHED.glob("*.json"))
    counted = {file.stem: network(str(file)).parameters for file in files}
    assert counted.keys() <= PARAMETERS.keys()
    assert {name: PARAMETERS[name] for name in counted} == counted


@every(
    ("table", "parameters"),
    [
        # DeepSeek-AI 2024, section 2.2: a block, a product of 2 x 7168, three norms; 256 experts
        (
            {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1},
            V3_ATTENTION + 257 * 3 * 7168 * 2048 + 256 * 7168 + 2 * 7168**2 + 5 * 7168,
        ),
        ({"model_type": "llama", "num_nextn_predict_layers": 2}, 2 * (202_383_360 + 33_566_720)),
        (NEMOTRON | {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*"}, 0),
    ],
)
def test_layers_that_predict_further_tokens_are_counted_apart(table, parameters, tmp_path):
    graph = network(written(tmp_path, table))
    count = parameters or ATTENTION + 64 + 2 * 64 * 64 + 3 * 64
    assert any(f"counted apart: {count:,} parameters" in remark for remark in graph.remarks)
