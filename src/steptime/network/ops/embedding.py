"""Look-ups of rows in a table, and their gradient."""

from steptime.core.graph import TensorSpec
from steptime.network.ops.table import (
    Backward,
    OpKind,
    Specs,
    example,
    format_shapes,
    integers,
    no_flop,
    require,
)


def embedding_outputs(ids: TensorSpec, w: TensorSpec, sparse: bool = False) -> Specs:
    """Return `ids [...], w [vocabulary, width] -> [..., width]`."""
    require(len(w.shape) == 2, f"an embedding table is a matrix, not {format_shapes(w)}")
    require(ids.dtype in ("int64", "int32"), f"an embedding of {ids.dtype}")
    return (TensorSpec((*ids.shape, w.shape[1]), w.dtype),)


def _embedding_gradient(b: Backward) -> tuple[str | None, ...]:
    """Add each row of dY to its word's row: of a dense gradient, or of the rows that were read.

    A `sparse` gradient has at most as many rows as there are words. Source: the sparse gradients
    of `torch.nn.Embedding`, coalesced as `torch.optim.SparseAdam` does.
    """
    ids_spec, table_spec, *_ = b.specs
    rows = table_spec.shape[0]
    if b.attrs.get("sparse"):  # the rows of the ids alone have a gradient
        rows = min(rows, ids_spec.size)
    ids = b.op.inputs[0]
    table_grads = b.emit("embedding_grad", (ids, b.grad), "grad_weight", rows=rows)
    return (None, *table_grads)


KINDS = {
    "embedding": OpKind(
        embedding_outputs,
        no_flop,
        example(integers(2, 3), (7, 4)),
        "definition: reads the rows it copies, not the whole table",
        gradient=_embedding_gradient,
        read=lambda ids, w, **_: ids.size_bytes + embedding_outputs(ids, w)[0].size_bytes,
    ),
    "embedding_grad": OpKind(
        lambda ids, grad, rows: (TensorSpec((rows, grad.shape[-1]), grad.dtype),),
        lambda ids, grad, rows: int(grad.size),
        example(integers(2, 3), (2, 3, 4), rows=7),
        "definition: one addition an element of dY; writes the whole table",
    ),
}
