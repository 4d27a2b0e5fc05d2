"""Encoders of words for retrieval and translation: ModernBERT, MPNet, Nomic, mT5, Marian."""

from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.encoders import (
    ENCODER_HEADS,
    TWO_LENGTHS,
    encoder,
    pair,
    t5,
)
from steptime.formats.huggingface.hybrids import changes
from steptime.formats.huggingface.settings import windows_of
from steptime.formats.huggingface.types import model_type
from steptime.network.layers.designs import BlockDesign


@model_type("mpnet", "MPNet", ENCODER_HEADS)
def mpnet(config: Config) -> Settings:
    """Describe MPNet: scores with relative positions beside learned positions, no segments."""
    config.set_defaults(vocab_size=30527, type_vocab_size=0)
    settings = encoder(config)
    return settings | {
        "length": settings["max_length"] - 2,
        "first_position": 2,
        "buckets": config.get("relative_attention_num_buckets", 32),
        "relative_scores": True,
        "pooler": config.head in ("none", "choices"),
        "class_layers": 2 if config.head == "classes" else 1,
    }


@model_type("nomic_bert", "NomicBert", ("Model", "ForMaskedLM"))
def nomic_bert(config: Config) -> Settings:
    """Describe Nomic Embed: BERT with rotary positions, a gated part and no biases."""
    config.rename(n_embd="hidden_size", n_inner="intermediate_size", n_layer="num_hidden_layers")
    config.rename(n_head="num_attention_heads", n_positions="max_position_embeddings")
    config.set_defaults(vocab_size=30528, max_position_embeddings=2048, hidden_act="silu")
    settings = encoder(config)
    return settings | {
        "length": min(settings["max_length"], 512),
        "positions": "rotary",
        "bias": False,
        "gated": True,
        "pooler": False,
    }


@model_type("modernbert", "ModernBert", ("Model", "ForMaskedLM"))
def modernbert(config: Config) -> Settings:
    """Describe ModernBERT: two blocks in three see a window, the first one has no norm before."""
    config.rename(hidden_activation="hidden_act", wins=True)
    config.set_defaults(
        vocab_size=50368,
        intermediate_size=1152,
        num_hidden_layers=22,
        max_position_embeddings=8192,
        type_vocab_size=0,
    )
    settings = encoder(config)
    layers, period = settings["layers"], config.get("global_attn_every_n_layers", 3)
    kinds = config.get("layer_types", [])
    letters = windows_of(kinds, config.place) if kinds else ""
    window = config.get("local_attention", 128) // 2 + 1  # half of it on either side
    designs = []
    for number in range(layers):
        is_global = letters[number] == "a" if kinds else number % period == 0
        block = {"norms": "before_second"} if number == 0 else {}
        designs.append(BlockDesign(changes(window=0 if is_global else window, **block)))
    is_biased = config.get("norm_bias", False)
    config.require("classifier_bias", only=False)
    return settings | {
        "length": min(settings["max_length"], 2048),
        "positions": "rotary",
        "norm": "layer" if is_biased else "unbiased_layer",
        "norms": "before",
        "embedding_norm": True,
        "gated": True,
        "bias": False,
        "qkv_bias": config.get("attention_bias", False),
        "out_bias": config.get("attention_bias", False),
        "ffn_bias": config.get("mlp_bias", False),
        "pooler": False,
        "masked_dense_bias": False,
        "masked_biases": 1,
        "designs": tuple(designs),
    }


@model_type(
    "mt5",
    "MT5",
    ("ForConditionalGeneration", "EncoderModel", "Model"),
    free=TWO_LENGTHS,
)
def mt5(config: Config) -> Settings:
    """Describe mT5: T5 1.1 with words of many languages."""
    config.set_defaults(
        vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu"
    )
    return t5(config)


@model_type("marian", "Marian", ("MTModel", "Model"), {"MTModel": "words"}, free=TWO_LENGTHS)
def marian(config: Config) -> Settings:
    """Describe Marian: BART with fixed positions, and no norm of embeddings."""
    config.remark("its positions, which are fixed, are counted as trained")
    config.set_defaults(vocab_size=58101)
    config.require("share_encoder_decoder_embeddings", only=True)
    config.require("decoder_vocab_size", only=config.get("vocab_size", 58101))
    settings = pair(config)
    length = min(settings["length"], 512)
    return settings | {
        "length": length,
        "target_length": length,
        "embedding_norm": False,
        "max_length": settings["length"],
        "first_position": 0,
    }
