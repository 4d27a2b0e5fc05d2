"""Networks of `config.json` run: their gradients are those of the reference, op by op."""

import json
from typing import Any

import pytest

from every import every
from measure.test_backend_values import compare_gradients
from steptime.build import build, make_workload, read_model

pytestmark = pytest.mark.framework

_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_WORDS = {**_SIZES, "intermediate_size": 24, "vocab_size": 11, "max_position_embeddings": 8}
_PAIR = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "vocab_size": 11,
    "max_position_embeddings": 8,
}
_IMAGE = {**_SIZES, "intermediate_size": 24, "image_size": 8, "patch_size": 4}
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", **_WORDS},
    "gemma2": {"model_type": "gemma2", **_WORDS, "num_key_value_heads": 1, "head_dim": 6},
    "gpt_neox": {"model_type": "gpt_neox", **_WORDS, "partial_rotary_factor": 0.5},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        **_WORDS,
        "num_key_value_heads": 1,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 12,
    },
    "apertus": {"model_type": "apertus", **_WORDS},
    "arcee": {"model_type": "arcee", **_WORDS},
    "cohere": {"model_type": "cohere", **_WORDS, "num_key_value_heads": 1},
    "opt": {"model_type": "opt", **_WORDS, "ffn_dim": 24, "word_embed_proj_dim": 8},
    "bert masked": {"model_type": "bert", "architectures": ["BertForMaskedLM"], **_WORDS},
    "albert": {
        "model_type": "albert",
        "architectures": ["AlbertForMaskedLM"],
        **_WORDS,
        "embedding_size": 6,
        "num_hidden_layers": 3,
    },
    "roberta answers": {
        "model_type": "roberta",
        "architectures": ["RobertaForQuestionAnswering"],
        **_WORDS,
    },
    "llama classes": {
        "model_type": "llama",
        "architectures": ["LlamaForSequenceClassification"],
        **_WORDS,
    },
    "mamba2": {
        "model_type": "mamba2",
        **_WORDS,
        "num_heads": 4,
        "head_dim": 8,
        "n_groups": 2,
        "state_size": 6,
    },
    "kimi linear": {
        "model_type": "kimi_linear",
        **_WORDS,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 6,
        "num_experts": 3,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 8,
        "linear_attn_config": {"num_heads": 2, "head_dim": 6, "full_attn_layers": [2]},
    },
    "nemotron": {
        "model_type": "nemotron_h",
        **_WORDS,
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "M*-E",
        "head_dim": 8,
        "num_key_value_heads": 1,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "ssm_state_size": 6,
        "n_routed_experts": 3,
        "moe_intermediate_size": 8,
        "moe_shared_expert_intermediate_size": 12,
        "moe_latent_size": 6,
    },
    "gemma3n": {
        "model_type": "gemma3n_text",
        **_WORDS,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "activation_sparsity_pattern": [0.95, 0.0, 0.0],
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_kv_shared_layers": 1,
        "hidden_size_per_layer_input": 4,
        "vocab_size_per_layer_input": 11,
        "laurel_rank": 3,
        "altup_num_inputs": 3,
    },
    "gemma4": {
        "model_type": "gemma4_text",
        **_WORDS,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "num_key_value_heads": 1,
        "head_dim": 8,
        "global_head_dim": 16,
        "num_kv_shared_layers": 1,
        "hidden_size_per_layer_input": 4,
        "vocab_size_per_layer_input": 11,
    },
    "gemma4 experts": {
        "model_type": "gemma4_text",
        **_WORDS,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "global_head_dim": 16,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 3,
        "top_k_experts": 2,
        "moe_intermediate_size": 8,
    },
    "deepseek_v4": {
        "model_type": "deepseek_v4",
        **_WORDS,
        "num_hidden_layers": 3,
        "compress_ratios": [0, 4, 128],
        "head_dim": 8,
        "qk_rope_head_dim": 4,
        "q_lora_rank": 8,
        "o_groups": 2,
        "o_lora_rank": 4,
        "index_n_heads": 2,
        "index_head_dim": 4,
        "hc_mult": 2,
        "n_routed_experts": 3,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "sliding_window": 4,
    },
    "step": {
        "model_type": "step3p5",
        **_WORDS,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "layer_types": ["full_attention", "sliding_attention"],
        "num_sliding_attention_heads": 4,
        "first_k_dense_replace": 1,
        "n_routed_experts": 3,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "share_expert_dim": 8,
        "sliding_window": 4,
    },
    "t5": {
        "model_type": "t5",
        "d_model": 16,
        "num_layers": 2,
        "num_heads": 2,
        "d_kv": 6,
        "d_ff": 24,
        "vocab_size": 11,
        "feed_forward_proj": "gated-gelu",
    },
    "bart": {"model_type": "bart", **_PAIR},
    "whisper": {
        "model_type": "whisper",
        **_PAIR,
        "num_mel_bins": 3,
        "max_source_positions": 5,
        "max_target_positions": 6,
    },
    "vit": {"model_type": "vit", **_IMAGE},
    "swin": {
        "model_type": "swin",
        "image_size": 24,
        "patch_size": 4,
        "embed_dim": 8,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 3,
    },
    "swin padded": {
        "model_type": "swin",
        "image_size": 20,
        "patch_size": 4,
        "embed_dim": 8,
        "depths": [2, 1],
        "num_heads": [2, 4],
        "window_size": 3,
    },
    "clip": {
        "model_type": "clip",
        "projection_dim": 6,
        "text_config": _WORDS,
        "vision_config": _IMAGE,
    },
    "gemma3": {
        "model_type": "gemma3",
        "mm_tokens_per_image": 1,
        "vision_use_head": False,
        "text_config": {**_WORDS, "num_key_value_heads": 1, "head_dim": 8},
        "vision_config": _IMAGE,
    },
}


@pytest.mark.slow
@every("name", SMALL)
def test_gradients_are_those_of_the_reference(name, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL[name]))
    free = ":length=6,target_length=5" if name == "t5" else ""
    graph = build(make_workload(read_model(f"{path}{free}"), 2, "float64"))
    compare_gradients("torch", graph, 1e-7)
