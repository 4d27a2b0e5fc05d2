"""Software stacks: how each runs the kinds of ops, and its constants, read from TOML files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_type_hints

from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.json_types import JsonObject
from steptime.core.signatures.typed import (
    Above0,
    NonNegativeInt,
    NonNegativeInts,
    Text,
    Texts,
    struct,
    typed_values,
)
from steptime.hardware.constants import Constant, constants_from_table, kinds_of_use
from steptime.hardware.constants import stack_uses as uses_of_stacks


class Execution(NamedTuple):
    """How a stack runs a kind of op, where that is not one kernel that moves every tensor once.

    Attributes:
        reads: how often each input is read, in order; further inputs once.
        step_inputs: places of inputs that are read at every step of a recurrent layer.
        passes: bytes moved in sizes of the first input, in place of the reads; 0 where not stated.
        kernels: kernels that are launched.
        calls: ops of the framework that the host calls; each launches further kernels.
        views: views that the host makes.
        temporaries: tensors of the first input's size that are made and dropped inside; None as the
            op table has it.
        together: whether such ops are launched once for all, and hold their temporaries at once.
        flop: executed FLOP for each counted one.
        causal_flop: a factor of `flop` under a causal mask.
        skips_window: whether attention in a window executes only the scores that lie in it.
        scores: how often attention in several kernels moves the matrix of its scores between its
            products, by `kernels` beside these; 0 of one kernel.
        keeps: sizes of the first input that are kept for the gradient beside those of the op table.
        chunks: parts that are made one at a time.
        in_place: whether results of the backward pass take the place of its inputs.
        register_width: up to which width of its state a recurrent layer keeps its weights in
            registers; None: any.
        register_width_half: the same in float16, where blocks of 128 fill the state.
        condition: the attribute of ops to which all of this applies; "": to all.
        source: where this stands.
    """

    reads: NonNegativeInts = ()
    step_inputs: NonNegativeInts = ()
    passes: Above0 = 0.0
    kernels: NonNegativeInt = 1
    calls: NonNegativeInt = 1
    views: NonNegativeInt = 0
    temporaries: NonNegativeInt | None = None
    together: bool = False
    flop: Above0 = 1.0
    causal_flop: Above0 = 1.0
    skips_window: bool = False
    scores: Above0 = 0.0
    keeps: Above0 = 0.0
    chunks: NonNegativeInt = 1
    in_place: bool = False
    register_width: NonNegativeInt | None = None
    register_width_half: NonNegativeInt = 0
    condition: Text = ""
    source: Text = ""


@dataclass(frozen=True)
class Stack:
    """A software stack: a framework with its settings.

    Attributes:
        name: its name.
        source: where its facts stand.
        fuses: units (`vector`, `matrix`) whose kernels run a pointwise op that reads their results.
        joins: for a kind of op the kinds of kernels inside which it runs, where the kernel makes an
            input of it last, belongs to the same part of the step and has no other reader.
        kinds: kinds of ops that run otherwise than as one kernel that moves every tensor once.
        host: seconds of the host, by names such as `host.forward_op_s` (`prediction/host.py`), on a
            host whose `host.factor` is 1; {} where nobody measured them.
        training: constants of a training over many devices (`planning`).
        serving: constants of inference (`serving`).
        kernels: constants of kernels that it brings itself (`prediction/calibrated`).
        memory: memory of a GPU beside tensors (`prediction/memory.py`); {} where it is not known.
        interval: how far its host and its steps are off (`prediction/calibrated/interval.py`).
        channels_last: whether images lie with their channels last.
        conv_tf32: whether convolutions in float32 run as TF32 where a device has it.
        matmul_tf32: whether other products in float32 run as TF32.
        pads: whether products of 16 bit have their rows padded to whole 16 bytes.
        backend: the backend that measures it; "" where none here does.
        compile: whether the backend compiles.
        master_weights: whether mixed precision computes with weights in 16 bit beside the
            optimizer's own, and not by autocast.
        trains: whether it trains; else it only runs inference.
        since: the month ("2024-09") of which it is the state; "" without a date.
        base: the stack whose values its file leaves out, the key `like` of the file.
        fitted_on: the rows that its constants of training were fitted on (`models`, `devices`,
            `most_devices`).
        on_cpu: by kind of op, what a prediction for a CPU leaves out.
        tunes: how a fine-tuning runs (`TUNES`).
    """

    name: Text
    source: Text
    fuses: tuple[str, ...] = ()
    joins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: Mapping[str, Execution] = field(default_factory=dict)
    host: Mapping[str, Constant] = field(default_factory=dict)
    training: Mapping[str, Constant] = field(default_factory=dict)
    serving: Mapping[str, Constant] = field(default_factory=dict)
    kernels: Mapping[str, Constant] = field(default_factory=dict)
    memory: Mapping[str, Constant] = field(default_factory=dict)
    interval: Mapping[str, Constant] = field(default_factory=dict)
    channels_last: bool = False
    conv_tf32: bool = False
    matmul_tf32: bool = False
    pads: bool = False
    backend: Text = ""
    compile: bool = False
    master_weights: bool = False
    trains: bool = True
    since: Text = ""
    base: Text = ""
    fitted_on: Mapping[str, Any] = field(default_factory=dict)
    on_cpu: Mapping[str, str] = field(default_factory=dict)
    tunes: tuple[str, ...] = ()

    @property
    def uses(self) -> dict[str, Constant]:
        """The constants of training, of serving and of kernels, and how far its steps are off."""
        return {**self.training, **self.serving, **self.kernels, **self.interval}

    @property
    def tuning_rules(self) -> tuple[str, ...]:
        """How it runs a fine-tuning: its `tunes`, and `repeats` where whole layers run again."""
        stops_early = self.training.get("training.stops_early")
        repeats_layers = stops_early is not None and not stops_early.value
        return (*self.tunes, "repeats") if repeats_layers else self.tunes

    @property
    def label(self) -> str:
        """Its name in tables, as what it measures has it: `torch`, `torch-compile`, `jax`."""
        return label_of(self.backend, self.compile) if self.backend else self.name


def label_of(backend: str, compiled: object) -> str:
    """Return the name in tables of what a backend runs, compiled or not."""
    return f"{backend}-compile" if compiled else backend


UNITS = ("vector", "matrix")
TUNES = {
    "head": "the weight of the head is kept in few bits, too",
    "experts": "the weights of experts are kept in few bits, too",
    "halves": "weights of few bits become float16, and then what products read",
    "keeps": "a product of such a weight keeps its input, whether it is needed or not",
    "former": "what these keep of the microbatch before, and its logits, live on in the next one",
    "sources": "LoRA of a part of a product's columns keeps what it adds to them",
}
_HOST_PASSES = ("host.forward", "host.backward", "host.update")  # of one kind: `..._conv2d_s`
# names of constants that a stack for inference alone need not say
_TRAINING_PREFIXES = ("host.update", "host.backward")
_INHERITED_BY_ENTRY = ("joins", "kinds", "on_cpu")  # tables whose entries are inherited one by one
_NOT_INHERITED = ("name", "source", "base")

_KEY_TYPES = get_type_hints(Stack, include_extras=True) | dict.fromkeys(
    ("kinds", *uses_of_stacks()), Mapping[str, Any]
)
_KEY_TYPES |= {"fuses": tuple[Literal["vector", "matrix"], ...], "like": Text, "unlike": Texts}
del _KEY_TYPES["base"]  # a file calls it `like`
_KEY_TYPES |= {"tunes": tuple[Literal[*TUNES], ...]}  # type: ignore[valid-type]  # names of a table
_STACK_TABLE = struct("Stack", _KEY_TYPES | {"joins": Mapping[str, Texts]}, ["name", "source"])
_EXECUTION_TABLE = struct("Execution", get_type_hints(Execution, include_extras=True), ["source"])


def stack_from_table(table: Mapping[str, Any], source: str, base: Stack | None = None) -> Stack:
    """Return the stack of a TOML table.

    Args:
        table: the table.
        source: the name of its file in errors.
        base: the stack that it is `like`, which has the values that the table leaves out, entry by
            entry, but for those named in `unlike`.

    Raises:
        InputError: for an unknown or missing key, and for a value of another type.
    """
    values = typed_values(table, _STACK_TABLE, source)
    values["kinds"] = _read_executions(values.get("kinds", {}), source)
    uninherited_paths = values.pop("unlike", ())
    values["base"] = values.pop("like", "")
    # A use (`host`, `training`, `serving`, ...) is a table of constants.
    for use in uses_of_stacks():
        values[use] = constants_from_table({use: values.get(use, {})}, source)
        for name in values[use]:
            # Constants of single kinds of ops (`forward_conv2d_s`) are free, all others are listed.
            is_of_op_kind = name.partition("_")[0] in _HOST_PASSES
            if not is_of_op_kind:
                check_choice(use, name, kinds_of_use(use), source)
    stack = Stack(**_inherit_from_base(values, base, uninherited_paths, source))
    _check_host_is_complete(stack, source)
    return stack


def _read_executions(rows: Mapping[str, object], source: str) -> dict[str, Execution]:
    """Return the executions of kinds of ops, each of which is a table of a file."""
    execution_by_kind: dict[str, Execution] = {}
    for kind, row in rows.items():
        place = f"{source}: kinds.{kind}"
        if not isinstance(row, Mapping):
            raise InputError(f"{place} must be a table, not {shorten(row)}")
        execution_by_kind[kind] = Execution(**typed_values(row, _EXECUTION_TABLE, place))
    return execution_by_kind


def _inherit_from_base(
    values: JsonObject, base: Stack | None, uninherited_paths: Sequence[str], source: str
) -> JsonObject:
    """Return the fields of a stack: its own values, and else those of its base."""
    if base is None:
        if uninherited_paths:
            raise InputError(f"{source}: 'unlike' needs 'like', the name of a stack")
        return values
    inherited = {
        field.name: getattr(base, field.name)
        for field in fields(base)
        if field.name not in _NOT_INHERITED
    }
    for path in uninherited_paths:  # a field, or an entry of one: `fuses`, `kinds.attention`
        field_name, _, entry_name = path.partition(".")
        check_choice("unlike", field_name, inherited, source)
        if not entry_name:
            del inherited[field_name]
            continue
        has_full_names = field_name in uses_of_stacks()  # keys of constants begin with their use
        dropped_key = path if has_full_names else entry_name
        entries = inherited[field_name]
        check_choice(f"unlike {field_name}", dropped_key, entries, source)
        inherited[field_name] = {key: row for key, row in entries.items() if key != dropped_key}
    # These tables are inherited entry by entry, all other fields as a whole.
    merged_tables = {
        field_name: {**inherited.get(field_name, {}), **values[field_name]}
        for field_name in (*_INHERITED_BY_ENTRY, *uses_of_stacks())
        if field_name in values
    }
    return {**inherited, **values, **merged_tables}


def _check_host_is_complete(stack: Stack, source: str) -> None:
    """Raise `InputError` for a stack whose host has some constants and lacks others."""
    if not stack.host:  # nobody measured it
        return
    # A stack that runs inference alone has no backward pass and no update.
    needed_names = [
        name
        for name in kinds_of_use("host")
        if stack.trains or not name.startswith(_TRAINING_PREFIXES)
    ]
    missing = [name for name in needed_names if name not in stack.host]
    if missing:
        raise InputError(f"{source}: [host] lacks {', '.join(missing)}")
