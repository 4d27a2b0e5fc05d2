"""Layers for multi-token prediction (MTP), whose parameters a remark counts apart."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from steptime.core.dtypes import precision
from steptime.formats.huggingface.config import Settings
from steptime.network.families.family import Family
from steptime.network.layers.designs import BlockDesign, block_design
from steptime.network.ops.builder import Builder

AHEAD_FIELDS = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers")
NORM_COUNT = 3  # of the state, of the next token's embedding, and of the output
LENGTH = 8  # tokens of the graphs whose weights are counted


def describe_ahead(table: Mapping[str, Any], base: Family, settings: Settings) -> list[str]:
    """Describe the layers of a file that predict further tokens, if it has any.

    Each is the last block, a product that joins a state and an embedding, and three norms
    (DeepSeek-AI 2024, section 2.2); words are shared with the network.
    """
    count = next((table[name] for name in AHEAD_FIELDS if is_count(table.get(name))), 0)
    if not count:
        return []
    width = settings["width"]
    # each layer is a block like the last one, a product that joins state and embedding, and norms;
    # its table of words is the network's own, which is counted there
    joining_product = 2 * width * width
    norms = NORM_COUNT * width
    parameters = count_block_parameters(base, settings) + joining_product + norms
    layers = "1 layer" if count == 1 else f"{count} layers"
    total = f"{count * parameters:,} parameters"
    return [f"{layers} to predict further tokens (MTP), counted apart: {total}"]


def is_count(value: object) -> bool:
    """Whether a value is a whole number above 0."""
    return type(value) is int and value > 0


def count_block_parameters(base: Family, settings: Settings) -> int:
    """Return the parameters of a network's last block, or of those that `ahead_designs` names."""
    last_layer = settings["layers"] - 1
    windows = settings["windows"]
    # the blocks of these settings are all like the last one
    equal_blocks = settings | {
        "dense_layers": 0,
        "dense_at": "",
        "expert_every": 1,
        "windows": windows[last_layer % len(windows)],
        "block_groups": 0,
        "length": LENGTH,
        "max_length": max(LENGTH, settings["max_length"]),
    }
    # A network with the blocks twice has those parameters more than a network with them once.
    if "designs" not in settings:
        single = equal_blocks | {"layers": 1}
        double = equal_blocks | {"layers": 2}
    else:
        designs: tuple[BlockDesign, ...] = settings.get("ahead_designs", ())
        if not designs:  # the last block, without what it reads of earlier blocks
            last_design = block_design(settings, last_layer)
            designs = (replace(last_design, source=None, token_width=0),)
        single = equal_blocks | {"layers": len(designs), "designs": designs}
        double = equal_blocks | {"layers": 2 * len(designs), "designs": 2 * designs}
    return _count_parameters(base, double) - _count_parameters(base, single)


def _count_parameters(base: Family, settings: Settings) -> int:
    b = Builder("ahead", precision("bfloat16"), training=False)
    base.build(b, settings, 1)  # batch 1: only weights are counted
    return sum(b.tensors[name].size for name in b.weights)
