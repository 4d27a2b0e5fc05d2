"""Text encoders for retrieval and translation: ModernBERT, DeBERTa, MPNet, Nomic, Marian."""

from dataclasses import replace

from steptime.core.workload import Value
from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.encoders import (
    ENCODER_HEADS,
    TWO_LENGTHS,
    encoder,
    encoder_decoder,
    t5,
)
from steptime.formats.huggingface.hybrids import freeze_changes
from steptime.formats.huggingface.settings import window_letters_of
from steptime.formats.huggingface.types import model_type
from steptime.network.layers.designs import BlockDesign
from steptime.network.layers.disentangled import Disentangled, InputConvolution

POSITION_SCORES = ("c2p", "p2c")  # of content with positions, of positions with content


@model_type("mpnet", "MPNet", ENCODER_HEADS)
def mpnet(config: Config) -> Settings:
    """Describe MPNet: scores with relative positions beside learned positions, no segments."""
    config.fill_defaults(vocab_size=30527, type_vocab_size=0)
    settings = encoder(config)
    # rows 0 and 1 of the table of positions stand before the first token's: padding_idx is 1
    return settings | {
        "length": settings["max_length"] - 2,
        "first_position": 2,
        "buckets": config.get("relative_attention_num_buckets", 32),
        "relative_scores": True,
        "pooler": config.head in ("none", "choices"),
        "class_layers": 2 if config.head == "classes" else 1,
    }


@model_type("deberta-v2", "DebertaV2", ENCODER_HEADS)
def deberta_v2(config: Config) -> Settings:
    """Describe DeBERTa v2 and v3: scores of content with positions, and the reverse."""
    config.fill_defaults(
        vocab_size=128100,
        hidden_size=1536,
        num_hidden_layers=24,
        num_attention_heads=24,
        intermediate_size=6144,
        type_vocab_size=0,
    )
    settings = encoder(config)
    width, layers = settings["width"], settings["layers"]
    for field in ("embedding_size", "pooler_hidden_size"):
        config.require(field, only=width)
    config.require("attention_head_size", only=width // settings["heads"])
    config.ignore_field("legacy", True)
    adds_positions = config.get("position_biased_input", True)
    has_relative_positions = config.get("relative_attention", False)
    position_scores = _read_position_scores(config) if has_relative_positions else None
    has_pooled_classes = config.head in ("classes", "choices")
    usual_block = BlockDesign(places=position_scores)
    # a convolution of the embeddings is added to the output of the first block
    first_block = replace(usual_block, added_input=_read_input_convolution(config))
    return settings | {
        "positions": "learned" if adds_positions else "none",
        "pooler": False,
        "class_layers": 2 if has_pooled_classes else 1,
        "class_activation": config.get("pooler_hidden_act", "gelu"),
        "designs": (first_block, *[usual_block] * (layers - 1)),
    }


def _read_input_convolution(config: Config) -> InputConvolution | None:
    """Return the convolution whose output the first block adds, None for a file without one."""
    # fields of a convolution that is not there: no remark calls them unread
    config.read_fields |= {"conv_kernel_size", "conv_act", "conv_groups"}
    if not config.table.get("conv_kernel_size"):
        return None
    kernel = config.count("conv_kernel_size", 3)
    activation = config.get("conv_act", "tanh")
    groups = config.count("conv_groups", 1)
    return InputConvolution(kernel, groups, activation)


def _count_or_zero(config: Config, name: str) -> int:
    """Return a field that is a whole number above 0, and 0 for any other value."""
    config.read_fields.add(name)
    value: object = config.table.get(name)
    return value if type(value) is int and value > 0 else 0


def _read_position_scores(config: Config) -> Disentangled:
    """Return the scores of positions that a file of DeBERTa says."""
    max_length = config.get("max_position_embeddings", 512)
    stated_span = _count_or_zero(config, "max_relative_positions")
    buckets = _count_or_zero(config, "position_buckets")
    config.read_fields.add("pos_att_type")
    stated_scores = config.table.get("pos_att_type") or []
    if isinstance(stated_scores, str):  # "c2p|p2c"
        stated_scores = stated_scores.lower().split("|")
    are_names = isinstance(stated_scores, list)
    if not are_names or not {*map(str, stated_scores)} <= {*POSITION_SCORES}:
        raise config.error("pos_att_type", f"must be a list of {' and '.join(POSITION_SCORES)}")
    norms = config.get("norm_rel_ebd", "none")
    # c2p: scores of a query's content with the key's position; p2c: the other way round
    return Disentangled(
        span=buckets or stated_span or max_length,
        reads_places="c2p" in stated_scores,
        is_read_by_places="p2c" in stated_scores,
        shares_products=config.get("share_att_key", False),
        has_norm="layer_norm" in norms.lower(),
    )


@model_type("nomic_bert", "NomicBert", ("Model", "ForMaskedLM"))
def nomic_bert(config: Config) -> Settings:
    """Describe Nomic Embed: BERT with rotary positions, a gated part and no biases."""
    config.rename(n_embd="hidden_size", n_inner="intermediate_size", n_layer="num_hidden_layers")
    config.rename(n_head="num_attention_heads", n_positions="max_position_embeddings")
    config.fill_defaults(vocab_size=30528, max_position_embeddings=2048, hidden_act="silu")
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
    # a file with both spellings means `hidden_activation`
    config.rename(hidden_activation="hidden_act", file_spelling_wins=True)
    config.fill_defaults(
        vocab_size=50368,
        intermediate_size=1152,
        num_hidden_layers=22,
        max_position_embeddings=8192,
        type_vocab_size=0,
    )
    settings = encoder(config)
    layers = settings["layers"]
    global_period = config.get("global_attn_every_n_layers", 3)
    kinds = config.get("layer_types", [])
    window_letters = window_letters_of(kinds, config.place) if kinds else ""
    window = config.get("local_attention", 128) // 2 + 1  # half of it on either side
    designs = []
    for layer in range(layers):
        # a stated list of layers wins over the period
        is_global = window_letters[layer] == "a" if kinds else layer % global_period == 0
        block_changes: dict[str, Value] = {"window": 0 if is_global else window}
        if layer == 0:
            # its first part needs no norm: that of the embeddings stands right before it
            block_changes["norms"] = "before_second"
        designs.append(BlockDesign(freeze_changes(**block_changes)))
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
    free_parameters=TWO_LENGTHS,
)
def mt5(config: Config) -> Settings:
    """Describe mT5: T5 1.1 with words of many languages."""
    config.fill_defaults(
        vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu"
    )
    return t5(config)


@model_type(
    "marian", "Marian", ("MTModel", "Model"), {"MTModel": "words"}, free_parameters=TWO_LENGTHS
)
def marian(config: Config) -> Settings:
    """Describe Marian: BART with fixed positions, and no norm of embeddings."""
    config.remark("its positions, which are fixed, are counted as trained")
    config.fill_defaults(vocab_size=58101)
    config.require("share_encoder_decoder_embeddings", only=True)
    config.require("decoder_vocab_size", only=config.get("vocab_size", 58101))
    settings = encoder_decoder(config)
    length = min(settings["length"], 512)
    return settings | {
        "length": length,
        "target_length": length,
        "embedding_norm": False,
        "max_length": settings["length"],
        "first_position": 0,
    }
