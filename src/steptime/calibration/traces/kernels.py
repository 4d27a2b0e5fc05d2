"""Kernels of traced ops: by the op table where it knows them, else by what they read and write."""

from collections.abc import Sequence
from dataclasses import replace

from steptime.calibration.cases import op_kernels
from steptime.calibration.traces.calls import table_call
from steptime.core.dtypes import SIZE_BYTES
from steptime.core.graph import TensorSpec
from steptime.network.ops.table import ShapeError
from steptime.prediction.kernel import Kernel, Settings
from steptime.records.traces.event_trees import ATEN
from steptime.records.traces.trace_events import TracedInput
from steptime.records.traces.traced_ops import OpKey

DTYPES = {  # as the profiler writes them
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "bool": "bool",
    "unsigned char": "uint8",
    "signed char": "int8",
}
FLOAT_DTYPES = ("float64", "float32", "bfloat16", "float16")
WRITES_ONLY = ("fill", "zero", "zeros", "ones", "full", "zeros_like", "ones_like", "arange")
REDUCTIONS = ("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "any", "all", "norm")
JOINING = ("cat", "concat", "stack")
LIST_OPS = ("_foreach", "_fused")
NEW_PAGE_BYTES = 32 * 2**20  # glibc takes larger blocks from the system anew (M_MMAP_THRESHOLD)


def find_dtype(inputs: Sequence[TracedInput]) -> str:
    """Return the floating type of an op: that of its first floating tensor, else float32."""
    names = (DTYPES.get(traced_input.dtype, "") for traced_input in inputs if traced_input.shape)
    return next((name for name in names if name in FLOAT_DTYPES), "float32")


def kernels_of(key: OpKey, dtype: str | None, settings: Settings) -> tuple[Kernel, ...]:
    """Return the kernels of an op.

    Args:
        key: the op.
        dtype: the type in place of all floating ones; None for those of the trace.
        settings: the software that runs it.
    """
    kind = key.name.removeprefix(ATEN)
    float_dtype = dtype or find_dtype(key.inputs)
    new_page_bytes = 0.0
    if settings.pages:  # a CPU, whose system zeroes new memory page by page
        new_page_bytes = _new_page_bytes(kind, _list_specs(key.inputs, dtype))
    # An op that the table does not know is priced by what it reads and writes.
    kernels = _table_kernels(key, float_dtype, settings) or (_plain_kernel(key, kind, dtype),)
    first_kernel, *later_kernels = [
        kernel._replace(op=key.name, pass_=key.pass_, fresh=0.0) for kernel in kernels
    ]
    # New pages count once, for the first kernel of the op.
    return (first_kernel._replace(fresh=new_page_bytes), *later_kernels)


def _table_kernels(key: OpKey, dtype: str, settings: Settings) -> tuple[Kernel, ...]:
    """Return the kernels that the op table gives; () where it does not know the op."""
    call = table_call(key.name, key.inputs)
    if call is None:
        return ()
    pass_ = "forward" if call.gradients is None else "backward"  # None: no gradient
    settings_without_pages = replace(settings, pages=False)
    arguments = call.shapes, call.attrs, dtype, pass_, call.gradients, settings_without_pages
    try:
        return op_kernels(call.kind, *arguments)
    except (ShapeError, ValueError):
        return ()


def _list_specs(inputs: Sequence[TracedInput], dtype: str | None) -> list[TensorSpec]:
    """Return the tensors among inputs, floating ones in another type if one is given."""
    specs = []
    for traced_input in inputs:
        if not traced_input.shape:  # a number or a setting
            continue
        traced_dtype = DTYPES.get(traced_input.dtype, "float32")
        is_float = traced_dtype in FLOAT_DTYPES
        target_dtype = dtype if dtype and is_float else traced_dtype
        has_size = target_dtype in SIZE_BYTES
        specs.append(TensorSpec(traced_input.shape, target_dtype if has_size else "float32"))
    return specs


def _plain_kernel(key: OpKey, kind: str, dtype: str | None) -> Kernel:
    """Return the kernel of an op that reads its inputs and writes an output of the largest."""
    specs = _list_specs(key.inputs, dtype)
    float_dtype = dtype or find_dtype(key.inputs)
    input_bytes = sum(spec.size_bytes for spec in specs)
    output_bytes = _output_bytes(kind, specs)
    name = kind.rstrip("_")
    moved_bytes = output_bytes if name in WRITES_ONLY else input_bytes + output_bytes
    if kind == "copy_":  # the target comes first, and is not read
        moved_bytes = input_bytes
    flop = float(max((spec.size for spec in specs), default=0))  # one for each element
    return Kernel(
        op=key.name,
        kind=name,
        pass_=key.pass_,
        dtype=float_dtype,
        unit="vector",
        flop=flop,
        bytes=float(moved_bytes),
    )


def _output_bytes(kind: str, specs: Sequence[TensorSpec]) -> float:
    """Return the bytes that an op writes, from the tensors that it reads."""
    sizes = [spec.size_bytes for spec in specs]
    name = kind.rstrip("_")
    # A reduction writes next to nothing.
    if not sizes or name in REDUCTIONS:
        return 0.0
    if name in JOINING:
        return float(sum(sizes))
    # Of two equal lists of tensors the first is written. The four lists of a fused optimizer
    # (weights, gradients, two moments) are counted in the same way.
    if kind.startswith(LIST_OPS):
        return sum(sizes) / 2
    # In place (_) the first input is written.
    return float(sizes[0] if kind.endswith("_") else max(sizes))


def _new_page_bytes(kind: str, specs: Sequence[TensorSpec]) -> float:
    """Return the bytes of an op's output that lie in pages that the system maps anew."""
    if kind.endswith("_") or kind.startswith(LIST_OPS):
        return 0.0
    output_bytes = _output_bytes(kind, specs)
    return output_bytes if output_bytes >= NEW_PAGE_BYTES else 0.0
