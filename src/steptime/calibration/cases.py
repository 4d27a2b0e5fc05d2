"""Cases: measured times of single ops and of steps, with their kernels and conditions."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Parameter, signature
from types import MappingProxyType

from steptime.build import build_step
from steptime.core.dtypes import OPERAND_BYTES, precision
from steptime.core.errors import InputError, shorten
from steptime.core.graph import Attr, Attrs, Graph, Op, TensorSpec
from steptime.core.toml_files import DATA
from steptime.core.units import format_count
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.hardware.constants import Constant, constants_from_table
from steptime.hardware.device import Device
from steptime.hardware.file_cache import read_cached
from steptime.network.ops import OPS, kind_row, output_names, outputs_of, resolve_alias
from steptime.network.ops.table import ShapeError
from steptime.network.ops.training import training_graph
from steptime.prediction import cost_model
from steptime.prediction.calibrated.engine_kernels import adapt_to_engine
from steptime.prediction.calibrated.hosts import on_usual_host
from steptime.prediction.kernel import Kernel, Settings
from steptime.prediction.low_products import LOW_KINDS, lower_products
from steptime.prediction.lower import lower
from steptime.prediction.method import stack_option
from steptime.prediction.price import peak_flop_per_s
from steptime.records.readers.mapping_keys import COPIES, Condition

SETTINGS = Settings()
CALIBRATED = cost_model("calibrated")
KIND_ALIASES = {  # names of frameworks and people for kinds of the op table
    "mm": "matmul",
    "bmm": "matmul",
    "gemm": "matmul",
    "conv": "conv2d",
    "dense": "linear",
    "layernorm": "layer_norm",
    "batchnorm": "batch_norm",
    "rmsnorm": "rms_norm",
    "sdpa": "attention",
    "max_pool": "max_pool2d",
    "avg_pool": "avg_pool2d",
    "ln": "layer_norm",
    "div": "mul",  # moves the same bytes
    "pow": "mul",  # moves the same bytes
}
Shape = tuple[int, ...]
WEIGHT_SHAPES: Mapping[str, Callable[[Shape], tuple[Shape, ...]]] = {  # by the input's shape
    "layer_norm": lambda x: (x[-1:], x[-1:]),
    "rms_norm": lambda x: (x[-1:],),
    "batch_norm": lambda x: (x[1:2],) * 4,
}
SIZES_PER_AXIS = {"padding": 2, "stride": 1, "dilation": 1, "kernel": 1, "output_size": 1}


@dataclass(frozen=True)
class Case:
    """A measured time, with all that a prediction of it needs.

    Attributes:
        kernels: the kernels that ran.
        device: the device.
        seconds: the measured seconds.
        kind: the group of the case in tables.
        condition: what the time spans: `isolated`, one op between two events; `repeated`, a kernel
            many times in a row; `step`, one step of many in a row, behind a host; `call`, a step
            whose end the host awaits.
        family: a second group in tables; cases of one family stay on one side of a split.
        workload: the network of a step.
        stack: the software of a step, "" for the default.
        published_s_by_method: seconds that published methods predicted, by their names.
        place: the row of the case, for messages.
        calibrates: whether a calibration may fit the case; else it is only predicted.
        copies: copies of its weights that a `repeated` kernel goes round.
        timing: figures of how an `isolated` op was timed, where they differ from `conditions`.
        method_options: options of methods beside the stack, as texts: `tf32`, `channels_last`,
            `host`.

    Raises:
        InputError: if no kernel runs, or the device has no peak for the type of the case.
    """

    kernels: tuple[Kernel, ...]
    device: Device
    seconds: float
    kind: str
    condition: Condition
    family: str = ""
    workload: Workload | None = None
    stack: str = ""
    published_s_by_method: Mapping[str, float] = field(default_factory=dict)
    place: str = ""
    calibrates: bool = True
    copies: int = COPIES
    timing: Mapping[str, float] = field(default_factory=dict)
    method_options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `InputError` for a case without kernels, peaks or valid options."""
        if not self.kernels:
            raise InputError("no kernel runs: it is a view, or its gradient is passed on as it is")
        for dtype in self._dtypes():
            peak_flop_per_s(self.device, dtype)  # raises without a peak
            if self.method_options:
                settings = CALIBRATED.with_options(self.method_options).settings
                CALIBRATED.derate(self.device, dtype, settings)  # raises for an unknown host, ...

    def _dtypes(self) -> set[str]:
        """Return the types that must have a peak on the device."""
        if self.workload:
            return {self.workload.dtype}
        product_dtypes = {kernel.dtype for kernel in self.kernels if kernel.products}
        return product_dtypes or {self.kernels[0].dtype}

    @property
    def has_low_operands(self) -> bool:
        """Whether a product of it has operands of 8 or 4 bit."""
        return any(kernel.dtype in OPERAND_BYTES for kernel in self.kernels)

    @property
    def options(self) -> dict[str, str]:
        """The options of methods as texts by name, with the stack."""
        return stack_option(self.stack) | dict(self.method_options)

    @property
    def phase(self) -> str:
        """The phase of a step, `train` if it has a backward pass, else `infer`; "" of an op."""
        if self.is_single_op:
            return ""
        trains = any(kernel.pass_ != "forward" for kernel in self.kernels)
        return "train" if trains else "infer"

    @property
    def is_single_op(self) -> bool:
        """Whether it is an op by itself, not a step of a network."""
        return self.condition in ("isolated", "repeated")


def conditions() -> Mapping[str, Constant]:
    """Return the constants of how single ops are timed.

    The device sees the share `isolated.seen` of a call on the host before the first kernel; it
    rests `isolated.pause_s` before; the call of a kind takes `isolated.KIND` times as long.
    """
    return read_cached(DATA / "conditions.toml", constants_from_table)


def priors_of(device: Device, stack: str = catalog.DEFAULT_STACK) -> Mapping[str, Constant]:
    """Return the priors of a kind of device, of a stack, and of how a host times single ops."""
    timing_priors = {} if device.is_cpu else conditions()
    return {**on_usual_host(device, stack), **timing_priors}


Refusals = list[tuple[str, str]]  # rows that cannot be predicted: place and cause


def add_refusal(refusals: Refusals | None, place: str, error: InputError) -> None:
    """Add a row that cannot be predicted to the refusals.

    Raises:
        InputError: the error with the row's place, if there is no list.
    """
    message = str(error).removeprefix(f"{place}: ")
    if refusals is None:
        raise InputError(f"{place}: {message}") from None
    # A cause leaves out the sizes of the row, so that rows with the same fault count together.
    refusals.append((place, str(error.__cause__ or message)))


def resolve_kind(name: str) -> str:
    """Return the kind of the op table for a usual name such as `bmm` or `Conv2d`."""
    return KIND_ALIASES.get(name.lower(), name.lower())


def op_kernels(
    kind: str,
    shapes: tuple[tuple[int, ...], ...],
    attrs: Mapping[str, Attr],
    dtype: str,
    pass_: str = "forward",  # noqa: S107  # a pass of a step
    gradients: Collection[int] | None = None,
    settings: Settings = SETTINGS,
) -> tuple[Kernel, ...]:
    """Return the kernels of one op.

    Args:
        kind: a kind of the op table or an alias (`KIND_ALIASES`).
        shapes: the shapes of the inputs; weights in `WEIGHT_SHAPES` may be left out.
        attrs: its attributes. As in frameworks, a stride of 2 in an image is (2, 2), a padding of
            (1, 0) one row above and one below.
        dtype: the type of its inputs.
        pass_: `forward`, `backward`, or both.
        gradients: indices of the inputs whose gradients the backward pass computes, None for all.
        settings: settings of the lowering to kernels, with the stack whose kernels run.

    Raises:
        ShapeError: if the op cannot take these inputs.
    """
    gradient_indices = None if gradients is None else tuple(gradients)
    kind, attrs = resolve_alias(resolve_kind(kind), shapes, attrs)
    if any(size < 1 for shape in shapes for size in shape):
        raise ShapeError("each size is at least 1")
    # The weights of norms follow from the shape of the input.
    if len(shapes) == 1 and kind in WEIGHT_SHAPES:
        shapes = (*shapes, *WEIGHT_SHAPES[kind](shapes[0]))
    if kind_row(kind).window:  # convolutions and pools: one number may stand for all axes
        attrs = _expand_window_attrs(shapes, attrs)
    attr_items = tuple(sorted(attrs.items()))
    return _lower_single_op(kind, shapes, attr_items, dtype, pass_, gradient_indices, settings)


def _expand_window_attrs(shapes: Sequence[Shape], attrs: Mapping[str, Attr]) -> dict[str, Attr]:
    """Return the attributes of an op with a window, with a size for each axis of the image."""
    axis_count = len(shapes[0]) - 2 if shapes else 0
    return {
        name: _expand_attr(value, axis_count * SIZES_PER_AXIS.get(name, 0))
        for name, value in attrs.items()
    }


def _expand_attr(value: Attr, size_count: int) -> Attr:
    """Return an attribute of so many sizes: (1, 1, 0, 0) for (1, 0) and 4; texts stay."""
    has_no_axes = not size_count  # such as `groups` of a convolution, unlike its strides
    if has_no_axes or isinstance(value, str | float):
        return value
    if isinstance(value, int):
        return (value,) * size_count
    # (1, 0) for 4 sizes is (1, 1, 0, 0): each value stands for neighbouring sizes. Too many values
    # are passed on as they are.
    repeats = max(1, size_count // max(1, len(value)))
    return tuple(size for size in value for _ in range(repeats))


def describe_misfit(kind: str, input_count: int, attrs: Mapping[str, Attr]) -> str:
    """Return why an op cannot take these inputs and attributes, "" if it can.

    The text completes a sentence on the op: "lacks heads", "takes 2 inputs, not 3".
    """
    # `outputs` of an op takes its inputs, then its attributes, as parameters of Python; either may
    # be any number (`*inputs`, `**attrs`).
    row = kind_row(kind)
    parameters = signature(row.outputs).parameters.values()
    parameter_kinds = {parameter.kind for parameter in parameters}
    positional = [p for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    keyword_only = [p for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
    parameters_by_name = [*positional, *keyword_only]
    required = [
        parameter.name for parameter in parameters_by_name if parameter.default is Parameter.empty
    ]
    # The table's example of a call tells which required ones are attributes.
    inputs = [name for name in required if name not in row.example.attrs]
    missing_inputs = inputs[input_count:]
    missing_attrs = [name for name in required if name not in {*inputs, *attrs}]
    missing = missing_inputs + missing_attrs
    if missing or not input_count:
        return f"lacks {', '.join(missing) or 'an input'}"
    takes_any_count = Parameter.VAR_POSITIONAL in parameter_kinds
    if input_count > len(inputs) and not takes_any_count:
        return f"takes {format_count(len(inputs), 'input')}, not {input_count}"
    if Parameter.VAR_KEYWORD in parameter_kinds:
        return ""
    attr_names = {parameter.name for parameter in parameters_by_name} - {*inputs}
    unknown_attrs = [name for name in attrs if name not in attr_names]
    return f"takes no {shorten(unknown_attrs[0])}" if unknown_attrs else ""


@lru_cache(maxsize=4096)
def _lower_single_op(
    kind: str,
    shapes: tuple[tuple[int, ...], ...],
    attrs: Attrs,
    dtype: str,
    pass_: str,
    gradients: tuple[int, ...] | None,
    settings: Settings,
) -> tuple[Kernel, ...]:
    """Return the kernels of an op whose shapes and attributes are complete."""
    misfit = describe_misfit(kind, len(shapes), dict(attrs))
    if misfit:
        raise ShapeError(misfit)
    compute_dtype = precision(dtype).compute
    low_operand_type = precision(dtype).products  # of 8 or 4 bits; "" without one
    if low_operand_type and kind not in LOW_KINDS:
        kinds = ", ".join(LOW_KINDS)
        raise ShapeError(
            f"has no products of {low_operand_type} operands; those that have: {kinds}"
        )
    graph = _single_op_graph(kind, shapes, dict(attrs), compute_dtype)
    stack = catalog.stack(settings.stack)
    if pass_ == "forward":
        lowered = lower_products(lower(graph, dtype, settings), graph, low_operand_type, stack)
        return adapt_to_engine(_without_stack_limits(lowered.kernels), graph, stack)
    trained_inputs = tuple(
        name for i, name in enumerate(graph.inputs) if gradients is None or i in gradients
    )
    # The backward pass of a single op needs a loss; kernels of loss and update are left out below.
    training = training_graph(_add_loss(graph, trained_inputs, compute_dtype), "sgd")
    passes = ("backward",) if pass_ == "backward" else ("forward", "backward")
    lowered = lower_products(lower(training, dtype, settings), training, low_operand_type, stack)
    return _without_stack_limits(
        # "op" is the name that `_single_op_graph` gives.
        kernel
        for kernel in lowered.kernels
        if kernel.op == "op" and kernel.pass_ in passes
    )


def _single_op_graph(
    kind: str, shapes: Sequence[Shape], attrs: dict[str, Attr], dtype: str
) -> Graph:
    """Return a graph of one op named `op`, whose inputs are `x0`, `x1`, ..."""
    dtypes = [
        # The first input of an embedding holds indices.
        "int64" if index == 0 and kind == "embedding" else dtype
        for index in range(len(shapes))
    ]
    specs = tuple(map(TensorSpec, shapes, dtypes))
    names = tuple(f"x{index}" for index in range(len(specs)))
    output_specs = outputs_of(kind, specs, tuple(sorted(attrs.items())))
    op = Op("op", kind, names, output_names("op", len(output_specs)), attrs)
    tensors = dict(zip((*names, *op.outputs), (*specs, *output_specs), strict=True))
    return Graph("op", tensors, (op,), inputs=names, weights=(), outputs=op.outputs)


def _add_loss(graph: Graph, trained_inputs: tuple[str, ...], dtype: str) -> Graph:
    """Return a graph whose loss is the mean of its first output, and whose inputs are trained."""
    (op,) = graph.ops
    loss = Op("loss", "mean", op.outputs[:1], ("loss",))
    return Graph(
        "op",
        {**graph.tensors, "loss": TensorSpec((), dtype)},
        (op, loss),
        inputs=tuple(name for name in graph.inputs if name not in trained_inputs),
        weights=trained_inputs,  # since weights alone get a gradient
        outputs=("loss",),
    )


def _without_stack_limits(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Return kernels without the widths up to which a stack keeps recurrent weights."""
    return tuple(
        kernel._replace(figures=()) if _is_recurrent(kernel) else kernel for kernel in kernels
    )


def _is_recurrent(kernel: Kernel) -> bool:
    return kernel.kind in OPS and OPS[kernel.kind].work == "recurrent"


def step_kernels(
    workload: Workload, options: Mapping[str, str] = MappingProxyType({})
) -> tuple[Kernel, ...]:
    """Return the kernels of a workload's step.

    Args:
        workload: the network with its batch, type and phase.
        options: options of the method as texts: `stack`, `channels_last`, ...
    """
    settings = CALIBRATED.with_options(options).settings
    return lower(build_step(workload), workload.dtype, settings).kernels
