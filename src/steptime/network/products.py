"""The products of a language model that have a part of their own: its head, and attention."""

import re

from steptime.core.graph import Graph, Op
from steptime.core.workload import STORED_EXPERTS, STORED_MLP

AFTER_HEAD = ("cross_entropy", "cast", "bias", "reshape", "slice", "mean")
_ATTENTION = re.compile(r"(?i)(^|[/._])\w*(attn|attention)\w*([/._]|$)")


def find_head(graph: Graph) -> str:
    """Return the name of the product that makes the logits, "" where none does."""
    makers: dict[str, Op] = {name: op for op in graph.ops for name in op.outputs}
    op = makers.get(graph.outputs[0])
    while op and op.kind in AFTER_HEAD:
        op = makers.get(op.inputs[0])
    return op.name if op and op.kind == "linear" else ""


def is_attention_name(name: str) -> bool:
    """Whether the name of an op is that of one in attention: `block3/self_attn/q_proj`."""
    return bool(_ATTENTION.search(name))


def is_left_wide(name: str, kind: str, stored: str) -> bool:
    """Whether a file leaves the weights of a product of a layer as they were.

    Args:
        name: the name of the op.
        kind: the kind of the op.
        stored: the weights that the file quantises: all, those outside attention, or experts'.
    """
    if kind == "experts":  # whatever a quantised file keeps in few bits includes the experts
        return False
    quantises_experts_alone = stored == STORED_EXPERTS
    skips_attention = stored == STORED_MLP
    return quantises_experts_alone or (skips_attention and is_attention_name(name))
