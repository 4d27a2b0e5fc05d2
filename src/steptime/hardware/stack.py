"""How a software stack runs op kinds: what it fuses, reads again and holds, as a file says it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_type_hints

from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.typed import (
    Above0,
    NonNegativeInt,
    NonNegativeInts,
    Text,
    Texts,
    struct,
    typed_values,
)
from steptime.hardware.constants import Constant, constants_from_table, is_retired, known
from steptime.hardware.constants import uses as uses_of_stacks


class Execution(NamedTuple):
    """How a stack runs a kind, where that is not one kernel that moves every tensor once.

    `reads` says how often each input is read, in order (1 beyond); those at the places `each_step`
    are read at every step of the op that waits for another. `passes` are the bytes moved in sizes
    of the first input, in place of all of that (0: not said). `kernels` are launched; `temporaries`
    tensors of the first input's size are made and dropped inside (None: what the op table says).
    Ops that run `together` are launched once for all, and hold their temporaries at once. `flop`
    is executed FLOP per counted one, multiplied by `causal_flop` under a causal mask; one that
    `skips_window` executes of attention in a window the scores that lie in it. Attention in
    several kernels moves the matrix of its `scores` that often between its products (0: it is one
    kernel), by `kernels` beside these. The host calls `calls` ops of the framework for an op, and
    makes `views`; these launch further kernels. An op `keeps` so many sizes of its first input for
    its gradient beside what the op table says. One in `chunks` makes one of them at a time. In the
    backward pass the results of one `in_place` take the place of what it reads. Weights of
    a recurrent layer may stay in registers up to a state as wide as `kept` (None: any), in float16
    as `kept_half` where blocks of 128 fill it. All of this holds for ops whose attribute `when` is
    true ("": for all).
    """

    reads: NonNegativeInts = ()
    each_step: NonNegativeInts = ()
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
    kept: NonNegativeInt | None = None
    kept_half: NonNegativeInt = 0
    when: Text = ""
    source: Text = ""


@dataclass(frozen=True)
class Stack:
    """A software stack: a framework, and how it is told to run.

    A kind in `joins` runs inside the kernel that makes an input of it last, if that begins with one
    of the kinds named, belongs to the same part of the step and has no other reader. A pointwise
    kind runs inside the kernel that makes its inputs last, if `fuses` names that kernel's unit:
    `vector`, or `matrix` for one with matrix products. `kinds` holds what runs otherwise than as
    one kernel that moves every tensor once. `host` are seconds of the host, by names such as
    `host.forward_op_s` (`prediction/host.py`), on one whose `host.factor` is 1; {} where nobody
    measured them. `training` are constants of a training over many devices (`planning`),
    `serving` of inference (`serving`), {} for those of the default stack. `memory` is what
    it holds on a GPU beside tensors (`prediction/memory.py`), {} where that is not known;
    `interval` is how far its host and its steps are off (`prediction/calibrated/interval.py`), {}
    for those of other stacks. Images are laid out with their `channels_last`, or before height and
    width; convolutions in float32 run as `conv_tf32` where a device has it, other products as
    `matmul_tf32`. One that `pads` gives products of 16 bit rows of whole 16 bytes. `backend`
    measures it, told to `compile` or not; "" where nothing here does. A
    step in mixed precision is autocast, or computes with weights in 16 bit beside `master_weights`
    of the optimizer. One that never `trains` runs inference alone. It is `like` another one in all
    that its file does not say. `since` is the month ("2024-09") of which it is the state, "" for
    one without a date; `seen` says what its constants of training were fitted on (`models`,
    `devices`, `most_devices`). `on_cpu` says by kind what a prediction for a CPU leaves out, where
    that is known. `tunes` says how a fine-tuning runs (`TUNES`).
    """

    name: Text
    source: Text
    fuses: tuple[str, ...] = ()
    joins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: Mapping[str, Execution] = field(default_factory=dict)
    host: Mapping[str, Constant] = field(default_factory=dict)
    training: Mapping[str, Constant] = field(default_factory=dict)
    serving: Mapping[str, Constant] = field(default_factory=dict)
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
    like: Text = ""
    seen: Mapping[str, Any] = field(default_factory=dict)
    on_cpu: Mapping[str, str] = field(default_factory=dict)
    tunes: tuple[str, ...] = ()

    @property
    def uses(self) -> dict[str, Constant]:
        """The constants of training and of serving, and how far its steps are off."""
        return {**self.training, **self.serving, **self.interval}

    @property
    def tuned_how(self) -> tuple[str, ...]:
        """How it runs a fine-tuning: what it `tunes`, and whether it `repeats` whole layers."""
        early = self.training.get("training.stops_early")
        return self.tunes if early is None or early.value else (*self.tunes, "repeats")

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
_TRAINS = ("host.update", "host.backward")  # what a stack for inference alone need not say
_ENTRIES = ("joins", "kinds", "on_cpu")  # tables whose entries are inherited one by one
_OWN = ("name", "source", "like")  # which each stack has for itself

_KINDS = get_type_hints(Stack, include_extras=True) | dict.fromkeys(
    ("kinds", *uses_of_stacks()), Mapping[str, Any]
)
_KINDS |= {"fuses": tuple[Literal["vector", "matrix"], ...], "unlike": Texts}
_KINDS |= {"tunes": tuple[Literal[*TUNES], ...]}  # type: ignore[valid-type]  # names of a table
_STACK = struct("Stack", _KINDS | {"joins": Mapping[str, Texts]}, "name source")
_EXECUTION = struct("Execution", get_type_hints(Execution, include_extras=True), "source")


def stack_from_table(table: Mapping[str, Any], where: str, base: Stack | None = None) -> Stack:
    """Return the `Stack` that a TOML table says; `where` is named in errors.

    `base` is the stack that it is `like`: what the table does not say is as there, entry by entry,
    but for what it is `unlike`. Raises `InputError` for an unknown or missing key and for a value
    of another type.
    """
    said = typed_values(table, _STACK, where)
    kinds: dict[str, Execution] = {}
    for kind, row in said.get("kinds", {}).items():
        place = f"{where}: kinds.{kind}"
        if not isinstance(row, Mapping):
            raise InputError(f"{place} must be a table, not {shorten(row)}")
        kinds[kind] = Execution(**typed_values(row, _EXECUTION, place))
    unlike = [name for name in said.pop("unlike", ()) if not is_retired(name)]
    said |= {"kinds": kinds}
    for use in uses_of_stacks():
        own = {k: row for k, row in said.get(use, {}).items() if not is_retired(f"{use}.{k}")}
        said[use] = constants_from_table({use: own}, where)
        for name in said[use]:
            if name.partition("_")[0] not in _HOST_PASSES:
                check_choice(use, name, known(use), where)
    return _complete(Stack(**_inherited(said, base, unlike, where)), where)


def _inherited(
    said: Mapping[str, Any], base: Stack | None, unlike: Sequence[str], where: str
) -> dict[str, Any]:
    """Return the fields of a stack: those `said`, else those of its base."""
    if base is None:
        if unlike:
            raise InputError(f"{where}: 'unlike' needs 'like', the name of a stack")
        return dict(said)
    found = {one.name: getattr(base, one.name) for one in fields(base) if one.name not in _OWN}
    for name in unlike:
        table, _, entry = name.partition(".")
        check_choice("unlike", table, found, where)
        if entry:
            key = name if table in uses_of_stacks() else entry
            check_choice(f"unlike {table}", key, found[table], where)
            found[table] = {k: one for k, one in found[table].items() if k != key}
        else:
            del found[table]
    merged = {
        table: {**found.get(table, {}), **said[table]}
        for table in (*_ENTRIES, *uses_of_stacks())
        if table in said
    }
    return {**found, **said, **merged}


def _complete(stack: Stack, where: str) -> Stack:
    """Return a stack whose host, if it is said, lacks nothing."""
    needed = [one for one in known("host") if stack.trains or not one.startswith(_TRAINS)]
    missing = [name for name in needed if stack.host and name not in stack.host]
    if missing:
        raise InputError(f"{where}: [host] lacks {', '.join(missing)}")
    return stack
