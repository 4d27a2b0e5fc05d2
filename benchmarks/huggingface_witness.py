#!/usr/bin/env python3
"""Hold `config.json` of Hugging Face against transformers: parameters, and FLOP of products.

Needs a Python that has transformers and torch. Every type with its default configuration, and with
fields changed at random; models are built on the device `meta`. Prints what differs, exits with 1
if anything does.

    python benchmarks/huggingface_witness.py [--types gpt2,llama] [--random 5] [--seed 1] [--flop]
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from typing import Any

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.formats.huggingface.reading import describe_network
from steptime.formats.huggingface.types import types
from steptime.measure.backends.native.module import without_operators
from steptime.network.families.family import resolve
from steptime.network.ops import OPS, cost_of
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError

warnings.filterwarnings("ignore")
SMALL = {"length": 24, "target_length": 17}
CHANGES: dict[str, tuple[Any, ...]] = {  # field of a configuration: values to try
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim"), (96, 192, 384)),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), (1, 2, 5)),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), (1, 3)),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), (4, 8, 12)),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), (4, 8)),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), (100, 333)),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "hidden_dim", "d_ff"), (100, 333)),
    "num_key_value_heads": (1, 2, 4, None),
    "head_dim": (16, 32, None),
    "d_kv": (8, 20),
    "vocab_size": (101, 1000),
    "tie_word_embeddings": (True, False),
    **dict.fromkeys(("attention_bias", "mlp_bias", "qkv_bias", "use_qkv_bias"), (True, False)),
    **dict.fromkeys(("use_bias", "enable_bias", "do_layer_norm_before"), (True, False)),
    **dict.fromkeys(("use_parallel_residual", "multi_query"), (True, False)),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), (4, 8)),
    "num_experts_per_tok": (1, 2),
    "n_shared_experts": (1, 3),
    "first_k_dense_replace": (0, 1),
    "decoder_sparse_step": (1, 2),
    "moe_intermediate_size": (24, 40),
    "shared_expert_intermediate_size": (24, 48),
    "q_lora_rank": (None, 20, 40),
    "kv_lora_rank": (16, 24),
    "qk_nope_head_dim": (16, 24),
    "qk_rope_head_dim": (8, 16),
    "v_head_dim": (12, 16),
    "max_position_embeddings": (64, 128),
    "n_positions": (64, 128),
    "type_vocab_size": (1, 2),
    "embedding_size": (32, 48),
    "word_embed_proj_dim": (32, 48),
    "feed_forward_proj": ("relu", "gated-gelu"),
    "relative_attention_num_buckets": (16, 32),
    "max_source_positions": (40, 100),
    "max_target_positions": (33, 64),
    "num_mel_bins": (20, 80),
    "image_size": (32, 64),
    "patch_size": (8, 16),
    "num_channels": (1, 3),
    "rotary_dim": (8, 16),
    "depths": ([1, 2], [2, 2, 2]),
    "window_size": (4, 8),
    "embed_dim": (24, 48),
    "num_labels": (2, 7, 1000),
}


def model_of(kind: str, values: dict[str, Any], head: str) -> tuple[Any, Any, str]:
    """Return transformers' model on `meta`, its configuration and the name of its class."""
    config = transformers.CONFIG_MAPPING[kind](**values)
    plain = "".join(filter(str.isalnum, kind)).lower()
    stems = plain, plain.removesuffix("text"), plain.removesuffix("model")
    wanted = [(stem + head).lower() for stem in stems]
    name = next(n for n in dir(transformers) if n.lower() in wanted)
    config._attn_implementation = "eager"  # noqa: SLF001  # there is no other way to ask for it
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    return model.eval(), config, name


def inputs_of(kind: str, config: Any, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Return a batch of one for the model of a configuration."""
    words, target = (
        torch.zeros((1, sizes.get(key, n)), dtype=torch.int64, device="meta")
        for key, n in SMALL.items()
    )
    if kind == "whisper":
        sound = (1, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": torch.zeros(sound, device="meta"), "decoder_input_ids": target}
    image = getattr(config, "image_size", None) or getattr(
        getattr(config, "vision_config", None), "image_size", None
    )
    if image:
        channels = getattr(config, "num_channels", 3)
        pixels = torch.zeros((1, channels, image, image), device="meta")
        if kind == "clip":
            return {"input_ids": words, "pixel_values": pixels}
        return {"pixel_values": pixels}
    if getattr(config, "is_encoder_decoder", False):
        return {"input_ids": words, "decoder_input_ids": target}
    return {"input_ids": words}


def witnessed_flop(model: Any, inputs: dict[str, torch.Tensor]) -> int:
    """Return the FLOP of products that torch's counter sees in a forward pass."""
    counter = FlopCounterMode(display=False)
    model.set_experts_implementation("batched_mm") if hasattr(
        model, "set_experts_implementation"
    ) else None
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(**inputs)
    return int(counter.get_total_flops())


def ours(table: dict[str, Any]) -> tuple[Graph, dict[str, int]]:
    """Return the graph of a config.json, in inference, and the tokens that come in."""
    family = describe_network(table, "config.json")
    short = {
        key: min(SMALL[key], int(str(one.default)))
        for key, one in family.parameters.items()
        if key in SMALL
    }
    builder = Builder("config", precision("float32"), training=False)
    return builder.graph(family.build(builder, resolve(family, short), 1)), short


def flop_of(graph: Graph) -> int:
    """Return the FLOP that other counters count too."""
    return sum(cost_of(*graph.cases[op.name])[0] for op in graph.ops if OPS[op.kind].work)


def compare(kind: str, values: dict[str, Any], head: str, flop: bool) -> str:
    """Return what differs, "" if nothing does, "-" where transformers refuses the fields."""
    try:
        model, config, name = model_of(kind, values, head)
    except Exception as error:  # noqa: BLE001  # whatever transformers says of fields that do not fit
        return f"- {type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}"
    table = {**values, "model_type": kind, "architectures": [name]}
    try:
        graph, sizes = ours(table)
    except (InputError, ShapeError) as error:
        try:
            witnessed_flop(model, inputs_of(kind, config, {}))
        except Exception:  # noqa: BLE001  # what we refuse does not run there
            return f"- both: {error}"
        return f"refused: {error}"
    theirs = model.num_parameters()
    if graph.parameters != theirs:
        return f"parameters {graph.parameters:,}, transformers {theirs:,}"
    if not flop:
        return ""
    try:
        seen = witnessed_flop(model, inputs_of(kind, config, sizes))
    except Exception as error:  # noqa: BLE001  # what does not run on `meta`
        return f"- no FLOP: {type(error).__name__}: {str(error).splitlines()[0][:90]}"
    return "" if seen == flop_of(graph) else f"FLOP {flop_of(graph):,}, torch {seen:,}"


def main() -> int:
    """Compare all that was asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--types", default=",".join(types()))
    options.add_argument("--random", type=int, default=0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--flop", action="store_true")
    asked = options.parse_args()
    rng, wrong = random.Random(asked.seed), 0  # noqa: S311  # not for secrets
    for kind in asked.types.split(","):
        heads, same, refused = types()[kind].head_by_class_end, 0, 0
        config = transformers.CONFIG_MAPPING[kind]().to_dict()
        cases: list[tuple[dict[str, Any], str]] = [({}, head) for head in heads]
        for _ in range(asked.random):
            changes = {
                key: rng.choice(tried)
                for key, tried in CHANGES.items()
                if (key in config or key == "num_labels") and rng.random() < 0.7
            }
            cases.append((changes, rng.choice(list(heads))))
        for values, head in cases:
            found = compare(kind, values, head, asked.flop)
            if found.startswith("-"):
                refused += 1
                print(f"  {kind} ...{head} {values}: {found}", file=sys.stderr)
            elif found:
                wrong += 1
                print(f"{kind} ...{head} {values}: {found}")
            else:
                same += 1
        print(f"{kind}: {same} the same, {refused} not built by transformers")
    return 1 if wrong else 0


if __name__ == "__main__":
    with without_operators():  # models import torchvision when they are asked for
        sys.exit(main())
