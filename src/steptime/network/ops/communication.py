"""Collectives of one rank with the others of its group: ops that move bytes over a link.

A group is `ranks` ranks, each `stride` after the one before. Several tensors in one op are one
exchange, as libraries fill buckets. An op is differentiated as if the losses of all ranks were
added up: the gradient of gathering is scattering the sum, and the other way round.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

from steptime.core.graph import Attr, TensorSpec
from steptime.network.ops.gradient_op import emit_single_op
from steptime.network.ops.table import (
    Backward,
    Operand,
    OpKind,
    Specs,
    example,
    format_shapes,
    no_flop,
    normalize_axis,
    require,
    resize_axis,
)


def _check_group(ranks: int, stride: int) -> None:
    require(ranks >= 1 and stride >= 1, f"a group of {ranks} ranks, {stride} apart")


def all_reduce_outputs(*x: TensorSpec, ranks: int, stride: int = 1) -> Specs:
    """Return the specs of the inputs, which the sums of all ranks overwrite."""
    _check_group(ranks, stride)
    return x


def all_gather_outputs(
    *x: TensorSpec, ranks: int, stride: int = 1, axis: int = 0, lengths: tuple[int, ...] = ()
) -> Specs:
    """Return the tensors of which every rank holds a shard along `axis`.

    `lengths` are theirs along `axis` where the last shard is not full.
    """
    _check_group(ranks, stride)
    require(not lengths or len(lengths) == len(x), f"{len(lengths)} lengths of {len(x)} tensors")
    gathered = []
    for i, shard in enumerate(x):
        shard_axis = normalize_axis(shard, axis)
        shard_length = shard.shape[shard_axis]
        # the shard of the last rank need not be full: then `lengths` has the length of the whole
        full_length = lengths[i] if lengths else ranks * shard_length
        is_rank_share = shard_length == ceil(full_length / ranks)
        require(is_rank_share, f"{full_length} is not shared by {ranks} as {format_shapes(shard)}")
        gathered.append(resize_axis(shard, shard_axis, full_length))
    return tuple(gathered)


def reduce_scatter_outputs(*x: TensorSpec, ranks: int, stride: int = 1, axis: int = 0) -> Specs:
    """Return each rank's shard along `axis` of the sums; the last one may not be full."""
    _check_group(ranks, stride)
    shards = []
    for spec in x:
        shard_axis = normalize_axis(spec, axis)
        shard_length = ceil(spec.shape[shard_axis] / ranks)
        shards.append(resize_axis(spec, shard_axis, shard_length))
    return tuple(shards)


def all_to_all_outputs(
    x: TensorSpec,
    ranks: int,
    split: int,
    join: int,
    stride: int = 1,
    copies: int = 1,
    merged: int = 1,
) -> Specs:
    """Return a rank's tensor, cut along `split` and joined along `join`.

    Each row goes to `copies` of the ranks; `merged` rows come back as their sum.
    """
    _check_group(ranks, stride)
    # tokens go to `copies` experts each, as copies of their rows; on the way back `merged` rows
    # are summed into one
    parts = ranks * merged
    split_axis = normalize_axis(x, split)
    join_axis = normalize_axis(x, join)
    require(
        x.shape[split_axis] % parts == 0, f"axis {split} of {format_shapes(x)} in {parts} parts"
    )
    part = resize_axis(x, split_axis, x.shape[split_axis] // parts)
    received_parts = ranks * copies
    return (resize_axis(part, join_axis, part.shape[join_axis] * received_parts),)


def _reverse_all_to_all(b: Backward) -> Mapping[str, Attr]:
    """Return the attributes of the all-to-all that sends all rows back."""
    attrs = {**b.attrs, "split": b.attrs["join"], "join": b.attrs["split"]}
    # Rows that were copied come back merged. A count of 1 is the default, which is left out unless
    # it replaces a count of the forward op.
    counts = {"copies": b.attrs.get("merged", 1), "merged": b.attrs.get("copies", 1)}
    for name, count in counts.items():
        if count != 1 or name in attrs:
            attrs[name] = count
    return attrs


def _sum_bytes(*x: TensorSpec, **_: Attr) -> int:
    return sum(spec.size_bytes for spec in x)


def _gathered_bytes(*x: TensorSpec, **attrs: Any) -> int:
    return _sum_bytes(*all_gather_outputs(*x, **attrs))


_MPI = "MPI 4.1, chapter 6"
KINDS = {
    "all_reduce": OpKind(
        all_reduce_outputs,
        no_flop,
        example((3, 4), ranks=4),
        f"{_MPI}: MPI_Allreduce; bytes are those of the sum",
        gradient=emit_single_op("all_reduce", (Operand.GRADIENT,)),
        storage="in_place",
        exchanged=_sum_bytes,
    ),
    "all_gather": OpKind(
        all_gather_outputs,
        no_flop,
        example((2, 4), ranks=4, lengths=(7,)),
        f"{_MPI}: MPI_Allgather; bytes are those of the whole",
        gradient=emit_single_op(
            "reduce_scatter", (Operand.GRADIENT,), attrs=lambda b: b.attrs_without("lengths")
        ),
        exchanged=_gathered_bytes,
    ),
    "reduce_scatter": OpKind(
        reduce_scatter_outputs,
        no_flop,
        example((7, 4), ranks=4),
        f"{_MPI}: MPI_Reduce_scatter_block; bytes are those of the whole",
        gradient=emit_single_op(
            "all_gather",
            (Operand.GRADIENT,),
            attrs=lambda b: {"lengths": (b.specs[0].shape[b.attrs.get("axis", 0)],), **b.attrs},
        ),
        exchanged=_sum_bytes,
    ),
    "all_to_all": OpKind(
        all_to_all_outputs,
        no_flop,
        example((8, 3, 4), ranks=4, split=0, join=1),
        f"{_MPI}: MPI_Alltoall; bytes are those that a rank sends, its own part with them",
        gradient=emit_single_op("all_to_all", (Operand.GRADIENT,), attrs=_reverse_all_to_all),
        exchanged=lambda x, copies=1, **_: x.size_bytes * copies,
    ),
    "send": OpKind(
        lambda x, ranks=2, stride=1: all_reduce_outputs(x, ranks=ranks, stride=stride),
        no_flop,
        example((3, 4)),
        "MPI 4.1, chapter 3: MPI_Sendrecv to the next rank; its gradient comes back",
        gradient=emit_single_op("send", (Operand.GRADIENT,)),
        exchanged=_sum_bytes,
    ),
}
