"""Decoders whose residual streams predict each other (`config.json`): Gemma 3n."""

from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.decoders import attention_biases, decoder
from steptime.formats.huggingface.hybrids import changes, list_of_layers
from steptime.formats.huggingface.types import model_type
from steptime.network.layers.alternating import AltUp
from steptime.network.layers.designs import BlockDesign

ATTENTION_TYPES = ("sliding_attention", "full_attention")
FULL_ATTENTION_PERIOD = 5  # of the blocks one attends to all, where a file does not say
SPARSE_LAYERS = 10  # of the first blocks, where a file does not say
SPARSITY = 0.95  # share of a gate's numbers that are zero


@model_type("gemma3n_text", "Gemma3n")
def gemma3n_text(config: Config) -> Settings:
    """Describe the decoder of Gemma 3n: AltUp, Laurel, and embeddings of each block's own."""
    config.rename(hidden_activation="hidden_act", wins=True)
    config.set_defaults(
        vocab_size=262400,
        hidden_size=2048,
        num_hidden_layers=35,
        max_position_embeddings=32768,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    )
    ffn_widths = _read_ffn_widths(config)
    settings = {**decoder(config), **attention_biases(config)}
    config.require("altup_active_idx", only=0)
    return settings | {
        "norms": "both",
        "qk_norm": "head",
        "scaled": True,
        "window": config.get("sliding_window", 512),
        "designs": _describe_blocks(config, settings, ffn_widths),
    }


def _read_ffn_widths(config: Config) -> list[int]:
    """Return the width of each block's feed-forward part, [] for one width of all.

    The first of a list becomes the file's `intermediate_size`.
    """
    value: object = config.table.get("intermediate_size")
    if not isinstance(value, list):
        config.set_defaults(intermediate_size=16384)
        return []
    layers = config.get("num_hidden_layers", 0)
    widths = [width for width in value if isinstance(width, int) and width > 0]
    if len(widths) != len(value) or len(widths) != layers:
        text = f"has {len(widths)} values, not one for each of {layers} layers"
        raise config.error("intermediate_size", text)
    config.replace("intermediate_size", widths[0])
    return widths


def _describe_blocks(
    config: Config, settings: Settings, ffn_widths: list[int]
) -> tuple[BlockDesign, ...]:
    """Return the designs of all blocks; the last read keys and values of earlier ones."""
    layers = settings["layers"]
    kinds = list_of_layers(config, "layer_types", layers, ATTENTION_TYPES)
    kinds = kinds or [ATTENTION_TYPES[(i + 1) % FULL_ATTENTION_PERIOD == 0] for i in range(layers)]
    sparse_layers = SPARSE_LAYERS if layers > SPARSE_LAYERS else 0
    sparsities = list_of_layers(config, "activation_sparsity_pattern", layers, (0, SPARSITY))
    sparsities = sparsities or [SPARSITY * (i < sparse_layers) for i in range(layers)]
    first_shared = layers - config.get("num_kv_shared_layers", 15)
    streams = AltUp(
        config.count("altup_num_inputs", 4),
        config.count("laurel_rank", 64),
        config.get("altup_correct_scale", True),
    )
    config.check_ignored("altup_coef_clip", 120.0)
    token_width = config.count("hidden_size_per_layer_input", 256)
    token_rows = config.count("vocab_size_per_layer_input", 262144)
    designs = []
    for number, kind in enumerate(kinds):
        is_shared = number >= first_shared > 0
        sources = [i for i in range(first_shared) if kinds[i] == kind] if is_shared else []
        ffn = {"ffn": ffn_widths[number]} if ffn_widths else {}
        window = {"window": 0} if kind == ATTENTION_TYPES[1] else {}
        design = BlockDesign(
            changes(**ffn, **window),
            source=sources[-1] if sources else None,
            value_norm=True,
            token_width=token_width,
            token_rows=token_rows,
            alternating=streams,
            keeps_largest=bool(sparsities[number]),
        )
        designs.append(design)
    return tuple(designs)
