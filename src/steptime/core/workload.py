"""The workload: a network with its hyperparameters, batch, dtype, phase, optimizer and plan."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal, get_args

from steptime.core.adapters import ADAPTERS, FEW_BITS
from steptime.core.errors import InputError, check_choice, unknown
from steptime.core.json_types import JsonObject
from steptime.core.toml_files import read_packaged_toml

Value = int | float | str | bool

Phase = Literal["train", "infer"]
_OPTIMIZER_ROWS = read_packaged_toml("optimizers.toml")
Optimizer = Literal[*_OPTIMIZER_ROWS]  # type: ignore[valid-type]  # names of a table
Staging = Literal["shared", "local"]  # files are read where they are, or copied here first
Strategy = Literal["allreduce", "independent", "sharded", "parameter-server"]  # docs/devices.md
PHASES: tuple[str, ...] = get_args(Phase)
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)
STAGINGS: tuple[str, ...] = get_args(Staging)
STRATEGIES: tuple[str, ...] = get_args(Strategy)
NO_OPTIMIZER = "none"
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble", "dualpipe")
RECOMPUTES = ("none", "selective", "full")
OFFLOADS = ("none", "optimizer", "activations", "both")
CONTEXT_METHODS = ("gather", "ring", "all-to-all")
_BASIC_FIELDS = ("data", "tensor", "pipeline")  # in the JSON of every plan, even at defaults


@dataclass(frozen=True)
class Plan:
    """How a step is spread over devices.

    `data` replicas, `tensor`-parallel width, `context` parts of a sequence and `pipeline` stages
    multiply to the devices; `expert` groups lie inside `data * context`. `sequence` splits what
    lies between tensor-parallel products too. A step has `microbatches`, in order of `schedule`;
    interleaved, a device has `virtual` stages of the pipeline.
    `zero` shards optimizer states (1), gradients too (2), weights too (3) over the replicas, or
    over groups of `shard` of them, which have copies of each other (0: all replicas).
    `recompute` is how much of the forward pass the backward pass repeats, in the first
    `recompute_layers` layers of each stage (0: in all). `stages` are the layers of each stage,
    in the order of the network; () has them shared out evenly. Context ranks see each other's keys
    and values by a `context_method`. `offload` is what lies in the host's memory. Ranks count from
    the innermost: tensor, context, data, pipeline. Each expert is split over `expert_tensor` ranks
    (0: over `tensor`, 1: not, and tensor ranks are among those that share experts out); the busiest
    of these ranks has `imbalance` times the mean of tokens. With `expert_overlap` tokens are
    exchanged beside what is computed for another microbatch. Raises `InputError` for a value that
    there is not.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    sequence: bool = False
    context: int = 1
    microbatches: int = 1
    schedule: str = "1f1b"
    zero: int = 0
    recompute: str = "none"
    offload: str = "none"
    virtual: int = 1
    shard: int = 0
    recompute_layers: int = 0
    stages: tuple[int, ...] = ()
    context_method: str = "gather"
    expert_tensor: int = 0
    imbalance: float = 1.0
    expert_overlap: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))  # a list in files
        lowest = min(self.shard, self.recompute_layers, *self.stages)
        if lowest < 0:
            raise InputError(
                f"plan: shard, recompute_layers and stages are at least 0, not {lowest}"
            )
        value_by_field = vars(self)
        for name in _POSITIVE_FIELDS:
            if value_by_field[name] < 1:
                raise InputError(f"plan: {name} must be at least 1, not {value_by_field[name]}")
        for name, valid_values in _VALID_VALUES.items():
            if value_by_field[name] not in valid_values:
                raise unknown(name, value_by_field[name], map(str, valid_values), "plan")

    @property
    def device_count(self) -> int:
        """The number of devices of a step."""
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def replicas(self) -> int:
        """The number of data and context ranks, which hold the same weights or shards of them."""
        return self.data * self.context

    @property
    def goes_both_ways(self) -> bool:
        """Whether half of the microbatches go through the pipeline from its other end."""
        return self.schedule == "dualpipe"

    @property
    def overlaps(self) -> bool:
        """Whether tokens are exchanged beside what is computed for another microbatch."""
        return self.expert_overlap or self.goes_both_ways

    @property
    def routes_per_rank(self) -> bool:
        """Whether each tensor rank has complete experts of its own and routes its own tokens."""
        return self.tensor > 1 and self.expert_tensor == 1

    @property
    def routers(self) -> int:
        """The devices of a stage among which experts may be shared out."""
        return self.replicas * (self.tensor if self.routes_per_rank else 1)

    @property
    def expert_shards(self) -> int:
        """The devices that share states of the same experts."""
        return max(1, self.shards * self.routers // self.replicas // self.expert)

    @property
    def shards(self) -> int:
        """The devices that share states, gradients or weights: 1 where nothing is shared."""
        return (self.shard or self.replicas) if self.zero else 1


_POSITIVE_FIELDS = (*_BASIC_FIELDS, "expert", "context", "microbatches", "virtual", "imbalance")
_VALID_VALUES: Mapping[str, tuple[object, ...]] = {
    "schedule": SCHEDULES,
    "zero": (0, 1, 2, 3),
    "recompute": RECOMPUTES,
    "offload": OFFLOADS,
    "context_method": CONTEXT_METHODS,
    "expert_tensor": (0, 1),
}


_DEFAULT_PLAN = Plan()


def changed_settings(settings: object, default: object, always: Collection[str] = ()) -> JsonObject:
    """Return the fields of an object that differ from `default`, and those in `always`."""
    defaults = vars(default)
    return {
        key: value
        for key, value in vars(settings).items()
        if key in always or value != defaults[key]
    }


def plan_to_json(plan: Plan) -> Mapping[str, Any]:
    """Return the plan as JSON values: the basic fields, and those that are not the default."""
    return changed_settings(plan, _DEFAULT_PLAN, _BASIC_FIELDS)


DEQUANTISED_FORMATS = ("float8", "float4", "mxfp4")  # formats that libraries dequantise to train
STORED_ALL, STORED_MLP, STORED_EXPERTS = "all", "mlp", "experts"  # weights that a file quantises


class StateMode(StrEnum):
    """A way to save memory of an optimizer's states."""

    PAGED = "paged"  # states without room lie in the host's memory
    EIGHT_BIT = "8-bit"
    OFFLOADED = "offloaded"  # all states lie in the host's memory, and the host updates
    EARLY = "early"  # each weight is updated as soon as its gradient is made


def _state_modes_by_optimizer() -> dict[str, tuple[StateMode, ...]]:
    """Return the names of optimizers that keep states in a mode: `paged_adamw8bit`, `adam8bit`."""
    modes: dict[str, tuple[StateMode, ...]] = {}
    for name, row in _OPTIMIZER_ROWS.items():
        if row.get("quantised"):
            modes[f"{name}8bit"] = (StateMode.EIGHT_BIT,)
            modes[f"paged_{name}"] = (StateMode.PAGED,)
            modes[f"paged_{name}8bit"] = (StateMode.PAGED, StateMode.EIGHT_BIT)
    return modes


STATES = _state_modes_by_optimizer()
BASE_OPTIMIZERS = {word: word.removeprefix("paged_").removesuffix("8bit") for word in STATES}
LORA = "lora"  # the adapter of a rank where no other one is said


@dataclass(frozen=True)
class Tuning:
    """What of a network is trained, and how the rest is kept; by default all of it is trained.

    An `adapter` (a row of `data/adapters.toml`) stands beside the products `on`: LoRA and DoRA of
    `rank` (0: none) with a share of `dropout` before them; prefix tuning puts `tokens` before each
    sequence. Then, and where weights are named `train` (patterns such as `*/norm*`, with commas),
    all others are frozen. Modules of the names `saved` (`embedding+output`) are trained whole, in a
    copy beside the frozen original, as peft's `modules_to_save`. Frozen weights of products, and in
    inference all of them, are kept as `weights`, a row of `data/few_bits.toml`. `stored` says which
    weights a file of quantised weights keeps so: those of all layers (`all`), outside attention
    (`mlp`) or of experts; "" for weights that are quantised when they are loaded for a fine-tuning.
    `methods` are those of the software (`Stack.tunes`). Layers that `recompute` keep their input
    alone for the backward pass. Sequences are `packed` from documents of so many tokens, which see
    no other, or `padded`: so many of their tokens are text. An optimizer's `states` are the modes
    in which they are kept; paged and offloaded ones move over a `host_link` (the device's own by
    default). Raises `InputError` for other values.
    """

    rank: int = 0
    on: str = "attention"
    dropout: float = 0.0
    weights: str = ""
    stored: str = ""
    train: str = ""
    methods: tuple[str, ...] = ()
    recompute: str = "none"
    packed: int = 0
    padded: int = 0
    states: tuple[StateMode, ...] = ()
    host_link: str = ""
    adapter: str = LORA
    tokens: int = 0
    saved: str = ""

    def __post_init__(self) -> None:
        states = tuple(StateMode(mode) for mode in self.states)  # JSON has their values
        object.__setattr__(self, "states", states)
        check_choice("recompute", self.recompute, RECOMPUTES)
        are_both_set = self.packed and self.padded  # 0: not set
        if min(self.packed, self.padded) < 0 or are_both_set:
            raise InputError("--packed and --padded: tokens, of one of them")
        self._check_adapter()
        if self.weights and self.weights not in FEW_BITS:
            raise unknown("weights", self.weights, FEW_BITS)
        if self.weights and not (self.has_frozen_weights or self.stored):
            raise InputError(f"--weights {self.weights}: of frozen weights, with --lora or --train")
        if self.tokens and self.packed:
            raise InputError("--packed: a prefix stands before whole sequences; leave --packed out")

    def _check_adapter(self) -> None:
        """Raise `InputError` for an adapter that cannot be, and for modules saved without one."""
        check_choice("adapter", self.adapter, ADAPTERS)
        if min(self.rank, self.tokens) < 0 or not 0 <= self.dropout < 1:
            raise InputError("--lora: r is at least 1, dropout at least 0 and below 1")
        needs_rank = self.adapter != LORA and "r" in ADAPTERS[self.adapter].settings
        if needs_rank and not self.rank:  # LoRA without a rank, the default, is no adapter
            raise InputError(f"--adapter {self.adapter}: r is at least 1")
        if self.saved and not self.has_adapter:
            raise InputError(
                f"--modules-to-save {self.saved}: goes with an adapter, such as --lora 16"
            )

    def with_methods(self, methods: tuple[str, ...]) -> "Tuning":
        """Return the tuning with the methods of a stack for adapters, few bits and checkpoints."""
        uses_methods = self.has_adapter or self.weights or self.recompute != "none"
        return replace(self, methods=methods) if uses_methods else self

    @property
    def has_adapter(self) -> bool:
        """Whether an adapter is trained: LoRA is none without a rank."""
        return self.rank > 0 or self.adapter != LORA

    @property
    def has_frozen_weights(self) -> bool:
        """Whether some weights are frozen."""
        return bool(self.has_adapter or self.train)

    @property
    def text(self) -> str:
        """The text for people: `LoRA r=16 on attention, nf4 weights`; "" for full training."""
        settings = [
            (self.has_adapter, self._adapter_text),
            (self.saved, f"{self.saved} saved whole"),
            (self.weights, f"{self.weights} weights"),
            (self.train, f"training {self.train}"),
            (self.states, f"{' '.join(self.states)} states"),
            (self.recompute != "none", f"{self.recompute} recompute"),
            (self.packed, f"packed from {self.packed:,} tokens"),
            (self.padded, f"padded from {self.padded:,} tokens"),
        ]
        return ", ".join(text for is_set, text in settings if is_set)

    @property
    def _adapter_text(self) -> str:
        """The adapter with its settings: `DoRA r=16 on linear, dropout 0.1`."""
        row = ADAPTERS[self.adapter]
        rank = f" r={self.rank}" if "r" in row.settings else ""
        tokens = f" of {self.tokens} tokens" if "tokens" in row.settings else ""
        products = f" on {self.on}" if "on" in row.settings else ""
        dropped = f", dropout {self.dropout:g}" if self.dropout else ""
        return f"{row.title}{rank}{tokens}{products}{dropped}"


FULL_TRAINING = Tuning()


def tuning_to_json(tuning: Tuning) -> dict[str, Value]:
    """Return the fields of a fine-tuning that are not at their defaults, as JSON values."""
    return changed_settings(tuning, FULL_TRAINING)


@dataclass(frozen=True)
class Workload:
    """One cell of a sweep. `params` holds the hyperparameters, but for details at their defaults.

    In phase `infer` the optimizer is "none", so that one inference has one key. A network of a file
    has the file's name as `model` and the hash of its content as `sha256`; `file` says where it
    lies, or the code as it was typed, which is not part of the key. `allow_unknown` lets its layers
    of unknown type pass their input on. `tuning` says what of it is trained. `code` is the Python
    file and the name in it that a person asked for: a backend may run these and no others; no file
    of data says them, so they are not among the JSON values.

    `has_stated_weights` says that a file states the format of its quantised weights, and nobody
    named another. It is not part of the key.

    `default_dtypes` are the data types to choose from on a device, the preferred one first, where
    nobody said one; () where one was said. `has_default_optimizer` says that nobody named the
    optimizer. Neither is part of the key nor of the JSON values.
    """

    model: str
    params: Mapping[str, Value]
    batch_per_replica: int
    dtype: str = "float32"
    phase: str = "train"
    optimizer: str = "sgd"
    plan: Plan = field(default_factory=Plan)
    file: str = ""
    sha256: str = ""
    allow_unknown: bool = False
    tuning: Tuning = FULL_TRAINING
    code: str = field(default="", compare=False)
    default_dtypes: tuple[str, ...] = field(default=(), compare=False)
    has_default_optimizer: bool = field(default=False, compare=False)
    has_stated_weights: bool = field(default=False, compare=False)

    def with_dtype(self, dtype: str) -> "Workload":
        """Return the workload in a data type that was said, whatever the device."""
        return replace(self, dtype=dtype, default_dtypes=())

    @property
    def settings(self) -> dict[str, Value]:
        """Hyperparameters, and the hash that identifies the network of a file, as in records."""
        from_file: dict[str, Value] = {"sha256": self.sha256, "allow_unknown": self.allow_unknown}
        return {**self.params, **{name: value for name, value in from_file.items() if value}}

    @cached_property
    def key(self) -> str:
        """Content hash, the same on every machine and in every version that means the same."""
        table = workload_to_json(self)
        table.pop("file", None)
        text = json.dumps(table, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def global_batch(self) -> int:
        """Examples of a step, of all replicas."""
        return self.batch_per_replica * self.plan.data

    @property
    def family(self) -> str:
        """The network's name without settings and folders, of code `model.py:UNet`."""
        file, colon, name = PurePath(self.file).name.partition(":")
        return f"{file}:{name.partition(':')[0]}" if colon and self.sha256 else self.model

    @property
    def label(self) -> str:
        """The model text of this network, such as `fc:layers=4,nodes=256`."""
        settings = ",".join(f"{k}={_text(v)}" for k, v in self.params.items())
        return f"{self.file or self.model}{':' if settings else ''}{settings}"


def _text(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def workload_to_json(workload: Workload) -> JsonObject:
    """Return the workload as JSON values."""
    table: JsonObject = {"model": workload.model, "params": workload.settings}
    for name in ("batch_per_replica", "dtype", "phase", "optimizer"):
        table[name] = getattr(workload, name)
    table["plan"] = plan_to_json(workload.plan)
    if workload.tuning != FULL_TRAINING:
        table["tuning"] = tuning_to_json(workload.tuning)
    return table | ({"file": workload.file} if workload.file else {})


def workload_from_json(table: Mapping[str, Any]) -> Workload:
    """Return the workload of a table from `workload_to_json`."""
    return workload_of_parts(table, Plan(**table["plan"]), Tuning(**(table.get("tuning") or {})))


def workload_of_parts(table: Mapping[str, Any], plan: Plan, tuning: Tuning) -> Workload:
    """Return the workload of a table with its parsed plan and tuning."""
    params = dict(table["params"])
    file_fields = ("sha256", "allow_unknown") if table.get("file") else ()
    file_values = {name: params.pop(name) for name in file_fields if name in params}
    parsed_values = {"params": params, "plan": plan, "tuning": tuning}
    return Workload(**{**table, **parsed_values, **file_values, "code": ""})  # no code of data
