"""What one rank exchanges with the others of its group: ops that move bytes over a link.

A group is `ranks` ranks, each `stride` after the one before. Several tensors in one op are one
exchange, as libraries fill buckets. An op is differentiated as if the losses of all ranks were
added up: the gradient of gathering is scattering the sum, and the other way round.
"""

from typing import Any

from steptime.core.graph import TensorSpec
from steptime.network.ops.table import (
    Backward,
    OpKind,
    Specs,
    along,
    example,
    fused,
    no_flop,
    require,
    resized,
    show,
)


def _group(ranks: int, stride: int) -> None:
    require(ranks >= 1 and stride >= 1, f"a group of {ranks} ranks, {stride} apart")


def all_reduce_outputs(*x: TensorSpec, ranks: int, stride: int = 1) -> Specs:
    """Return the specs of the inputs, which the sums of all ranks overwrite."""
    _group(ranks, stride)
    return x


def all_gather_outputs(
    *x: TensorSpec, ranks: int, stride: int = 1, axis: int = 0, lengths: tuple[int, ...] = ()
) -> Specs:
    """Return the tensors of which every rank holds a shard along `axis`.

    `lengths` are theirs along `axis` where the last shard is not full.
    """
    _group(ranks, stride)
    require(not lengths or len(lengths) == len(x), f"{len(lengths)} lengths of {len(x)} tensors")
    gathered = []
    for i, shard in enumerate(x):
        place = along(shard, axis)
        own = shard.shape[place]
        length = lengths[i] if lengths else ranks * own
        require(own == -(-length // ranks), f"{length} is not shared by {ranks} as {show(shard)}")
        gathered.append(resized(shard, place, length))
    return tuple(gathered)


def reduce_scatter_outputs(*x: TensorSpec, ranks: int, stride: int = 1, axis: int = 0) -> Specs:
    """Return each rank's shard along `axis` of the sums; the last one may not be full."""
    _group(ranks, stride)
    places = [(one, along(one, axis)) for one in x]
    return tuple(resized(one, i, -(-one.shape[i] // ranks)) for one, i in places)


def all_to_all_outputs(
    x: TensorSpec,
    ranks: int,
    split: int,
    join: int,
    stride: int = 1,
    copies: int = 1,
    merged: int = 1,
) -> Specs:
    """Return what a rank holds after it cut its tensor along `split` and joined along `join`.

    Each row goes to `copies` of the ranks; the sum of `merged` ones comes back as one.
    """
    _group(ranks, stride)
    parts, cuts, joins = ranks * merged, along(x, split), along(x, join)
    require(x.shape[cuts] % parts == 0, f"axis {split} of {show(x)} in {parts} parts")
    cut = resized(x, cuts, x.shape[cuts] // parts)
    return (resized(cut, joins, cut.shape[joins] * ranks * copies),)


def _back(b: Backward) -> dict[str, Any]:
    """Return how everything is sent back by an `all_to_all`."""
    back = {**b.attrs, "split": b.attrs["join"], "join": b.attrs["split"]}
    turned = {"copies": b.attrs.get("merged", 1), "merged": b.attrs.get("copies", 1)}
    return back | {name: times for name, times in turned.items() if times != 1 or name in back}


def _given(*x: TensorSpec, **_: Any) -> int:
    return sum(one.size_bytes for one in x)


_MPI = "MPI 4.1, chapter 6"
KINDS = {
    "all_reduce": OpKind(
        all_reduce_outputs,
        no_flop,
        example("3x4", ranks=4),
        f"{_MPI}: MPI_Allreduce; bytes are those of the sum",
        gradient=fused("all_reduce", "dy"),
        storage="in_place",
        exchanged=_given,
    ),
    "all_gather": OpKind(
        all_gather_outputs,
        no_flop,
        example("2x4", ranks=4, lengths=(7,)),
        f"{_MPI}: MPI_Allgather; bytes are those of the whole",
        gradient=fused("reduce_scatter", "dy", attrs=lambda b: b.without("lengths")),
        exchanged=lambda *x, **how: _given(*all_gather_outputs(*x, **how)),
    ),
    "reduce_scatter": OpKind(
        reduce_scatter_outputs,
        no_flop,
        example("7x4", ranks=4),
        f"{_MPI}: MPI_Reduce_scatter_block; bytes are those of the whole",
        gradient=fused(
            "all_gather",
            "dy",
            attrs=lambda b: {"lengths": (b.specs[0].shape[b.attrs.get("axis", 0)],), **b.attrs},
        ),
        exchanged=_given,
    ),
    "all_to_all": OpKind(
        all_to_all_outputs,
        no_flop,
        example("8x3x4", ranks=4, split=0, join=1),
        f"{_MPI}: MPI_Alltoall; bytes are those that a rank sends, its own part with them",
        gradient=fused("all_to_all", "dy", attrs=_back),
        exchanged=lambda x, copies=1, **_: x.size_bytes * copies,
    ),
    "send": OpKind(
        lambda x, ranks=2, stride=1: all_reduce_outputs(x, ranks=ranks, stride=stride),
        no_flop,
        example("3x4"),
        "MPI 4.1, chapter 3: MPI_Sendrecv to the next rank; its gradient comes back",
        gradient=fused("send", "dy"),
        exchanged=_given,
    ),
}
