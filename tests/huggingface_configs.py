"""Configurations that people use, as their `config.json` says them, and the parameters of each.

The values are facts of the models' pages; parameters are those that transformers 5.23 counts.
"""

from __future__ import annotations

from typing import Any


def _of(kind: str, architecture: str, **fields: Any) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [architecture], **fields}


def _sized(
    kind: str,
    architecture: str,
    width: int,
    layers: int,
    heads: int,
    ffn: int,
    words: int,
    **more: Any,
) -> dict[str, Any]:
    return _of(
        kind,
        architecture,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=ffn,
        vocab_size=words,
        **more,
    )


def _llama(*sizes: int, kv: int, **more: Any) -> dict[str, Any]:
    return _sized("llama", "LlamaForCausalLM", *sizes, num_key_value_heads=kv, **more)


def _gpt2(width: int, layers: int, heads: int) -> dict[str, Any]:
    return _of("gpt2", "GPT2LMHeadModel", n_embd=width, n_layer=layers, n_head=heads, n_ctx=1024)


def _qwen(kind: str, *sizes: int, kv: int, **more: Any) -> dict[str, Any]:
    names = {"qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "qwen2_moe": "Qwen2Moe"}
    name = f"{names[kind]}ForCausalLM"
    return _sized(kind, name, *sizes, num_key_value_heads=kv, max_position_embeddings=32768, **more)


def _gemma(kind: str, name: str, *sizes: int, kv: int, head: int, **more: Any) -> dict[str, Any]:
    return _sized(kind, f"{name}ForCausalLM", *sizes, num_key_value_heads=kv, head_dim=head, **more)


def _pythia(*sizes: int) -> dict[str, Any]:
    return _sized("gpt_neox", "GPTNeoXForCausalLM", *sizes, rotary_pct=0.25, use_cache=True)


def _t5(d_model: int, layers: int, heads: int, d_ff: int, **more: Any) -> dict[str, Any]:
    sizes = {"d_model": d_model, "num_layers": layers, "num_heads": heads, "d_ff": d_ff}
    return _of("t5", "T5ForConditionalGeneration", **sizes, **more)


def _bart(kind: str, name: str, width: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    both = {"layers": layers, "attention_heads": heads, "ffn_dim": 4 * width}
    sides = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in both.items()}
    return _of(kind, f"{name}ForConditionalGeneration", d_model=width, **sides, **more)


def _vit(kind: str, architecture: str, *sizes: int, labels: int = 0, **more: Any) -> dict[str, Any]:
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    names = {"id2label": {str(i): f"class {i}" for i in range(labels)}} if labels else {}
    return _of(kind, architecture, **dict(zip(keys, sizes, strict=True)), **names, **more)


def _swin(width: int, *depths: int) -> dict[str, Any]:
    heads = [width // 32 * 2**i for i in range(len(depths))]
    sizes = {"embed_dim": width, "depths": list(depths), "num_heads": heads, "num_labels": 1000}
    return _of("swin", "SwinForImageClassification", **sizes)


def _towered(width: int, layers: int, heads: int) -> dict[str, int]:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, "intermediate_size": 4 * width}


CONFIGS: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2-medium": (_gpt2(1024, 24, 16), 354_823_168),
    "gpt2-large": (_gpt2(1280, 36, 20), 774_030_080),
    "gpt2-xl": (_gpt2(1600, 48, 25), 1_557_611_200),
    "llama-2-13b": (_llama(5120, 40, 40, 13824, 32000, kv=40), 13_015_864_320),
    "llama-2-70b": (_llama(8192, 80, 64, 28672, 32000, kv=8), 68_976_648_192),
    "llama-3-8b": (_llama(4096, 32, 32, 14336, 128256, kv=8), 8_030_261_248),
    "llama-3.1-405b": (_llama(16384, 126, 128, 53248, 128256, kv=8), 405_853_388_800),
    "llama-3.2-1b": (
        _llama(2048, 16, 32, 8192, 128256, kv=8, head_dim=64, tie_word_embeddings=True),
        1_235_814_400,
    ),
    "mistral-7b-v0.1": (
        _sized("mistral", "MistralForCausalLM", 4096, 32, 32, 14336, 32000, sliding_window=4096),
        7_241_732_096,
    ),
    "mistral-7b-v0.3": (
        _sized("mistral", "MistralForCausalLM", 4096, 32, 32, 14336, 32768, sliding_window=None),
        7_248_023_552,
    ),
    "mistral-nemo": (
        _sized("mistral", "MistralForCausalLM", 5120, 40, 32, 14336, 131072, head_dim=128),
        12_247_782_400,
    ),
    "mixtral-8x22b": (
        _sized("mixtral", "MixtralForCausalLM", 6144, 56, 48, 16384, 32000, num_key_value_heads=8),
        140_620_634_112,
    ),
    "qwen2-0.5b": (
        _qwen("qwen2", 896, 24, 14, 4864, 151936, kv=2, tie_word_embeddings=True),
        494_032_768,
    ),
    "qwen2.5-7b": (_qwen("qwen2", 3584, 28, 28, 18944, 152064, kv=4), 7_615_616_512),
    "qwen2.5-32b": (_qwen("qwen2", 5120, 64, 40, 27648, 152064, kv=8), 32_763_876_352),
    "qwen1.5-moe-a2.7b": (
        _qwen("qwen2_moe", 2048, 24, 16, 5632, 151936, kv=16, num_experts=60),
        14_315_784_192,
    ),
    "qwen3-0.6b": (
        _qwen("qwen3", 1024, 28, 16, 3072, 151936, kv=8, head_dim=128, tie_word_embeddings=True),
        596_049_920,
    ),
    "qwen3-8b": (_qwen("qwen3", 4096, 36, 32, 12288, 151936, kv=8, head_dim=128), 8_190_735_360),
    "qwen3-32b": (_qwen("qwen3", 5120, 64, 64, 25600, 151936, kv=8, head_dim=128), 32_762_123_264),
    "qwen3-30b-a3b": (
        _qwen("qwen3_moe", 2048, 48, 32, 6144, 151936, kv=4, head_dim=128, num_experts=128),
        30_532_122_624,
    ),
    "qwen3-235b-a22b": (
        _qwen(
            *("qwen3_moe", 4096, 94, 64, 12288, 151936),
            kv=4,
            head_dim=128,
            num_experts=128,
            moe_intermediate_size=1536,
        ),
        235_093_634_560,
    ),
    "gemma-2b": (
        _gemma("gemma", "Gemma", 2048, 18, 8, 16384, 256000, kv=1, head=256),
        2_506_172_416,
    ),
    "gemma-7b": (
        _gemma("gemma", "Gemma", 3072, 28, 16, 24576, 256000, kv=16, head=256),
        8_537_680_896,
    ),
    "gemma-2-9b": (
        _gemma("gemma2", "Gemma2", 3584, 42, 16, 14336, 256000, kv=8, head=256),
        9_241_705_984,
    ),
    "gemma-2-27b": (
        _gemma("gemma2", "Gemma2", 4608, 46, 32, 36864, 256000, kv=16, head=128),
        27_227_128_320,
    ),
    "gemma-3-1b": (
        _gemma("gemma3_text", "Gemma3", 1152, 26, 4, 6912, 262144, kv=1, head=256),
        999_885_952,
    ),
    "phi-1.5": (_sized("phi", "PhiForCausalLM", 2048, 24, 32, 8192, 51200), 1_418_270_720),
    "phi-2": (
        _sized("phi", "PhiForCausalLM", 2560, 32, 32, 10240, 51200, partial_rotary_factor=0.4),
        2_779_683_840,
    ),
    "phi-3-mini": (_sized("phi3", "Phi3ForCausalLM", 3072, 32, 32, 8192, 32064), 3_821_079_552),
    "phi-3-medium": (
        _sized("phi3", "Phi3ForCausalLM", 5120, 40, 40, 17920, 32064, num_key_value_heads=10),
        13_960_238_080,
    ),
    "pythia-70m": (_pythia(512, 6, 8, 2048, 50304), 70_426_624),
    "pythia-160m": (_pythia(768, 12, 12, 3072, 50304), 162_322_944),
    "pythia-1.4b": (_pythia(2048, 24, 16, 8192, 50304), 1_414_647_808),
    "deepseek-v2-lite": (
        _sized(
            *("deepseek_v2", "DeepseekV2ForCausalLM", 2048, 27, 16, 10944, 102400),
            q_lora_rank=None,
            moe_intermediate_size=1408,
            num_experts_per_tok=6,
            first_k_dense_replace=1,
        ),
        15_706_484_224,
    ),
    "gpt-oss-20b": (
        _of("gpt_oss", "GptOssForCausalLM", num_hidden_layers=24, num_local_experts=32),
        20_914_757_184,
    ),
    "bert-large": (_sized("bert", "BertModel", 1024, 24, 16, 4096, 30522), 335_141_888),
    "bert-base masked": (_of("bert", "BertForMaskedLM"), 109_514_298),
    "bert-base cased": (_of("bert", "BertModel", vocab_size=28996), 108_310_272),
    "roberta-base": (
        _of("roberta", "RobertaModel", max_position_embeddings=514, type_vocab_size=1),
        124_645_632,
    ),
    "roberta-large": (
        _sized(
            *("roberta", "RobertaModel", 1024, 24, 16, 4096, 50265),
            max_position_embeddings=514,
            type_vocab_size=1,
        ),
        355_359_744,
    ),
    "distilbert": (_of("distilbert", "DistilBertModel"), 66_362_880),
    "albert-base-v2": (
        _sized("albert", "AlbertModel", 768, 12, 12, 3072, 30000),
        11_683_584,
    ),
    "t5-base": (_t5(768, 12, 12, 3072), 222_903_552),
    "t5-large": (_t5(1024, 24, 16, 4096), 737_668_096),
    "flan-t5-base": (
        _t5(768, 12, 12, 2048, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        222_903_552,  # transformers 5 ties the output whatever the file says, 4 did not
    ),
    "bart-base": (_bart("bart", "Bart", 768, 6, 12), 139_420_416),
    "bart-large": (_bart("bart", "Bart", 1024, 12, 16), 406_291_456),
    "whisper-base": (_bart("whisper", "Whisper", 512, 6, 8), 72_593_920),
    "whisper-small": (_bart("whisper", "Whisper", 768, 12, 12), 241_734_912),
    "whisper-large-v3": (
        _bart("whisper", "Whisper", 1280, 32, 20, num_mel_bins=128, vocab_size=51866),
        1_543_490_560,
    ),
    "vit-base-16": (
        _vit("vit", "ViTForImageClassification", 768, 12, 12, 3072, labels=1000),
        86_567_656,
    ),
    "vit-base-16 in21k": (_vit("vit", "ViTModel", 768, 12, 12, 3072), 86_389_248),
    "vit-large-16": (
        _vit("vit", "ViTForImageClassification", 1024, 24, 16, 4096, labels=1000),
        304_326_632,
    ),
    "deit-tiny": (
        _vit("deit", "DeiTForImageClassification", 192, 12, 3, 768, labels=1000),
        5_717_800,  # with a token for distillation, which Touvron et al. 2020 have in some
    ),
    "swin-tiny": (_swin(96, 2, 2, 6, 2), 28_288_354),
    "swin-small": (_swin(96, 2, 2, 18, 2), 49_606_258),
    "swin-base": (_swin(128, 2, 2, 18, 2), 87_768_224),
    "clip-vit-base-16": (
        {"model_type": "clip", "vision_config": {"patch_size": 16}},
        149_620_737,
    ),
    "clip-vit-large-14": (
        {
            "model_type": "clip",
            "projection_dim": 768,
            "text_config": _towered(768, 12, 12),
            "vision_config": {**_towered(1024, 24, 16), "patch_size": 14},
        },
        427_616_513,
    ),
    "gemma-3-4b": (
        _of(
            *("gemma3", "Gemma3ForConditionalGeneration"),
            text_config={
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
                "vocab_size": 262208,
            },
            vision_config={
                **_towered(1152, 27, 16),
                "intermediate_size": 4304,
                "image_size": 896,
                "patch_size": 14,
                "vision_use_head": False,
            },
        ),
        4_300_079_472,
    ),
    "opt-350m": (
        _of(
            *("opt", "OPTForCausalLM"),
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            ffn_dim=4096,
            word_embed_proj_dim=512,
            do_layer_norm_before=False,
        ),
        331_196_416,
    ),
}
