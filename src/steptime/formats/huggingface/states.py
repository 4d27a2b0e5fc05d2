"""Text decoders with states or short convolutions in place of attention, or beside it."""

from collections.abc import Sequence
from dataclasses import replace

from steptime.core.errors import unknown
from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.decoders import attention_biases, decoder
from steptime.formats.huggingface.hybrids import freeze_changes, read_layer_values, round_up_width
from steptime.formats.huggingface.latent import latent_attention
from steptime.formats.huggingface.types import model_type
from steptime.network.layers.designs import BlockDesign, Mixer
from steptime.network.layers.mixers import KimiDelta, Mamba2, ShortConvolution

NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NEMOTRON_DEFAULT = ("mamba", "moe", "attention", "mlp")
NEMOTRON_TYPES = {"linear_attention": "mamba", "full_attention": "attention", "sparse": "moe"}
NEMOTRON_TYPES |= {
    "dense": "mlp",
    "mlp": "mlp",
    "mamba": "mamba",
    "attention": "attention",
    "moe": "moe",
}


def _list_nemotron_kinds(config: Config) -> list[str]:
    """Return the kind of each block of Nemotron-H: mamba, attention, mlp or moe."""
    pattern = config.get("hybrid_override_pattern", "")
    if pattern:
        for letter in pattern:
            if letter not in NEMOTRON_LETTERS:
                place = f"{config.place}: hybrid_override_pattern"
                raise unknown("layer", letter, NEMOTRON_LETTERS, place)
        return [NEMOTRON_LETTERS[letter] for letter in pattern]
    names = config.get("layers_block_type", []) or config.get("layer_types", [])
    for name in names:
        if name not in NEMOTRON_TYPES:
            raise unknown("layer type", name, NEMOTRON_TYPES, config.place)
    return [NEMOTRON_TYPES[name] for name in names or NEMOTRON_DEFAULT]


def read_mamba2(config: Config) -> Mamba2:
    """Return the blocks of Mamba-2 that the fields with the names of Granite and Bamba say."""
    width = config.count("hidden_size", 4096)
    heads = config.count("mamba_n_heads", 128)
    inner_width = config.get("mamba_expand", 2) * width
    stated_head_width = config.table.get("mamba_d_head")
    config.read_fields.add("mamba_d_head")
    head_width = inner_width // heads
    if type(stated_head_width) is int:  # the field may also be the word "auto"
        head_width = stated_head_width
    return Mamba2(
        heads=heads,
        head_width=head_width,
        groups=config.count("mamba_n_groups", 1),
        state=config.count("mamba_d_state", 256),
        kernel=config.count("mamba_d_conv", 4),
        bias=config.get("mamba_proj_bias", False),
        convolution_bias=config.get("mamba_conv_bias", True),
    )


@model_type("nemotron_h", "NemotronH")
def nemotron_h(config: Config) -> Settings:
    """Describe Nemotron-H and Nemotron 3: a block is Mamba-2, attention, dense, or experts."""
    config.fill_defaults(
        vocab_size=131072,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=21504,
        max_position_embeddings=4096,
    )
    config.rename(attention_head_dim="head_dim", mlp_hidden_act="hidden_act")
    # A default of its own only now, where the field stands under neither name.
    config.fill_defaults(hidden_act="relu2")
    kinds = _list_nemotron_kinds(config)
    config.fill_defaults(num_hidden_layers=len(kinds))
    layers = config.get("num_hidden_layers", len(kinds))
    if len(kinds) != layers:
        raise config.error("num_hidden_layers", f"{layers}, but the pattern has {len(kinds)}")
    has_bias = config.get("use_bias", False)
    has_ffn_bias = config.get("mlp_bias", False)
    mixer = Mamba2(
        heads=config.count("mamba_num_heads", 128),
        head_width=config.count("mamba_head_dim", 64),
        groups=config.count("n_groups", 8),
        state=config.count("ssm_state_size", 128),
        kernel=config.count("conv_kernel", 4),
        bias=has_bias,
        convolution_bias=config.get("use_conv_bias", True),
    )
    expert_ffn = config.get("moe_intermediate_size", 7688)
    expert_input_width = config.get("moe_latent_size", 0)
    shared_width = config.get("moe_shared_expert_intermediate_size", 7688)
    _ignore_fields(config)
    without_experts = freeze_changes(experts=0)
    # a block is one part alone: it mixes tokens (state or attention), or it is a feed-forward part
    design_by_kind = {
        "mamba": BlockDesign(without_experts, mixer=mixer, feeds=False),
        "attention": BlockDesign(without_experts, feeds=False),
        "mlp": BlockDesign(without_experts, mixes=False),
        "moe": BlockDesign(mixes=False, expert_width=expert_input_width),
    }
    has_experts = "moe" in kinds
    # blocks that predict further tokens (MTP); a letter that is not known counts as experts
    ahead_letters = config.get("mtp_hybrid_override_pattern", "*E")
    ahead_kinds = [NEMOTRON_LETTERS.get(letter, "moe") for letter in ahead_letters]
    return decoder(config) | {
        "gated": False,
        "ffn_bias": has_ffn_bias,
        "expert_bias": False,
        "positions": "none",
        "experts": config.get("n_routed_experts", 8) if has_experts else 0,
        "experts_per_token": config.get("num_experts_per_tok", 2),
        "expert_groups": config.get("n_group", 1) or 1,
        "groups_per_token": config.get("topk_group", 1) or 1,
        "expert_ffn": expert_ffn,
        "shared_ffn": shared_width if has_experts else 0,
        "designs": tuple(design_by_kind[kind] for kind in kinds),
        "ahead_designs": tuple(design_by_kind[kind] for kind in ahead_kinds),
    }


def _ignore_fields(config: Config) -> None:
    """Pass over the fields of Nemotron-H that change neither shapes nor work."""
    config.ignore_field("n_shared_experts", 1)
    config.ignore_field("mamba_proj_bias", False)
    config.ignore_field("mamba_hidden_act", "silu")
    config.ignore_field("expand", 2)
    config.ignore_field("chunk_size", 128)
    config.ignore_field("sliding_window", 0)
    config.ignore_field("num_logits_to_keep", 1)
    config.ignore_field("attention_bias", False)


def make_designs(
    mixers: Sequence[Mixer | None], dense_flags: Sequence[bool] = ()
) -> tuple[BlockDesign, ...]:
    """Return designs of blocks by their mixers (None for attention), dense ones without experts."""
    # None in place of a mixer: the block attends
    flags_of_blocks = dense_flags or [False] * len(mixers)
    designs = []
    for mixer, is_dense in zip(mixers, flags_of_blocks, strict=True):
        block_changes = freeze_changes(experts=0) if is_dense else ()  # (): as the settings say
        designs.append(BlockDesign(block_changes, mixer=mixer))
    return tuple(designs)


@model_type("granitemoehybrid", "GraniteMoeHybrid")
def granitemoehybrid(config: Config) -> Settings:
    """Describe Granite 4: Mamba-2 in most blocks, experts beside a part for all tokens."""
    config.fill_defaults(intermediate_size=11008)
    settings = {**decoder(config), **attention_biases(config)}
    layers = settings["layers"]
    mixer = read_mamba2(config)
    allowed_kinds = ("mamba", "attention", "linear_attention", "full_attention")
    kinds = read_layer_values(config, "layer_types", layers, allowed_kinds) or ["mamba"] * layers
    # files of dense networks say 0 or null experts, which `Config.get` would refuse
    has_experts = config.table.get("num_local_experts", 8) not in (0, None)
    experts = config.get("num_local_experts", 8) if has_experts else 0
    config.read_fields |= {"num_local_experts", "position_embedding_type", "mamba_chunk_size"}
    is_rotary = config.table.get("position_embedding_type") == "rope"
    shared_width = config.get("shared_intermediate_size", 1024)
    # None: the block attends
    mixers = [mixer if kind in ("mamba", "linear_attention") else None for kind in kinds]
    return settings | {
        "positions": "rotary" if is_rotary else "none",
        # without experts the part for all tokens is the only one
        "ffn": settings["ffn"] if experts else shared_width,
        "expert_ffn": settings["ffn"],
        "experts": experts,
        "experts_per_token": config.get("num_experts_per_tok", 2) if experts else 1,
        "shared_ffn": shared_width if experts else 0,
        "designs": make_designs(mixers),
    }


@model_type("bamba")
def bamba(config: Config) -> Settings:
    """Describe Bamba: Mamba-2 but for the blocks that `attn_layer_indices` names."""
    config.fill_defaults(
        vocab_size=128000,
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=262144,
        partial_rotary_factor=0.5,
    )
    settings = {**decoder(config), **attention_biases(config)}
    mixer = read_mamba2(config)
    attention_layers = config.get("attn_layer_indices", [])
    # None: the block attends
    mixers = [None if layer in attention_layers else mixer for layer in range(settings["layers"])]
    return settings | {"ffn_bias": config.get("mlp_bias", False), "designs": make_designs(mixers)}


@model_type("falcon_h1", "FalconH1")
def falcon_h1(config: Config) -> Settings:
    """Describe Falcon-H1: attention and Mamba-2 read one input, and their outputs are added."""
    config.fill_defaults(
        vocab_size=128000,
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=8192,
    )
    settings = {**decoder(config), **attention_biases(config)}
    stated_inner_width = config.get("mamba_d_ssm", 1024)
    mixer = read_mamba2(config)
    if stated_inner_width:
        mixer = replace(mixer, head_width=stated_inner_width // mixer.heads)
    config.ignore_field("projectors_bias", False)
    is_normed = config.get("mamba_rms_norm", False)
    design = BlockDesign(parallel=replace(mixer, is_normed=is_normed))
    return settings | {
        "ffn_bias": config.get("mlp_bias", False),
        "designs": (design,) * settings["layers"],
    }


@model_type("mamba2", "Mamba2")
def mamba2(config: Config) -> Settings:
    """Describe Mamba-2: every block is a state alone."""
    config.fill_defaults(
        vocab_size=32768, num_hidden_layers=64, num_attention_heads=1, max_position_embeddings=0
    )
    settings = decoder(config)
    mixer = Mamba2(
        heads=config.count("num_heads", 128),
        head_width=config.count("head_dim", 64),
        groups=config.count("n_groups", 8),
        state=config.count("state_size", 128),
        kernel=config.count("conv_kernel", 4),
        bias=config.get("use_bias", False),
        convolution_bias=config.get("use_conv_bias", True),
    )
    config.ignore_field("expand", 2)
    config.ignore_field("chunk_size", 256)
    design = BlockDesign(mixer=mixer, feeds=False)
    return settings | {
        "positions": "none",
        # no block has attention, whose sizes are checked all the same
        "heads": mixer.heads,
        "kv_heads": mixer.groups,
        "head_width": mixer.head_width,
        "designs": (design,) * settings["layers"],
    }


def _list_convolution_mixers(config: Config, layers: int) -> list[Mixer | None]:
    """Return the mixers of LFM2's blocks: short convolutions, and attention in some."""
    convolution = ShortConvolution(config.count("conv_L_cache", 3), config.get("conv_bias", False))
    attention_layers = config.table.get("full_attn_idxs")
    config.read_fields.add("full_attn_idxs")
    kinds = read_layer_values(config, "layer_types", layers, ("full_attention", "conv"))
    if kinds:
        attention_flags = [kind == "full_attention" for kind in kinds]
    elif isinstance(attention_layers, list):
        attention_flags = [layer in attention_layers for layer in range(layers)]
    else:  # the file says neither: transformers then has attention in all blocks
        attention_flags = [True] * layers
    # None: the block attends
    return [None if is_attention else convolution for is_attention in attention_flags]


@model_type("lfm2")
def lfm2(config: Config) -> Settings:
    """Describe LFM2: short convolutions between gates, attention in some blocks."""
    config.rename(
        tie_embedding="tie_word_embeddings",
        block_ff_dim="intermediate_size",
        file_spelling_wins=True,  # a file with both means the first spelling of a pair
    )
    config.fill_defaults(
        vocab_size=65536,
        hidden_size=2560,
        intermediate_size=12288,
        num_key_value_heads=8,
        max_position_embeddings=128000,
        tie_word_embeddings=True,
    )
    settings = decoder(config)
    ffn_width = settings["ffn"]
    width_multiple = config.count("block_multiple_of", 256)
    width_factor = config.get("block_ffn_dim_multiplier", 1.0) or 1
    if config.get("block_auto_adjust_ff_dim", True):
        # two thirds, so that the three matrices of a gated part have the weights of a usual two
        two_thirds = int(2 * ffn_width / 3)
        ffn_width = round_up_width(int(width_factor * two_thirds), width_multiple)
    mixers = _list_convolution_mixers(config, settings["layers"])
    return settings | {"ffn": ffn_width, "qk_norm": "head", "designs": make_designs(mixers)}


@model_type("lfm2_moe")
def lfm2_moe(config: Config) -> Settings:
    """Describe the mixtures of LFM2."""
    # a file with both spellings means `tie_embedding`
    config.rename(tie_embedding="tie_word_embeddings", file_spelling_wins=True)
    config.fill_defaults(
        vocab_size=65536,
        hidden_size=2048,
        intermediate_size=7168,
        num_key_value_heads=8,
        max_position_embeddings=128000,
        tie_word_embeddings=True,
    )
    settings = decoder(config)
    layers = settings["layers"]
    dense_count = config.get("num_dense_layers", 2)
    dense_flags = [layer < dense_count for layer in range(layers)]
    mixers = _list_convolution_mixers(config, layers)
    config.ignore_field("use_expert_bias", True)
    return settings | {
        "qk_norm": "head",
        "experts": config.get("num_experts", 32),
        "experts_per_token": config.get("num_experts_per_tok", 4),
        "expert_ffn": config.get("moe_intermediate_size", 1792),
        "designs": make_designs(mixers, dense_flags),
    }


@model_type("kimi_linear", "KimiLinear")
def kimi_linear(config: Config) -> Settings:
    """Describe Kimi Linear and K3: Kimi Delta Attention, latent attention in every fourth block."""
    config.rename(
        num_experts="num_local_experts",
        num_experts_per_token="num_experts_per_tok",  # noqa: S106  # the field of a file
        num_shared_experts="n_shared_experts",
        model_max_length="max_position_embeddings",
    )
    config.fill_defaults(
        vocab_size=163840,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=27,
        q_lora_rank=0,
        max_position_embeddings=1048576,
    )
    if config.table.get("hidden_act") == "situ":
        config.replace("hidden_act", "silu")
        config.remark("its activation, SiTU, is counted as SwiGLU")
    if config.table.get("attn_res_block_size"):
        config.read_fields.add("attn_res_block_size")
        config.remark("attention to the outputs of earlier blocks is not counted")
    settings = latent_attention(config)
    layers = settings["layers"]
    mixers = _list_kimi_mixers(config, layers)
    dense_count = config.get("first_k_dense_replace", 1)
    expert_ffn = config.get("moe_intermediate_size", 1024)
    expert_input_width = config.get("routed_expert_hidden_size", 0)
    norms_experts = config.get("latent_moe_use_norm", False)
    dense_flags = [layer < dense_count for layer in range(layers)]
    designs = tuple(
        replace(design, expert_width=expert_input_width, expert_norm=norms_experts)
        for design in make_designs(mixers, dense_flags)
    )
    return settings | {
        "positions": "none",
        "attention_gate": config.get("mla_use_output_gate", False),
        "experts": config.get("num_local_experts", 256),
        "experts_per_token": config.get("num_experts_per_tok", 8),
        "expert_ffn": expert_ffn,
        "shared_ffn": config.get("n_shared_experts", 1) * expert_ffn,
        "designs": designs,
    }


def _list_kimi_mixers(config: Config, layers: int) -> list[Mixer | None]:
    """Return the mixers of Kimi Linear's blocks, whose nested table counts blocks from 1."""
    # known fields that are not counted: no remark calls them unread
    for field in ("mla_use_nope", "use_grouped_topk", "moe_renormalize", "num_expert_group"):
        config.read_fields.add(field)
    nested_table = config.get("linear_attn_config", {})
    nested = Config(nested_table, f"{config.place}: linear_attn_config", config.head)
    mixer = KimiDelta(
        heads=nested.count("num_heads", config.count("linear_num_heads", 32)),
        head_width=nested.count("head_dim", config.count("linear_head_dim", 128)),
        kernel=nested.count("short_conv_kernel_size", config.count("linear_conv_kernel_dim", 4)),
        has_full_gate=nested.get("use_full_rank_gate", False),
    )
    attention_numbers = _find_kimi_attention(config, nested, layers)
    # None: the block attends
    return [None if number in attention_numbers else mixer for number in range(1, layers + 1)]


def _find_kimi_attention(config: Config, nested: Config, layers: int) -> set[int]:
    """Return the blocks of Kimi Linear that attend, counted from 1."""
    attention_numbers = {*nested.get("full_attn_layers", [])}
    kinds = read_layer_values(config, "layer_types", layers, ("full_attention", "linear_attention"))
    if attention_numbers:
        return attention_numbers
    if kinds:
        return {number for number, kind in enumerate(kinds, start=1) if kind == "full_attention"}
    return {*range(5, layers + 1, 4)}  # the file says neither: every fourth block from the fifth on
