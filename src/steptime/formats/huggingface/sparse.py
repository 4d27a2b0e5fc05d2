"""Text decoders whose attention selects its tokens by an indexer."""

from dataclasses import replace
from typing import NamedTuple

from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.decoders import decoder
from steptime.formats.huggingface.hybrids import freeze_changes, read_layer_values
from steptime.formats.huggingface.latent import deepseek_v3
from steptime.formats.huggingface.types import model_type
from steptime.network.layers.compressed import CompressedAttention
from steptime.network.layers.designs import BlockDesign, Indexer

V4_SPARSE, V4_HEAVY = 4, 128  # tokens of a compressed one: of those chosen, and of those all seen
V4_RATIOS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": V4_SPARSE,
    "heavily_compressed_attention": V4_HEAVY,
}
UNKNOWN_RATIO = -1  # of a kind that is none of `V4_RATIOS`, which is refused
SELECTED_REMARK = (
    "attention to chosen tokens is counted as a window of as many tokens; a cache keeps all"
)


def add_indexers(config: Config, settings: Settings) -> Settings:
    """Describe DeepSeek Sparse Attention: each block has an indexer, or takes over a choice."""
    indexer = Indexer(
        heads=config.count("index_n_heads", 64),
        width=config.count("index_head_dim", 128),
        selected=config.count("index_topk", 2048),
    )
    layers = settings["layers"]
    indexer_kinds = read_layer_values(config, "indexer_types", layers, ("full", "shared"))
    config.remark(SELECTED_REMARK)
    designs = []
    for layer in range(layers):
        # a "shared" block attends to the tokens that an earlier block has chosen
        is_reused = bool(indexer_kinds) and indexer_kinds[layer] == "shared"
        is_dense = layer < settings["dense_layers"]
        block_changes = freeze_changes(experts=0) if is_dense else ()
        design = BlockDesign(block_changes, indexer=replace(indexer, is_reused=is_reused))
        designs.append(design)
    # the designs say which blocks are dense
    return settings | {"dense_layers": 0, "designs": tuple(designs)}


@model_type("deepseek_v32", "DeepseekV32")
def deepseek_v32(config: Config) -> Settings:
    """Describe DeepSeek-V3.2."""
    return add_indexers(config, deepseek_v3(config))


@model_type("glm_moe_dsa", "GlmMoeDsa")
def glm_moe_dsa(config: Config) -> Settings:
    """Describe GLM 5 to 5.3; of 5.2 and 5.3 most blocks take over an earlier choice of tokens."""
    config.fill_defaults(
        vocab_size=154880,
        hidden_size=6144,
        intermediate_size=12288,
        num_hidden_layers=78,
        max_position_embeddings=202752,
        num_attention_heads=64,
        q_lora_rank=2048,
        qk_nope_head_dim=192,
        v_head_dim=256,
        n_group=1,
        topk_group=1,
        index_n_heads=32,
    )
    config.ignore_field("mlp_layer_types", [])
    config.ignore_field("qk_head_dim", 256)
    return add_indexers(config, deepseek_v3(config))


class _SparseBlocks(NamedTuple):
    """The indexer of MiniMax-M3, and of each block whether it has one."""

    indexer: Indexer
    indexer_flags: list[bool]


def _read_sparse_blocks(config: Config, layers: int) -> _SparseBlocks:
    """Return the indexer of MiniMax-M3 and which blocks have it, from either form of its file."""
    nested_table = config.get("sparse_attention_config", {})
    if nested_table:
        nested = Config(nested_table, f"{config.place}: sparse_attention_config", config.head)
        tokens_per_block = nested.count("sparse_block_size", 128)
        selected_blocks = nested.count("sparse_topk_blocks", 16)
        heads = nested.count("sparse_num_index_heads", 4)
        width = nested.count("sparse_index_dim", 128)
        stated_flags = read_layer_values(nested, "sparse_attention_freq", layers, (0, 1))
        # in this form all blocks have an indexer, unless a list says which
        indexer_flags = [bool(flag) for flag in stated_flags] or [True] * layers
    else:
        tokens_per_block = config.count("index_block_size", 128)
        selected_blocks = config.count("index_topk_blocks", 16)
        heads = config.count("index_n_heads", 4)
        width = config.count("index_head_dim", 128)
        kinds = config.get("layer_types", [])
        # in this form the kinds name the blocks that have an indexer
        indexer_flags = [kind == "minimax_m3_sparse" for kind in kinds] or [False] * layers
    indexer = Indexer(
        heads=heads,
        width=width,
        selected=tokens_per_block * selected_blocks,
        has_weights=False,
        norms="both",
    )
    return _SparseBlocks(indexer, indexer_flags)


def _read_dense_flags(config: Config, layers: int) -> list[bool]:
    """Return a flag for each block of MiniMax-M3: it has no experts, by whatever field says so."""
    dense_count = config.get("first_k_dense_replace", 0)
    expert_flags = read_layer_values(config, "moe_layer_freq", layers, (0, 1))
    ffn_kinds = read_layer_values(config, "mlp_layer_types", layers, ("dense", "sparse"))
    if expert_flags:
        return [not has_experts for has_experts in expert_flags]
    if ffn_kinds:
        return [kind == "dense" for kind in ffn_kinds]
    return [layer < dense_count for layer in range(layers)]


@model_type("minimax_m3", "MiniMaxM3")
@model_type("minimax_m3_vl_text", "MiniMaxM3VL")
def minimax_m3(config: Config) -> Settings:
    """Describe MiniMax-M3: an indexer chooses blocks of tokens."""
    config.fill_defaults(
        vocab_size=200064,
        hidden_size=6144,
        intermediate_size=3072,
        num_hidden_layers=60,
        max_position_embeddings=1048576,
        num_attention_heads=64,
        num_key_value_heads=4,
        head_dim=128,
        hidden_act="silu",
    )
    config.rename(num_experts="num_local_experts")
    if config.table.get("hidden_act") in ("swigluoai", "swiglu_oai"):
        # the gate is a SiLU, whose clamp `clamped` below says
        config.replace("hidden_act", "silu")
    dense_width = config.get("dense_intermediate_size", 12288)
    shared_width = config.get("shared_intermediate_size", 3072)
    settings = decoder(config)
    layers = settings["layers"]
    indexer, indexer_flags = _read_sparse_blocks(config, layers)
    dense_flags = _read_dense_flags(config, layers)
    if any(indexer_flags):
        config.remark(SELECTED_REMARK)
    rotary_width = config.get("rotary_dim", 64)
    expert_width = config.get("moe_intermediate_size", 0) or settings["ffn"]
    config.ignore_field("n_shared_experts", 1)
    config.require("use_qk_norm", only=True)
    config.require("qk_norm_type", only="per_head")
    config.require("attention_output_gate", only=False)
    config.ignore_field("use_gemma_norm", True)
    designs = [
        BlockDesign(
            freeze_changes(experts=0) if is_dense else (),
            indexer=indexer if has_indexer else None,
        )
        for is_dense, has_indexer in zip(dense_flags, indexer_flags, strict=True)
    ]
    return settings | {
        "clamped": True,
        "ffn": dense_width,
        "rotary_width": rotary_width or settings["rotary_width"],
        "qk_norm": "head",
        "experts": config.get("num_local_experts", 128),
        "experts_per_token": config.get("num_experts_per_tok", 4),
        "expert_ffn": expert_width,
        "shared_ffn": shared_width,
        "designs": tuple(designs),
    }


@model_type("deepseek_v4", "DeepseekV4")
@model_type("deepseek_ref", "DeepseekV4")
def deepseek_v4(config: Config) -> Settings:
    """Describe DeepSeek-V4: attention to compressed tokens, and residual streams."""
    config.rename(num_local_experts="n_routed_experts")
    config.fill_defaults(
        vocab_size=129280,
        hidden_size=4096,
        num_hidden_layers=43,
        max_position_embeddings=1048576,
        num_attention_heads=64,
        num_key_value_heads=1,
        head_dim=512,
        moe_intermediate_size=2048,
    )
    settings = decoder(config)
    config.ignore_field("attention_bias", False)
    config.ignore_field("num_hash_layers", 3)
    config.ignore_field("expert_dtype", "")
    config.ignore_field("hc_sinkhorn_iters", 20)
    config.require("mlp_bias", only=False)
    streams = config.count("hc_mult", 4)
    expert_width = config.get("moe_intermediate_size", 2048)
    config.remark(SELECTED_REMARK)
    mixers = _list_compressing_mixers(config, settings)
    designs = [BlockDesign(mixer=mixer, streams=streams) for mixer in mixers]
    return settings | {
        "experts": config.get("n_routed_experts", 256),
        "experts_per_token": config.get("num_experts_per_tok", 6),
        "expert_ffn": expert_width,
        "shared_ffn": config.get("n_shared_experts", 1) * expert_width,
        "designs": tuple(designs),
    }


def _list_compressing_mixers(config: Config, settings: Settings) -> list[CompressedAttention]:
    """Return the attention of each block of DeepSeek-V4, by the tokens of a compressed one."""
    ratios = _read_compression_ratios(config, settings["layers"])
    indexer = Indexer(
        heads=config.count("index_n_heads", 64),
        width=config.count("index_head_dim", 128),
        selected=config.count("index_topk", 512),
    )
    attention = CompressedAttention(
        heads=settings["heads"],
        head_width=settings["head_width"],
        rotary_width=config.count("qk_rope_head_dim", 64),
        window=config.count("sliding_window", 128),
        latent_q=config.count("q_lora_rank", 1024),
        groups=config.count("o_groups", 8),
        group_width=config.count("o_lora_rank", 1024),
    )
    attention_by_ratio = {
        0: attention,  # to the window alone
        V4_SPARSE: replace(attention, ratio=V4_SPARSE, overlaps=True, indexer=indexer),
        V4_HEAVY: replace(attention, ratio=V4_HEAVY),
    }
    return [attention_by_ratio[ratio] for ratio in ratios]


def _read_compression_ratios(config: Config, layers: int) -> list[int]:
    """Return the tokens of a compressed one in each block of DeepSeek-V4; 0 for a window alone."""
    ratios: list[int] = config.get("compress_ratios", [])
    kinds = config.get("layer_types", [])
    if kinds:
        ratios = [V4_RATIOS.get(kind, UNKNOWN_RATIO) for kind in kinds]
    if not ratios:  # the file does not say: every second block from the fourth on is sparse
        ratios = [
            V4_SPARSE if layer > 1 and layer % 2 == 1 else V4_HEAVY for layer in range(layers)
        ]
    has_unknown_ratio = not {*ratios} <= {*V4_RATIOS.values()}
    if len(ratios) < layers or has_unknown_ratio:
        raise config.error("compress_ratios", f"must be one of 0, 4, 128 for {layers} layers")
    return ratios[:layers]
