"""The events of a trace: Trace Event JSON as PyTorch's profiler (Kineto) writes it.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from steptime.core.errors import InputError

KERNEL_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH_CATEGORIES = (
    *("cuda_runtime", "cuda_driver", "xpu_runtime", "mtia_runtime"),
    *("privateuse1_runtime", "privateuse1_driver"),
)
HOST_CATEGORIES = ("cpu_op", "user_annotation", *LAUNCH_CATEGORIES)
CATEGORIES_BEFORE_1_12 = {  # names of PyTorch 1.8 to 1.11
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
    "Operator": "cpu_op",
}
DEVICE_MARKS = "gpu_user_annotation"  # annotations over the kernels that were launched in them
STEP = "ProfilerStep#"  # annotations of torch.profiler itself
OPTIMIZER = "Optimizer."
NODE = "autograd::engine::evaluate_function: "
SHAPES = "Input Dims"  # written with `record_shapes=True`
MATRIX_AXES = 2

MAX_TIME_US = 1e18
MAX_NAME_CHARACTERS = 200
MAX_TRACK_CHARACTERS = 40

_LIST = re.compile(r'"traceEvents"\s*:\s*(?=\[)|\A\s*(?=\[)')
_RAW_BACKSLASH = re.compile(r'\\(["\\/]|u[0-9a-fA-F]{4})?')
_XPROF = re.compile(r'"name"\s*:\s*"(?:/host:CPU|/device:(?:CPU|GPU|TPU):\d|/job:\w+/)')
_JAX = re.compile(r'PjitFunction|PjRt|"jit_|"pmap_|\bjit\(|\bjax\b')


class TracedInput(NamedTuple):
    """An input of an op, as `record_shapes` shows it.

    Attributes:
        shape: the sizes of a tensor; () of a scalar, and of what is no tensor.
        dtype: the type as the profiler writes it: `float`, `c10::BFloat16`, `Scalar`, "".
        value: the value of what is no tensor, as text: `[1, 1]`, `True`.
        is_transposed: whether the rows of a matrix do not run along its last axis.
    """

    shape: tuple[int, ...]
    dtype: str = ""
    value: str = ""
    is_transposed: bool = False


class Slice(NamedTuple):
    """A complete event (`ph` X): start and length [us], its track, and the arguments used here."""

    start: float
    length: float
    category: str
    name: str
    track: tuple[str, str]
    sequence: int | None
    correlation: int | None
    inputs: tuple[TracedInput, ...] = ()

    @property
    def end(self) -> float:
        """The time at which it ends [us]."""
        return self.start + self.length

    @property
    def is_step_mark(self) -> bool:
        """Whether it is a step that `torch.profiler` marks."""
        return self.name.startswith(STEP)


def make_event(name: str, category: str, start_us: float, length_us: float) -> dict[str, object]:
    """Return a complete event of the only track of a trace that this package writes."""
    fields = {"ph": "X", "pid": 0, "tid": 0, "cat": category, "name": name}
    return {**fields, "ts": start_us, "dur": length_us}


def read_events(text: str) -> list[Slice]:
    """Read the complete events of Trace Event JSON.

    Control characters in names and paths of Windows with single backslashes are accepted:
    PyTorch wrote both. Text around the list of events is not read.

    Raises:
        InputError: if the list is absent or torn.
    """
    heading = _LIST.search(text)
    if heading is None:
        raise InputError("holds no list of trace events")
    try:
        events = _decode_list(text, heading.end())
    except (ValueError, RecursionError) as error:
        raise InputError(f"is torn or no JSON: {error}") from None
    return [event for event in events if isinstance(event, Slice)]


def _decode_list(text: str, start: int) -> list[object]:
    """Decode the list that begins at `start`, also one whose backslashes are not escaped."""
    events: list[object]
    try:
        events, _ = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        if "escape" not in error.msg:  # old PyTorch wrote paths of Windows with single backslashes
            raise
        events, _ = _DECODER.raw_decode(_escape_backslashes(text[start:]))
    return events


def _escape_backslashes(text: str) -> str:
    r"""Double each backslash that stands for itself: `torch\nn` is a path, not a line break.

    A writer that leaves `\c` in a text escapes no backslash, so `\n` is none of a line break
    either. Only `\"`, `\\`, `\/` and `\u0000` keep their meaning.
    """
    return _RAW_BACKSLASH.sub(lambda match: match[0] if match[1] else r"\\", text)


def _read_slice(event: Mapping[str, Any]) -> Slice | None:
    """Return an event as a slice; None if it is of another kind or its times are not valid."""
    start_us = event.get("ts")
    length_us = event.get("dur")
    is_complete = event.get("ph") == "X"  # with a start and a length, in Trace Event Format
    if not is_complete or not _is_time(start_us) or not _is_time(length_us):
        return None
    event_arguments = event.get("args")
    arguments = event_arguments if isinstance(event_arguments, dict) else {}
    category = str(event.get("cat"))
    process = str(event.get("pid"))[:MAX_TRACK_CHARACTERS]
    thread = str(event.get("tid"))[:MAX_TRACK_CHARACTERS]
    return Slice(
        start=float(start_us),
        length=float(length_us),
        category=CATEGORIES_BEFORE_1_12.get(category, category),
        name=str(event.get("name"))[:MAX_NAME_CHARACTERS],
        track=(process, thread),
        sequence=_read_number(arguments.get("Sequence number")),
        correlation=_read_number(arguments.get("correlation")),
        inputs=_read_inputs(arguments) if SHAPES in arguments else (),
    )


def _read_inputs(arguments: Mapping[str, Any]) -> tuple[TracedInput, ...]:
    """Return the inputs of an op; a list of tensors becomes an input for each of them."""
    shapes = arguments[SHAPES]
    if not isinstance(shapes, list):  # written by another tool
        return ()
    input_count = len(shapes)
    dtypes = _pad_list(arguments.get("Input type"), input_count)
    values = _pad_list(arguments.get("Concrete Inputs"), input_count)
    all_strides = _pad_list(arguments.get("Input Strides"), input_count)
    inputs: list[TracedInput] = []
    for shape, dtype, value, strides in zip(shapes, dtypes, values, all_strides, strict=True):
        if not isinstance(shape, list):
            continue
        is_tensor_list = shape and isinstance(shape[0], list)
        if is_tensor_list:
            inputs += _read_tensor_list(shape, dtype)
        else:
            is_transposed = _is_column_major(shape, strides)
            sizes = _read_sizes(shape)
            inputs.append(TracedInput(sizes, str(dtype or ""), str(value or ""), is_transposed))
    return tuple(inputs)


def _read_tensor_list(shapes: list[Any], dtype: object) -> list[TracedInput]:
    """Return the tensors of an input that is a list of them: of one type, float if none is said."""
    dtype_name = str(dtype) if dtype and dtype != "TensorList" else "float"
    return [TracedInput(_read_sizes(shape), dtype_name) for shape in shapes]


def _is_column_major(shape: list[Any], strides: object) -> bool:
    """Return whether the strides of a matrix say that it is transposed."""
    if not isinstance(strides, list):
        return False
    is_matrix = len(strides) == len(_read_sizes(shape)) >= MATRIX_AXES
    return bool(is_matrix and strides[-1] != 1 and strides[-2] == 1)


def _pad_list(value: object, length: int) -> list[Any]:
    items = value if isinstance(value, list) else []
    return [*items, *[None] * (length - len(items))][:length]


def _read_sizes(shape: object) -> tuple[int, ...]:
    """Return sizes of a tensor; () for what holds others than whole numbers."""
    sizes = shape if isinstance(shape, list) else []
    is_valid = all(isinstance(size, int) and size >= 0 for size in sizes)
    return tuple(sizes) if is_valid else ()


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and 0 <= value < MAX_TIME_US


def _read_number(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _reduce_event(table: Mapping[str, Any]) -> object:  # a trace has millions of events
    """Keep of an event only what is used; any other table stays as it is."""
    return _read_slice(table) if "ph" in table else table


_DECODER = json.JSONDecoder(object_hook=_reduce_event, strict=False)


def find_other_profiler(text: str) -> str:
    """Return "JAX" or "TensorFlow" for a trace of their profiler, else ""."""
    if _XPROF.search(text) is None:
        return ""
    return "JAX" if _JAX.search(text) else "TensorFlow"
