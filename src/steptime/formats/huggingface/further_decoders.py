"""Text decoders with one dense feed-forward part, of other laboratories."""

from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.decoders import (
    ROTARY_REMARK,
    attention_biases,
    decoder,
    equal_width_of_heads,
    llama,
)
from steptime.formats.huggingface.types import model_type


@model_type("olmo2")
def olmo2(config: Config) -> Settings:
    """Describe OLMo 2: norms on the outputs, and of all queries and keys at once."""
    config.fill_defaults(vocab_size=50304, intermediate_size=11008)
    return {**decoder(config), **attention_biases(config), "norms": "output", "qk_norm": "all"}


@model_type("olmo3")
def olmo3(config: Config) -> Settings:
    """Describe OLMo 3: one block in four sees all."""
    return olmo2(config) | {"window": config.get("sliding_window", 4096), "windows": "wwwa"}


@model_type("opt", "OPT")
def opt(config: Config) -> Settings:
    """Describe OPT: learned positions from row 2, words of a width of their own."""
    config.rename(ffn_dim="intermediate_size", activation_function="hidden_act")
    config.fill_defaults(
        vocab_size=50272,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        hidden_act="relu",
        tie_word_embeddings=True,
    )
    config.require("layer_norm_elementwise_affine", only=True)
    norms_inputs = config.get("do_layer_norm_before", True)
    lacks_final_norm = config.get("_remove_final_layer_norm", False)
    embedding_width = config.get("word_embed_proj_dim", 0)
    settings = decoder(config, equal_width_of_heads(config))
    return settings | {
        "embedding_width": embedding_width or settings["width"],
        "projects_words": True,
        "positions": "learned",
        # two rows of the table of positions stand before the first token's
        "max_length": config.get("max_position_embeddings", 2048) + 2,
        "first_position": 2,
        "gated": False,
        "bias": config.get("enable_bias", True),
        "norm": "layer",
        "norms": "before" if norms_inputs else "after",
        "final_norm": norms_inputs and not lacks_final_norm,
        "embedding_norm": False,
    }


@model_type("glm4")
def glm4(config: Config) -> Settings:
    """Describe GLM 4 of 2025: norms before and after each part, heads turned by half."""
    config.fill_defaults(
        vocab_size=151552,
        intermediate_size=13696,
        num_hidden_layers=40,
        max_position_embeddings=131072,
        num_key_value_heads=2,
        head_dim=128,
        partial_rotary_factor=0.5,
    )
    has_bias = config.get("attention_bias", False)
    # "both": a norm before each part, attention and feed-forward, and one on its output
    return decoder(config) | {"norms": "both", "qkv_bias": has_bias}


@model_type("glm")
def glm(config: Config) -> Settings:
    """Describe GLM 4 of 2024 in the form of transformers."""
    config.fill_defaults(attention_bias=True)
    return glm4(config) | {"norms": "before"}


@model_type("glm4v_text")
def glm4v_text(config: Config) -> Settings:
    """Describe the decoder of GLM 4.1V."""
    config.fill_defaults(attention_bias=True)
    return glm4(config)


@model_type("ernie4_5", "Ernie4_5")
def ernie4_5(config: Config) -> Settings:
    """Describe dense ERNIE 4.5."""
    config.fill_defaults(
        vocab_size=103424,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=18,
        max_position_embeddings=131072,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=128,
        tie_word_embeddings=True,
    )
    return decoder(config) | {"bias": config.get("use_bias", False)}


@model_type("seed_oss")
def seed_oss(config: Config) -> Settings:
    """Describe Seed-OSS."""
    config.fill_defaults(
        vocab_size=155136,
        intermediate_size=27648,
        num_hidden_layers=64,
        max_position_embeddings=524288,
        num_attention_heads=80,
        num_key_value_heads=8,
        head_dim=128,
        attention_bias=True,
    )
    return llama(config) | {"out_bias": config.get("attention_out_bias", False)}


@model_type("smollm3", "SmolLM3")
def smollm3(config: Config) -> Settings:
    """Describe SmolLM 3, of which one block in four knows no places."""
    config.fill_defaults(
        vocab_size=128256,
        hidden_size=2048,
        num_hidden_layers=36,
        max_position_embeddings=32768,
        num_attention_heads=16,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    )
    config.ignore_field("no_rope_layer_interval", 4)
    config.ignore_field("no_rope_layers", [])
    config.require("use_sliding_window", only=False)
    config.remark("rotary positions are counted in all blocks, though some blocks have none")
    return llama(config)


@model_type("arcee")
def arcee(config: Config) -> Settings:
    """Describe AFM: Llama whose feed-forward part squares a ReLU and has no gate."""
    config.fill_defaults(
        hidden_size=2560, intermediate_size=18432, max_position_embeddings=4096, hidden_act="relu2"
    )
    return llama(config) | {"gated": False}


@model_type("apertus")
def apertus(config: Config) -> Settings:
    """Describe Apertus: xIELU without a gate, normed queries and keys."""
    config.fill_defaults(
        vocab_size=131072,
        intermediate_size=14336,
        max_position_embeddings=65536,
        hidden_act="xielu",
    )
    return llama(config) | {"gated": False, "ffn_bias": False, "qk_norm": "head"}


@model_type("hunyuan_v1_dense", "HunYuanDenseV1")
def hunyuan_v1_dense(config: Config) -> Settings:
    """Describe dense Hunyuan."""
    config.fill_defaults(vocab_size=290943)
    return llama(config) | {"ffn_bias": False, "qk_norm": "head"}


@model_type("cohere")
def cohere(config: Config) -> Settings:
    """Describe Command R: parallel parts with one norm."""
    config.fill_defaults(
        vocab_size=256000,
        hidden_size=8192,
        intermediate_size=22528,
        num_hidden_layers=40,
        max_position_embeddings=8192,
        num_attention_heads=64,
        tie_word_embeddings=True,
    )
    config.require("use_qk_norm", only=False)
    config.remark(
        "its norms subtract a mean and have no bias; they are counted as root-mean-square norms"
    )
    # "parallel": attention and feed-forward read one normed input
    return {**decoder(config), **attention_biases(config), "norms": "parallel"}


@model_type("cohere2")
def cohere2(config: Config) -> Settings:
    """Describe Command A: one block in four sees all."""
    config.require("sliding_window_pattern", only=4)
    window = config.get("sliding_window", 4096)
    # "w": a block sees a window, "a": all tokens; the letters repeat
    settings = cohere(config) | {"window": window, "windows": "wwwa"}
    if window:
        config.remark(ROTARY_REMARK)
    return settings


@model_type("exaone4")
def exaone4(config: Config) -> Settings:
    """Describe EXAONE 4: norms on the outputs, one block in four sees all."""
    config.fill_defaults(vocab_size=102400, intermediate_size=16384, num_key_value_heads=32)
    config.require("sliding_window_pattern", only="LLLG")
    window = config.get("sliding_window", 4096)
    if window:
        config.remark(ROTARY_REMARK)
    # "w": a block sees a window, "a": all tokens; the letters repeat
    return decoder(config) | {
        "norms": "output",  # a part's output is normed, not its input
        "qk_norm": "head",
        "window": window,
        "windows": "wwwa",
    }


@model_type("falcon")
def falcon(config: Config) -> Settings:
    """Describe Falcon 1 and 2, of either design of its blocks."""
    config.rename(n_layer="num_hidden_layers", n_head="num_attention_heads", n_embed="hidden_size")
    config.fill_defaults(
        vocab_size=65024, hidden_size=4544, num_attention_heads=71, tie_word_embeddings=True
    )
    is_newer = config.get("new_decoder_architecture", False)
    norm_count = config.get("num_ln_in_parallel_attn", 0)
    is_parallel = config.get("parallel_attn", True)
    stated_kv_heads = config.get("num_kv_heads", 0)
    stated_ffn_width = config.get("ffn_hidden_size", 0)
    settings = decoder(config)
    # parallel: attention and feed-forward read one input, through one norm or each its own (two)
    if is_newer:
        norms = "parallel" if norm_count == 1 else "parallel_two"
    else:
        norms = "parallel" if is_parallel else "before"
    shares_kv_head = config.get("multi_query", True) and not is_newer
    kv_heads = 1 if shares_kv_head else stated_kv_heads or settings["heads"]
    return settings | {
        "positions": "alibi" if config.get("alibi", False) else "rotary",
        "kv_heads": kv_heads,
        "merged_qkv": True,
        "ffn": stated_ffn_width or 4 * settings["width"],
        "activation": config.get("activation", "gelu"),
        "gated": False,
        "bias": config.get("bias", False),
        "norm": "layer",
        "norms": norms,
    }


@model_type("helium")
def helium(config: Config) -> Settings:
    """Describe Helium."""
    config.fill_defaults(
        vocab_size=48000,
        hidden_size=2560,
        intermediate_size=7040,
        num_hidden_layers=24,
        max_position_embeddings=4096,
        num_attention_heads=20,
        num_key_value_heads=20,
        head_dim=128,
    )
    return llama(config) | {"out_bias": False}


@model_type("nemotron")
def nemotron(config: Config) -> Settings:
    """Describe Nemotron 4 and Minitron: a squared ReLU without a gate."""
    config.fill_defaults(
        vocab_size=256000,
        hidden_size=6144,
        intermediate_size=24576,
        max_position_embeddings=4096,
        num_attention_heads=48,
        partial_rotary_factor=0.5,
        hidden_act="relu2",
    )
    return llama(config) | {"norm": "layer", "gated": False}


@model_type("olmo")
def olmo(config: Config) -> Settings:
    """Describe OLMo 1: layer norms without weights."""
    config.fill_defaults(vocab_size=50304, intermediate_size=11008)
    config.require("clip_qkv", only=0.0)
    return {**decoder(config), **attention_biases(config), "norm": "plain_layer"}
