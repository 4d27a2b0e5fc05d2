"""Text decoders with several residual streams (AltUp): Gemma 3n."""

from steptime.core.workload import Value
from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.decoders import attention_biases, decoder
from steptime.formats.huggingface.hybrids import (
    FULL,
    WINDOWED,
    find_last_layer,
    freeze_changes,
    read_layer_values,
)
from steptime.formats.huggingface.types import model_type
from steptime.network.layers.alternating import AltUp
from steptime.network.layers.designs import BlockDesign

FULL_ATTENTION_PERIOD = 5  # of the blocks one attends to all, where a file does not say
SPARSE_LAYERS = 10  # of the first blocks, where a file does not say
SPARSITY = 0.95  # share of a gate's numbers that are zero


@model_type("gemma3n_text", "Gemma3n")
def gemma3n_text(config: Config) -> Settings:
    """Describe the decoder of Gemma 3n: AltUp, Laurel, and embeddings of each block's own."""
    # a file with both spellings means `hidden_activation`
    config.rename(hidden_activation="hidden_act", file_spelling_wins=True)
    config.fill_defaults(
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
        "norms": "both",  # a norm before each part and one on its output
        "qk_norm": "head",
        "scaled": True,  # embeddings are multiplied by the root of their width
        "window": config.get("sliding_window", 512),
        "designs": _describe_blocks(config, settings, ffn_widths),
    }


def _read_ffn_widths(config: Config) -> list[int]:
    """Return the width of each block's feed-forward part, [] for one width of all.

    The first of a list becomes the file's `intermediate_size`.
    """
    stated_widths: object = config.table.get("intermediate_size")
    if not isinstance(stated_widths, list):
        config.fill_defaults(intermediate_size=16384)
        return []  # one width for all blocks
    layers = config.get("num_hidden_layers", 0)
    widths = [width for width in stated_widths if isinstance(width, int) and width > 0]
    has_wrong_width = len(widths) != len(stated_widths)
    if has_wrong_width or len(widths) != layers:
        text = f"has {len(widths)} values, not one for each of {layers} layers"
        raise config.error("intermediate_size", text)
    # one width stands for the network, from which blocks of other widths differ
    config.replace("intermediate_size", widths[0])
    return widths


def _read_attention_kinds(config: Config, layers: int) -> list[object]:
    """Return whether each block attends to a window or to all; by default every fifth to all."""
    kinds = read_layer_values(config, "layer_types", layers, (WINDOWED, FULL))
    if kinds:
        return kinds
    numbers = range(1, layers + 1)
    return [FULL if number % FULL_ATTENTION_PERIOD == 0 else WINDOWED for number in numbers]


def _read_sparsities(config: Config, layers: int) -> list[object]:
    """Return the share of activations that each block sets to 0; by default the first blocks do."""
    sparsities = read_layer_values(config, "activation_sparsity_pattern", layers, (0, SPARSITY))
    if sparsities:
        return sparsities
    sparse_count = SPARSE_LAYERS if layers > SPARSE_LAYERS else 0
    return [SPARSITY if layer < sparse_count else 0 for layer in range(layers)]


def _describe_blocks(
    config: Config, settings: Settings, ffn_widths: list[int]
) -> tuple[BlockDesign, ...]:
    """Return the designs of all blocks; the last read keys and values of earlier ones."""
    layers = settings["layers"]
    kinds = _read_attention_kinds(config, layers)
    sparsities = _read_sparsities(config, layers)
    kv_layer_count = layers - config.get("num_kv_shared_layers", 15)
    streams = AltUp(
        count=config.count("altup_num_inputs", 4),
        laurel_rank=config.count("laurel_rank", 64),
        scales_output=config.get("altup_correct_scale", True),
    )
    config.ignore_field("altup_coef_clip", 120.0)
    token_width = config.count("hidden_size_per_layer_input", 256)
    token_rows = config.count("vocab_size_per_layer_input", 262144)
    designs = []
    for layer, kind in enumerate(kinds):
        # the last blocks read the keys and values of the last earlier block of their kind
        shares_kv = layer >= kv_layer_count > 0
        block_changes: dict[str, Value] = {}
        if ffn_widths:
            block_changes["ffn"] = ffn_widths[layer]
        if kind == FULL:
            block_changes["window"] = 0
        design = BlockDesign(
            freeze_changes(**block_changes),
            source=find_last_layer(kinds[:kv_layer_count], kind) if shares_kv else None,
            value_norm=True,
            token_width=token_width,
            token_rows=token_rows,
            alternating=streams,
            keeps_largest=bool(sparsities[layer]),  # of the activations, the others become 0
        )
        designs.append(design)
    return tuple(designs)
