"""Ops that are priced by the bytes that they read and write, and ops that only steer gradients.

A network may hold an op that no other kind describes: a sort, a Fourier transform, a scatter, an
op of somebody's extension. Its shapes are known from the file. A backend cannot run it.
"""

from collections.abc import Sequence
from typing import Any

from steptime.core.graph import Attr, TensorSpec
from steptime.network.ops.table import (
    Backward,
    OpKind,
    Specs,
    example,
    like_first_input,
    no_flop,
    require,
)


def pack_specs(specs: Sequence[TensorSpec]) -> dict[str, Attr]:
    """Return specs as two attributes.

    `shapes` is `(rank, *sizes)` of each spec, one after the other, `dtypes` their types with
    commas between them: `[2, 3]` of float32 and a scalar of int64 are `(2, 2, 3, 0)` and
    `float32,int64`.
    """
    ranks_and_sizes: list[int] = []
    for spec in specs:
        ranks_and_sizes += [len(spec.shape), *spec.shape]
    dtypes = ",".join(spec.dtype for spec in specs)
    return {"shapes": tuple(ranks_and_sizes), "dtypes": dtypes}


def unpack_specs(shapes: tuple[int, ...], dtypes: str) -> Specs:
    """Return the specs that `pack_specs` wrote as attributes."""
    specs: list[TensorSpec] = []
    message = f"{dtypes} for shapes {shapes}"
    start = 0  # of the next spec: its rank, and behind it its sizes
    for dtype in dtypes.split(","):
        require(start < len(shapes), message)
        rank = shapes[start]
        end = start + 1 + rank
        specs.append(TensorSpec(tuple(shapes[start + 1 : end]), dtype))
        start = end
    require(start == len(shapes), message)
    return tuple(specs)


def opaque_outputs(
    *_: TensorSpec,
    function: str,  # names the op in messages
    shapes: tuple[int, ...],
    dtypes: str,
    flop_count: int = 0,
    gradient_flop: int | None = None,  # of all gradients; None: as many as `flop_count`
    is_linear: bool = False,
) -> Specs:
    """Return the outputs that the attributes state."""
    return unpack_specs(shapes, dtypes)


def opaque_gradient(b: Backward) -> tuple[str | None, ...]:
    """Emit one op that reads inputs and dY and makes the gradient of each input that needs one.

    An op that is linear in its floating inputs reads only the others: indices and the like.
    """
    differentiated = [i for i, is_needed in enumerate(b.needs) if is_needed]
    is_linear = b.attrs.get("is_linear")
    inputs_read = []
    for name, spec in zip(b.op.inputs, b.specs, strict=True):
        is_index = not spec.is_floating
        # the gradient of a linear op, such as a gather, depends on indices alone
        if is_index or not is_linear:
            inputs_read.append(name)
    output_grads = [grad for grad in b.grads if grad]
    input_grads = b.emit(
        "opaque_grad",
        (*inputs_read, *output_grads),
        "inputs_grad",
        function=b.attrs["function"],
        flop_count=b.attrs.get("gradient_flop", b.attrs.get("flop_count", 0)),
        **pack_specs([b.specs[i] for i in differentiated]),
    )
    grad_by_input = dict(zip(differentiated, input_grads, strict=True))
    return tuple(grad_by_input.get(i) for i in range(len(b.needs)))


def _attach_gradient(b: Backward) -> tuple[str | None, ...]:
    """Pass dY on to the output of the layer, and make a gradient of each state from it."""
    # `attach` passes its first input, the output of a recurrent layer, through; its further inputs
    # are the initial states, whose gradients come from the layer's first step
    needs_output_grad, *state_needs = b.needs
    grads: list[str | None] = [b.grad if needs_output_grad else None]
    for i, needs_state_grad in enumerate(state_needs, start=1):
        if not needs_state_grad:
            grads.append(None)
            continue
        (first_step,) = b.emit("slice", (b.grad,), f"grad_first_{i}", axis=1, start=0, stop=1)
        state_spec = pack_specs([b.specs[i]])
        (grad,) = b.emit(
            "opaque_grad", (first_step,), f"grad_{i}", function="attach", flop_count=0, **state_spec
        )
        grads.append(grad)
    return tuple(grads)


def _stated_flop(*_: TensorSpec, flop_count: int = 0, **__: Any) -> int:
    return flop_count


_SORTED: dict[str, Attr] = {"function": "sort", "shapes": (2, 2, 5), "dtypes": "float32"}

KINDS = {
    "opaque": OpKind(
        opaque_outputs,
        _stated_flop,
        example((2, 5), **_SORTED, flop_count=30),
        "definition: reads its inputs and writes its outputs; FLOP as stated, else 0",
        gradient=opaque_gradient,
    ),
    "opaque_grad": OpKind(
        opaque_outputs,
        _stated_flop,
        example((2, 5), (2, 5), **_SORTED, flop_count=30),
        "derivative of opaque: reads what it needs and dy, writes the gradients of its inputs",
    ),
    "attach": OpKind(
        like_first_input,
        no_flop,
        example((2, 3, 4), (2, 4)),
        "definition: the output of a recurrent layer that begins with computed states",
        gradient=_attach_gradient,
        storage="view",
        read=lambda _, *states: sum(state.size_bytes for state in states),
    ),
}
