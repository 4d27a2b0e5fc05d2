"""Text decoders whose blocks have one dense feed-forward part."""

from math import ceil, floor

from steptime.formats.huggingface.config import Config, Settings, repeat_letter
from steptime.formats.huggingface.types import SPAN_CLASSES, model_type

MAX_PATTERN_LENGTH = 500  # letters of a kind: two kinds are about what `repeat_letter` can write
DEFAULT_LENGTH = 2048  # tokens of a sequence, where the model allows as many
GPT2_HEADS = (
    "LMHeadModel",
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForCausalLM",
)
ROTARY_REMARK = "rotary positions are counted in all blocks; those without a window have none"


def width_of_heads(config: Config) -> int:
    """Return the width of a head: that of the file, or an equal share of the model's width."""
    width = config.count("hidden_size", 4096)
    heads = config.count("num_attention_heads", 32)
    stated_head_width = config.get("head_dim", 0)
    if stated_head_width:
        return stated_head_width
    if width % heads:
        raise config.error("hidden_size", f"{width} does not divide into {heads} heads")
    return width // heads


def rounded_width_of_heads(config: Config) -> int:
    """Return the width of a head: that of the file, or the rounded share that transformers has."""
    width = config.count("hidden_size", 4096)
    return config.get("head_dim", 0) or width // config.count("num_attention_heads", 32)


def equal_width_of_heads(config: Config) -> int:
    """Return an equal share of the model's width, in families that know no `head_dim`."""
    width = config.count("hidden_size", 4096)
    heads = config.count("num_attention_heads", 32)
    if width % heads:
        raise config.error("hidden_size", f"{width} does not divide into {heads} heads")
    config.ignore_field("head_dim", 0)
    return width // heads


def decoder(config: Config, head_width: int = 0) -> Settings:
    """Describe a decoder like Llama's: RMS norms, rotary positions, a gated feed-forward part.

    Args:
        config: the fields of the file.
        head_width: the width of a head where the family does not read it from `head_dim`.
    """
    width = config.count("hidden_size", 4096)
    heads = config.count("num_attention_heads", 32)
    head_width = head_width or width_of_heads(config)
    # `finish_settings` reads this field: it makes the pattern of windows of it
    config.ignore_field("layer_types", [])
    max_length = config.get("max_position_embeddings", 2048) or DEFAULT_LENGTH
    rotary_share = config.get("partial_rotary_factor", 1.0) or 1
    class_count = SPAN_CLASSES if config.head == "spans" else config.label_count
    # transformers rounds the width down, and takes every second feature of it
    rotary_pairs = ceil(floor(head_width * rotary_share) / 2)
    return {
        "kind": "decoder",
        "width": width,
        "layers": config.get("num_hidden_layers", 32),
        "vocabulary": config.get("vocab_size", 32000),
        "tied": config.get("tie_word_embeddings", False),
        "length": min(max_length, DEFAULT_LENGTH),
        "positions": "rotary",
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads", 0) or heads,
        "head_width": head_width,
        "rotary_width": 2 * rotary_pairs,
        "ffn": config.get("intermediate_size", 0) or 4 * width,
        "activation": config.get("hidden_act", "silu"),
        "gated": True,
        "bias": False,
        "head_bias": False,
        "norm": "rms",
        "head": config.head,
        "classes": class_count,
        "class_bias": False,
    }


def attention_biases(config: Config) -> Settings:
    """Describe the biases of attention that `attention_bias` says, those of its output too."""
    has_bias = config.get("attention_bias", False)
    return {"qkv_bias": has_bias, "out_bias": has_bias}


@model_type("llama")
@model_type("granite")
def llama(config: Config) -> Settings:
    """Describe Llama 1 to 3 and Granite 3, which scales by constants besides."""
    config.fill_defaults(intermediate_size=11008)
    biases = attention_biases(config)
    return decoder(config) | biases | {"ffn_bias": config.get("mlp_bias", False)}


@model_type("mistral")
@model_type("ministral")
def mistral(config: Config) -> Settings:
    """Describe Mistral 7B, whose blocks see a window where the file says one."""
    config.fill_defaults(
        intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072
    )
    return decoder(config) | {"window": config.get("sliding_window", 4096)}


@model_type("ministral3")
def ministral3(config: Config) -> Settings:
    """Describe Ministral 3 and Mistral Large 3's dense relatives."""
    config.fill_defaults(
        vocab_size=131072,
        num_hidden_layers=34,
        max_position_embeddings=262144,
        head_dim=128,
        sliding_window=0,
    )
    return mistral(config)


def list_window_letters(config: Config) -> str:
    """Return a pattern of blocks: those before `max_window_layers` see all, the others a window."""
    layers = config.get("num_hidden_layers", 32)
    full_count = min(config.get("max_window_layers", 28), layers)
    windowed_count = layers - full_count
    # "a": a block sees all tokens, "w": those of a window
    full_letters = repeat_letter("a", min(full_count, MAX_PATTERN_LENGTH))
    windowed_letters = repeat_letter("w", min(windowed_count, MAX_PATTERN_LENGTH))
    return full_letters + windowed_letters or "w"  # a pattern is not empty, even of no layers


@model_type("qwen2")
def qwen2(config: Config) -> Settings:
    """Describe Qwen 1.5 to 2.5: queries, keys and values have biases."""
    config.fill_defaults(
        vocab_size=151936,
        intermediate_size=22016,
        max_position_embeddings=32768,
        num_key_value_heads=32,
    )
    is_windowed = config.get("use_sliding_window", False)
    if not is_windowed:
        config.replace("sliding_window", None)  # which some files write as 0
    window = config.get("sliding_window", 4096)
    return decoder(config) | {
        "windows": list_window_letters(config),
        "window": window if is_windowed else 0,
        "qkv_bias": True,
    }


@model_type("mimo", "MiMo")
def mimo(config: Config) -> Settings:
    """Describe MiMo 7B."""
    return qwen2(config) | {"qkv_bias": config.get("attention_bias", True)}


@model_type("qwen3")
def qwen3(config: Config) -> Settings:
    """Describe dense Qwen 3: queries and keys are normed, head by head."""
    config.fill_defaults(head_dim=128)
    return qwen2(config) | attention_biases(config) | {"qk_norm": "head"}


@model_type("qwen2_vl_text", "Qwen2VL")
@model_type("qwen2_5_vl_text", "Qwen2_5_VL")
def qwen2_vl_text(config: Config) -> Settings:
    """Describe the decoder of Qwen 2 and 2.5 VL."""
    config.fill_defaults(
        vocab_size=152064,
        hidden_size=8192,
        intermediate_size=29568,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_window_layers=80,
    )
    return qwen2(config)


@model_type("qwen3_vl_text", "Qwen3VL")
def qwen3_vl_text(config: Config) -> Settings:
    """Describe the decoder of dense Qwen 3 VL."""
    config.fill_defaults(max_position_embeddings=128000)
    return qwen3(config)


@model_type("gemma")
def gemma(config: Config) -> Settings:
    """Describe Gemma 1: tied words, which are scaled, and a GELU's gate."""
    config.fill_defaults(
        vocab_size=256000,
        hidden_size=3072,
        intermediate_size=24576,
        num_hidden_layers=28,
        max_position_embeddings=8192,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    )
    # "scaled": embeddings are multiplied by the root of their width
    return {**decoder(config), **attention_biases(config)} | {"scaled": True}


@model_type("gemma2")
def gemma2(config: Config) -> Settings:
    """Describe Gemma 2: norms before and after each part, a window in every second block."""
    # a file with both spellings means `hidden_activation`
    config.rename(hidden_activation="hidden_act", file_spelling_wins=True)
    config.fill_defaults(
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    window = config.get("sliding_window", 4096)
    # "w": a block sees a window, "a": all tokens; the letters repeat
    # "both": a norm before each part, attention and feed-forward, and one on its output
    return gemma(config) | {"norms": "both", "window": window, "windows": "wa"}


@model_type("gemma3_text", "Gemma3")
def gemma3_text(config: Config) -> Settings:
    """Describe the decoder of Gemma 3: one block in six sees all."""
    config.rename(_sliding_window_pattern="sliding_window_pattern", file_spelling_wins=True)
    config.fill_defaults(vocab_size=262208, max_position_embeddings=131072)
    # "w": a block sees a window, "a": all tokens; the letters repeat
    period = config.get("sliding_window_pattern", 6)
    return gemma2(config) | {"qk_norm": "head", "windows": repeat_letter("w", period - 1, "a")}


@model_type("phi")
def phi(config: Config) -> Settings:
    """Describe Phi 1 and 2: parallel parts, biases, no gate."""
    config.fill_defaults(
        vocab_size=51200,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=24,
        partial_rotary_factor=0.5,
        hidden_act="gelu_new",
    )
    is_normed = config.get("qk_layernorm", False)
    return decoder(config, equal_width_of_heads(config)) | {
        "qk_norm": "head" if is_normed else "none",
        "gated": False,
        "bias": True,
        "head_bias": True,
        "norm": "layer",
        "norms": "parallel",  # attention and feed-forward read one normed input
    }


@model_type("phi3")
def phi3(config: Config) -> Settings:
    """Describe Phi 3 and 4."""
    config.fill_defaults(
        vocab_size=32064, hidden_size=3072, intermediate_size=8192, max_position_embeddings=4096
    )
    return decoder(config) | {"window": config.get("sliding_window", 0)}


@model_type("gpt_neox", "GPTNeoX")
def gpt_neox(config: Config) -> Settings:
    """Describe GPT-NeoX and Pythia: parallel parts with a norm each."""
    # a file with both spellings means `rotary_pct`
    config.rename(rotary_pct="partial_rotary_factor", file_spelling_wins=True)
    config.fill_defaults(
        vocab_size=50432,
        hidden_size=6144,
        num_hidden_layers=44,
        intermediate_size=24576,
        num_attention_heads=64,
        partial_rotary_factor=0.25,
        hidden_act="gelu",
        attention_bias=True,
    )
    is_parallel = config.get("use_parallel_residual", True)
    return {**decoder(config), **attention_biases(config)} | {
        "gated": False,
        "bias": True,
        "norm": "layer",
        # "parallel_two": attention and feed-forward read one input, each through its own norm
        "norms": "parallel_two" if is_parallel else "before",
    }


@model_type("gpt2", "GPT2", GPT2_HEADS)
def gpt2(config: Config) -> Settings:
    """Describe GPT-2: learned positions; queries, keys and values from one product."""
    config.rename(
        n_positions="max_position_embeddings",
        n_embd="hidden_size",
        n_layer="num_hidden_layers",
        n_head="num_attention_heads",
        n_inner="intermediate_size",
        activation_function="hidden_act",
    )
    config.fill_defaults(
        vocab_size=50257,
        hidden_size=768,
        num_hidden_layers=12,
        max_position_embeddings=1024,
        num_attention_heads=12,
        hidden_act="gelu_new",
        tie_word_embeddings=True,
    )
    config.require("add_cross_attention", only=False)
    settings = decoder(config, equal_width_of_heads(config))
    settings |= {"positions": "learned", "max_length": config.get("max_position_embeddings", 1024)}
    return settings | {"merged_qkv": True, "gated": False, "bias": True, "norm": "layer"}


@model_type("gpt_bigcode", "GPTBigCode", GPT2_HEADS)
def gpt_bigcode(config: Config) -> Settings:
    """Describe StarCoder 1: GPT-2 with one head of keys and values."""
    config.fill_defaults(hidden_act="gelu_pytorch_tanh")
    settings = gpt2(config)
    shares_kv_head = config.get("multi_query", True)
    return settings | {"kv_heads": 1 if shares_kv_head else settings["heads"]}


@model_type("gptj", "GPTJ", GPT2_HEADS)
@model_type("codegen", "CodeGen", GPT2_HEADS)
def gptj(config: Config) -> Settings:
    """Describe GPT-J and CodeGen: parallel parts with one norm, partly turned heads."""
    config.fill_defaults(
        vocab_size=50400,
        hidden_size=4096,
        num_hidden_layers=28,
        max_position_embeddings=2048,
        num_attention_heads=16,
        tie_word_embeddings=False,
    )
    settings = gpt2(config)
    return settings | {
        "positions": "rotary",
        # there is no table of positions
        "max_length": 1,
        "merged_qkv": False,
        "rotary_width": config.get("rotary_dim", 64) or settings["head_width"],
        "qkv_bias": False,
        "out_bias": False,
        "head_bias": True,
        "norms": "parallel",
        # of spans, too: transformers gives these as many scores as there are labels
        "classes": config.label_count,
    }


@model_type("stablelm", "StableLm")
def stablelm(config: Config) -> Settings:
    """Describe StableLM 2."""
    config.fill_defaults(
        vocab_size=50304,
        hidden_size=2560,
        intermediate_size=6912,
        max_position_embeddings=4096,
        partial_rotary_factor=0.25,
        num_key_value_heads=32,
    )
    config.require("qk_layernorm", only=False)
    is_parallel = config.get("use_parallel_residual", False)
    return decoder(config) | {
        "norm": "layer",
        "norms": "parallel" if is_parallel else "before",
        "qkv_bias": config.get("use_qkv_bias", False),
    }


@model_type("starcoder2")
def starcoder2(config: Config) -> Settings:
    """Describe StarCoder 2."""
    config.fill_defaults(
        vocab_size=49152,
        hidden_size=3072,
        intermediate_size=12288,
        num_hidden_layers=30,
        max_position_embeddings=4096,
        num_attention_heads=24,
        num_key_value_heads=2,
        hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    )
    return decoder(config) | {
        "norm": "layer",
        "bias": config.get("use_bias", True),
        "gated": False,
        "window": config.get("sliding_window", 0),
    }
