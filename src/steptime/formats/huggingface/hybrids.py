"""Text decoders whose blocks differ in their heads, windows and feed-forward parts."""

from collections.abc import Mapping, Sequence

from steptime.core.errors import unknown
from steptime.core.workload import Value
from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.decoders import attention_biases, decoder
from steptime.formats.huggingface.types import model_type
from steptime.network.layers.designs import BlockDesign

NAS_MULTIPLE = 256  # of which the width of a feed-forward part is a multiple
WINDOWED = "sliding_attention"
FULL = "full_attention"
GEMMA4_FULL_PERIOD = 6  # of the blocks one sees all, where a file does not say


def freeze_changes(**parameters: Value) -> tuple[tuple[str, Value], ...]:
    """Return the hyperparameters that a block has in place of the network's."""
    return tuple(sorted(parameters.items()))


def round_up_width(width: int, multiple: int) -> int:
    """Return the first multiple that is not below a width."""
    return -(-width // multiple) * multiple


def read_layer_values(
    config: Config, name: str, layers: int, allowed: Sequence[object]
) -> list[object]:
    """Return a field with a value for each layer, [] where it is absent.

    Raises:
        InputError: for a list of another length, or a value that is none of the `allowed`.
    """
    values: list[object] = config.get(name, [])
    if values and len(values) < layers:
        raise config.error(name, f"has {len(values)} values, not one for each of {layers} layers")
    for value in values[:layers]:
        if value not in allowed:
            texts = [str(entry) for entry in allowed]
            raise unknown(name, value, texts, config.place)
    return values[:layers]


def find_last_layer(kinds: Sequence[object], kind: object) -> int | None:
    """Return the number from 0 of the last layer of a kind, None where there is none."""
    layers = [layer for layer, layer_kind in enumerate(kinds) if layer_kind == kind]
    return layers[-1] if layers else None


@model_type("mimo_v2_flash", "MiMoV2Flash")
def mimo_v2_flash(config: Config) -> Settings:
    """Describe MiMo-V2-Flash: blocks with a window have sinks and more heads of keys."""
    config.fill_defaults(
        vocab_size=152576,
        hidden_size=4096,
        intermediate_size=16384,
        num_hidden_layers=48,
        max_position_embeddings=262144,
        num_attention_heads=64,
        num_key_value_heads=4,
        head_dim=192,
        partial_rotary_factor=0.334,
    )
    settings = decoder(config)
    layers = settings["layers"]
    value_width = config.get("v_head_dim", 128)
    window_flags = read_layer_values(config, "hybrid_layer_pattern", layers, (0, 1))
    if not window_flags:  # the file does not say: the first and every sixth block see all
        window_flags = [layer > 0 and (layer + 1) % 6 != 0 for layer in range(layers)]
    expert_flags = read_layer_values(config, "moe_layer_freq", layers, (0, 1))
    if not expert_flags:  # the file does not say: all blocks but the first have experts
        expert_flags = [layer > 0 for layer in range(layers)]
    windowed_changes: dict[str, Value] = {
        "window": config.get("sliding_window", 128),
        "heads": config.get("swa_num_attention_heads", settings["heads"]),
        "kv_heads": config.get("swa_num_key_value_heads", 2 * settings["kv_heads"]),
        "head_width": config.get("swa_head_dim", settings["head_width"]),
        "value_width": config.get("swa_v_head_dim", value_width),
        "sinks": config.get("add_swa_attention_sink_bias", True),
    }
    config.require("add_full_attention_sink_bias", only=False)
    config.ignore_field("sliding_window_size", 128)
    config.ignore_field("attention_chunk_size", 128)
    config.ignore_field("attention_bias", False)
    config.ignore_field("n_shared_experts", 0)
    designs = [
        _mimo_design(windowed_changes if is_windowed else {}, bool(has_experts))
        for is_windowed, has_experts in zip(window_flags, expert_flags, strict=True)
    ]
    rotary_share = config.get("partial_rotary_factor", 0.334)
    rotary_pairs = int(settings["head_width"] * rotary_share) // 2
    return settings | {
        "rotary_width": 2 * rotary_pairs,
        "value_width": value_width,
        "experts": config.get("n_routed_experts", 256),
        "experts_per_token": config.get("num_experts_per_tok", 8),
        "expert_ffn": config.get("moe_intermediate_size", 2048),
        "designs": tuple(designs),
    }


def _mimo_design(window_changes: Mapping[str, Value], has_experts: bool) -> BlockDesign:
    """Return a block of MiMo-V2-Flash; `window_changes` is empty for one that sees all."""
    expert_changes: dict[str, Value] = {} if has_experts else {"experts": 0}
    return BlockDesign(freeze_changes(**window_changes, **expert_changes))


@model_type("step3p5", "Step3p5")
@model_type("step3p7", "Step3p7Flash")
def step3p5(config: Config) -> Settings:
    """Describe Step 3.5 and 3.7 Flash: a gate of each head, more heads in blocks with a window."""
    config.rename(
        num_experts="n_routed_experts",
        moe_num_experts="n_routed_experts",
        moe_top_k="num_experts_per_tok",
        num_attention_groups="num_key_value_heads",
        share_expert_dims="share_expert_dim",
    )
    config.fill_defaults(
        vocab_size=128815,
        hidden_size=4096,
        intermediate_size=11264,
        num_hidden_layers=45,
        max_position_embeddings=128000,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
    )
    settings = decoder(config)
    layers = settings["layers"]
    kinds = config.get("layer_types", []) or [FULL] * layers
    if len(kinds) < layers:
        raise config.error("layer_types", f"has {len(kinds)} values for {layers} layers")
    dense_count = config.get("first_k_dense_replace", 3)
    window = config.get("sliding_window", 512)
    windowed_heads = config.get("num_sliding_attention_heads", settings["heads"])
    config.ignore_field("n_shared_experts", 1)
    config.ignore_field("use_moe_router_bias", True)
    designs = []
    for layer in range(layers):
        block_changes: dict[str, Value] = {}
        if layer < dense_count:
            block_changes["experts"] = 0
        if kinds[layer] == WINDOWED:
            block_changes |= {"window": window, "heads": windowed_heads}
        designs.append(BlockDesign(freeze_changes(**block_changes), gate_per_head=True))
    return settings | {
        "qk_norm": "head",
        "attention_gate": True,
        "experts": config.get("n_routed_experts", 288),
        "experts_per_token": config.get("num_experts_per_tok", 8),
        "expert_ffn": config.get("moe_intermediate_size", 1280),
        "shared_ffn": config.get("share_expert_dim", 1280),
        "designs": tuple(designs),
    }


@model_type("nemotron-nas", "DeciLM")
def nemotron_nas(config: Config) -> Settings:
    """Describe Nemotron Super and Ultra of Llama 3: some blocks have no attention.

    A `block_configs` entry says the heads in a group and the width of each block.
    """
    blocks = config.get_tables("block_configs")
    config.fill_defaults(num_hidden_layers=len(blocks) or 32, num_key_value_heads=0)
    settings = decoder(config)
    config.ignore_field("attention_bias", False)
    config.ignore_field("mlp_bias", False)
    # an entry of `block_configs` says the heads in a group and the width of its block
    if not blocks:
        return settings
    if len(blocks) != settings["layers"]:
        raise config.error("block_configs", f"{len(blocks)} blocks of {settings['layers']} layers")
    return settings | {"designs": tuple(_nas_design(config, settings, block) for block in blocks)}


def _nas_design(config: Config, settings: Settings, block: object) -> BlockDesign:
    """Return the design of one entry of `block_configs`."""
    table = block if isinstance(block, dict) else {}
    attention = _nested_block_config(config, table.get("attention"))
    ffn = _nested_block_config(config, table.get("ffn"))
    for part in (attention, ffn):
        part.require("replace_with_linear", only=False)
    has_attention = not attention.get("no_op", False)
    has_ffn = not ffn.get("no_op", False)
    block_changes: dict[str, Value] = {}
    if has_attention:
        heads_per_group = attention.count("n_heads_in_group", 1)
        block_changes["kv_heads"] = settings["heads"] // heads_per_group
        block_changes["window"] = attention.get("window_length", 0)
    if has_ffn:
        # two thirds, so that the three matrices of a gated part have the weights of a usual two
        ffn_width = int(2 * ffn.get("ffn_mult", 2.625) * settings["width"] / 3)
        block_changes["ffn"] = round_up_width(ffn_width, NAS_MULTIPLE)
    return BlockDesign(freeze_changes(**block_changes), mixes=has_attention, feeds=has_ffn)


def _nested_block_config(config: Config, part: object) -> Config:
    """Return the fields of one part of an entry of `block_configs`, none for no table."""
    return Config(part if isinstance(part, dict) else {}, f"{config.place}: block_configs", head="")


@model_type("gemma4_text", "Gemma4")
def gemma4_text(config: Config) -> Settings:
    """Describe the decoder of Gemma 4: blocks that see all have wider heads."""
    # a file with both spellings means `hidden_activation`
    config.rename(hidden_activation="hidden_act", file_spelling_wins=True)
    config.fill_defaults(
        vocab_size=262144,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=30,
        max_position_embeddings=131072,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    )
    settings = {**decoder(config), **attention_biases(config)}
    layers = settings["layers"]
    kinds = read_layer_values(config, "layer_types", layers, (WINDOWED, FULL))
    if not kinds:
        kinds = [
            FULL if (layer + 1) % GEMMA4_FULL_PERIOD == 0 else WINDOWED for layer in range(layers)
        ]
    lacks_layer_types = config.table.get("layer_types") is None
    if kinds and lacks_layer_types:
        kinds[-1] = FULL  # whatever the period says, as in transformers
    has_experts = config.get("enable_moe_block", False)
    return settings | {
        "norms": "both",  # a norm before each part and one on its output
        "qk_norm": "head",
        "scaled": True,  # embeddings are multiplied by the root of their width
        "window": config.get("sliding_window", 512),
        "experts": config.get("num_experts", 128) if has_experts else 0,
        "experts_per_token": config.get("top_k_experts", 8) or 1,
        "expert_ffn": config.get("moe_intermediate_size", 704) or settings["ffn"],
        "designs": _gemma4_designs(config, settings, kinds, has_experts),
    }


def _gemma4_designs(
    config: Config, settings: Settings, kinds: list[object], has_experts: bool
) -> tuple[BlockDesign, ...]:
    """Return the designs of Gemma 4's blocks; the last may read keys and values of earlier ones."""
    token_width = config.get("hidden_size_per_layer_input", 256)
    config.require("vocab_size_per_layer_input", only=settings["vocabulary"])
    global_width = config.get("global_head_dim", 512)
    full_changes: dict[str, Value] = {
        "window": 0,
        "head_width": global_width,
        # a quarter of the features of these heads is rotated
        "rotary_width": global_width // 4,
        "kv_heads": config.get("num_global_key_value_heads", 0) or settings["kv_heads"],
    }
    keys_are_values = config.get("attention_k_eq_v", False)
    widens_sharing_blocks = config.get("use_double_wide_mlp", False)
    kv_layer_count = len(kinds) - config.get("num_kv_shared_layers", 0)
    designs = []
    for layer, kind in enumerate(kinds):
        is_full = kind == FULL
        # the last blocks read the keys and values of the last earlier block of their kind
        shares_kv = layer >= kv_layer_count > 0
        block_changes: dict[str, Value] = {}
        if is_full:
            block_changes |= full_changes
        if shares_kv and widens_sharing_blocks:
            block_changes["ffn"] = 2 * settings["ffn"]
        design = BlockDesign(
            freeze_changes(**block_changes),
            source=find_last_layer(kinds[:kv_layer_count], kind) if shares_kv else None,
            keys_are_values=keys_are_values and is_full,
            value_norm=True,
            is_dense_with_experts=has_experts,
            token_width=token_width,
        )
        designs.append(design)
    return tuple(designs)
