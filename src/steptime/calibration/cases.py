"""Cases: what was timed, as kernels or a workload, under which condition, and its seconds."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Parameter, signature
from types import MappingProxyType

from steptime.build import build_step
from steptime.core.dtypes import precision
from steptime.core.errors import InputError, shorten
from steptime.core.graph import Attr, Attrs, Graph, Op, TensorSpec
from steptime.core.toml_files import DATA
from steptime.core.units import counted
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.hardware.constants import Constant, constants_from_table
from steptime.hardware.device import Device
from steptime.hardware.file_cache import read_cached
from steptime.network.ops import kind_row, output_names, outputs_of, renamed
from steptime.network.ops.table import ShapeError
from steptime.network.ops.training import training_graph
from steptime.prediction import cost_model
from steptime.prediction.calibrated.hosts import on_usual_host
from steptime.prediction.kernel import Kernel, Settings
from steptime.prediction.lower import lower
from steptime.prediction.method import stack_option
from steptime.prediction.price import peak_flop_per_s
from steptime.records.readers.mapping_keys import COPIES, Condition

SETTINGS = Settings()
PRICED = cost_model("calibrated")
CALLED = {  # what frameworks and people call kinds of the op table
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
    "div": "mul",  # moves the same bytes, as does the next
    "pow": "mul",
}
Shape = tuple[int, ...]
WEIGHTS: Mapping[str, Callable[[Shape], tuple[Shape, ...]]] = {  # that follow from an input alone
    "layer_norm": lambda x: (x[-1:], x[-1:]),
    "rms_norm": lambda x: (x[-1:],),
    "batch_norm": lambda x: (x[1:2],) * 4,
}
SIDES = {"padding": 2, **dict.fromkeys(("stride", "dilation", "kernel", "output_size"), 1)}


@dataclass(frozen=True)
class Case:
    """A time that was measured.

    `condition` says what the time holds: `isolated`, one op between two events; `repeated`, a
    kernel many times in a row; `step`, one step of many in a row, behind a host; `call`, a step
    whose end the host awaits. The network of a step is `workload`, on `stack`. `kind` and `family`
    group cases in tables; `family` is also what must not stand on both sides of a split. `rivals`
    are the seconds that others predicted. `place` is where the case stands. Cases that do not
    calibrate are only predicted. What is `repeated` goes round `copies` of its weights; `timing` is
    how an `isolated` op was timed, where that is not as `conditions` have it. `asked` are
    options of methods beside the stack, as texts: `tf32`, `channels_last`, `host`. Raises
    `InputError` where nothing runs, and where no peak of the device is known for its type.
    """

    kernels: tuple[Kernel, ...]
    device: Device
    seconds: float
    kind: str
    condition: Condition
    family: str = ""
    workload: Workload | None = None
    stack: str = ""
    rivals: Mapping[str, float] = field(default_factory=dict)
    place: str = ""
    calibrates: bool = True
    copies: int = COPIES
    timing: Mapping[str, float] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.kernels:
            raise InputError("no kernel runs: it is a view, or its gradient is passed on as it is")
        if self.workload:
            types = {self.workload.dtype}
        else:
            types = {one.dtype for one in self.kernels if one.products} or {self.kernels[0].dtype}
        for dtype in types:
            peak_flop_per_s(self.device, dtype)
            if self.asked:
                settings = PRICED.under(self.asked).settings
                PRICED.sees(self.device, dtype, settings)  # raises where it has no such host, ...

    @property
    def options(self) -> dict[str, str]:
        """What is asked of methods, as texts by option: the stack, too."""
        return stack_option(self.stack) | dict(self.asked)

    @property
    def phase(self) -> str:
        """The phase of a step, by the passes of its kernels; "" of an op by itself."""
        trains = any(one.pass_ != "forward" for one in self.kernels)
        return "" if self.alone else "train" if trains else "infer"

    @property
    def alone(self) -> bool:
        """Whether it is an op by itself, no step of a network."""
        return self.condition in ("isolated", "repeated")


def conditions() -> Mapping[str, Constant]:
    """Return how ops by themselves are timed, by condition.

    Of a call on the host the device sees the share `isolated.seen` before the first kernel; it
    rests `isolated.pause_s` before; the call of a kind takes `isolated.KIND` times as long.
    """
    return read_cached(DATA / "conditions.toml", constants_from_table)


def priors_of(device: Device, stack: str = catalog.DEFAULT_STACK) -> Mapping[str, Constant]:
    """Return the constants of a kind of device, of a stack, and of how ops are timed by a host."""
    of_timing = {} if device.is_cpu else conditions()
    return {**on_usual_host(device, stack), **of_timing}


Unasked = list[tuple[str, str]]  # of rows that no prediction can be asked for: place, and cause


def leave_out(unasked: Unasked | None, place: str, error: InputError) -> None:
    """Note the row at a place with the cause; without a list of them raise `InputError`."""
    message = str(error).removeprefix(f"{place}: ")
    if unasked is None:
        raise InputError(f"{place}: {message}") from None
    unasked.append((place, str(error.__cause__ or message)))


def called(kind: str) -> str:
    """Return the kind of the op table that people call so: `bmm`, `Conv2d`."""
    return CALLED.get(kind.lower(), kind.lower())


def op_kernels(
    kind: str,
    shapes: tuple[tuple[int, ...], ...],
    attrs: Mapping[str, Attr],
    dtype: str,
    pass_: str = "forward",  # noqa: S107  # a pass of a step
    gradients: Collection[int] | None = None,
    settings: Settings = SETTINGS,
) -> tuple[Kernel, ...]:
    """Return the kernels of one op on inputs of these shapes; raises `ShapeError` for misfits.

    `kind` may be what people call it (`CALLED`); weights in `WEIGHTS` may be left out. Of an image
    a stride of 2 is (2, 2), a padding of (1, 0) one row above and one below, as in frameworks.
    Backward are those of the gradients of its inputs, of all or of those at the places `gradients`.
    An op by itself runs as its library does best, whatever a stack would ask of it.
    """
    wanted = None if gradients is None else tuple(gradients)
    kind, attrs = renamed(called(kind), shapes, attrs)
    if any(size < 1 for shape in shapes for size in shape):
        raise ShapeError("each size is at least 1")
    if len(shapes) == 1 and kind in WEIGHTS:
        shapes = (*shapes, *WEIGHTS[kind](shapes[0]))
    said = attrs
    if kind_row(kind).window:
        axes = max(map(len, shapes[:1]), default=2) - 2
        said = {name: _of_sides(value, axes * SIDES.get(name, 0)) for name, value in attrs.items()}
    return _op_kernels(kind, shapes, tuple(sorted(said.items())), dtype, pass_, wanted, settings)


def _of_sides(said: Attr, sides: int) -> Attr:
    """Return an attribute for each side of an image, or each end: (1, 1, 0, 0) of (1, 0)."""
    if not sides or isinstance(said, str | float):
        return said
    if isinstance(said, int):
        return (said,) * sides
    return tuple(size for size in said for _ in range(sides // len(said or (0,)) or 1))


def misfit(kind: str, count: int, attrs: Mapping[str, Attr]) -> str:
    """Return what an op of so many inputs lacks, or what its kind does not take, "" if it fits."""
    row = kind_row(kind)
    told = signature(row.outputs).parameters.values()
    of = {one.kind: [two for two in told if two.kind is one.kind] for one in told}
    named = of.get(Parameter.POSITIONAL_OR_KEYWORD, []), of.get(Parameter.KEYWORD_ONLY, [])
    wanted = [one.name for ones in named for one in ones if one.default is one.empty]
    inputs = [name for name in wanted if name not in row.example.attrs]
    lacks = inputs[count:] + [name for name in wanted if name not in {*inputs, *attrs}]
    if lacks or not count:
        return f"lacks {', '.join(lacks) or 'an input'}"
    if count > len(inputs) and Parameter.VAR_POSITIONAL not in of:
        return f"takes {counted(len(inputs), 'input')}, not {count}"
    known = {one.name for ones in named for one in ones} - {*inputs}
    strange = [] if Parameter.VAR_KEYWORD in of else [name for name in attrs if name not in known]
    return f"takes no {shorten(strange[0])}" if strange else ""


@lru_cache(maxsize=4096)
def _op_kernels(
    kind: str,
    shapes: tuple[tuple[int, ...], ...],
    attrs: Attrs,
    dtype: str,
    pass_: str,
    gradients: tuple[int, ...] | None,
    settings: Settings,
) -> tuple[Kernel, ...]:
    if wrong := misfit(kind, len(shapes), dict(attrs)):
        raise ShapeError(wrong)
    stored = precision(dtype).compute
    types = ["int64" if i == 0 and kind == "embedding" else stored for i in range(len(shapes))]
    specs = tuple(map(TensorSpec, shapes, types))
    names = tuple(f"x{i}" for i in range(len(specs)))
    made = outputs_of(kind, specs, attrs)
    op = Op("op", kind, names, output_names("op", len(made)), dict(attrs))
    tensors = dict(zip((*names, *op.outputs), (*specs, *made), strict=True))
    graph = Graph("op", tensors, (op,), names, (), op.outputs)
    if pass_ == "forward":
        return _at_best(lower(graph, dtype, settings).kernels)
    trained = tuple(name for i, name in enumerate(names) if gradients is None or i in gradients)
    loss = Op("loss", "mean", op.outputs[:1], ("loss",))
    graph = Graph(
        "op",
        {**tensors, "loss": TensorSpec((), stored)},
        (op, loss),
        tuple(name for name in names if name not in trained),
        trained,
        ("loss",),
    )
    passes = ("backward",) if pass_ == "backward" else ("forward", "backward")
    every = lower(training_graph(graph, "sgd"), dtype, settings).kernels
    return _at_best(one for one in every if one.op == "op" and one.pass_ in passes)


def _at_best(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Return kernels that no stack limits; the dilation of a convolution stays."""
    return tuple(one if one.window else one._replace(figures=()) for one in kernels)


def step_kernels(
    workload: Workload, options: Mapping[str, str] = MappingProxyType({})
) -> tuple[Kernel, ...]:
    """Return the kernels of a workload's step under options of a method: a stack, a layout, ..."""
    settings = PRICED.under(options).settings
    return lower(build_step(workload), workload.dtype, settings).kernels
