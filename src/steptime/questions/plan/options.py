"""The options of `plan` that say how a step is split and what of the network is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from steptime.core.errors import check_choice
from steptime.core.signatures.kinds import Kind, setting_texts, text_of
from steptime.core.signatures.signature import option_name
from steptime.core.tuning import make_tuning
from steptime.core.values import parse_count, parse_number
from steptime.core.workload import CONTEXT_METHODS, OFFLOADS, RECOMPUTES, SCHEDULES, Tuning
from steptime.prediction import DEFAULT
from steptime.questions import kinds
from steptime.questions.node_options import NodeKeywords, NodeOptions, count_or_none
from steptime.questions.options import software
from steptime.questions.step_options import ExecutionKeywords, ExecutionOptions, Method

MIN_IMBALANCE = 1.0  # the busiest device has at least the mean
SPLIT_NAMES = {
    "context_method": CONTEXT_METHODS,
    "recompute": RECOMPUTES,
    "schedule": SCHEDULES,
    "offload": OFFLOADS,
}
"""The known names of the fields of a split that are names."""
SPLIT_COUNTS = {
    "tensor": 1,
    "pipeline": 1,
    "virtual": 1,
    "data": 1,
    "context": 1,
    "expert": 1,
    "expert_tensor": 1,
    "recompute_layers": 1,
    "zero": 0,
    "shard": 1,
}
"""The smallest value of each field of a split that is a number."""
SPLIT_OPTIONS = (
    *SPLIT_COUNTS,
    *SPLIT_NAMES,
    "imbalance",
    "expert_overlap",
    "sequence_parallel",
    "stages",
)
TUNING_OPTIONS = (
    "lora",
    "adapter",
    "modules_to_save",
    "train",
    "packed",
    "padded",
    "update_early",
)


class PlanKeywords(NodeKeywords, ExecutionKeywords, total=False):
    """Keywords of `PlanOptions`."""

    host_link: kinds.Link | None
    tensor: kinds.Count | None
    pipeline: kinds.Count | None
    virtual: kinds.Count | None
    data: kinds.Count | None
    context: kinds.Count | None
    context_method: Annotated[str, Kind("NAME", choices=tuple(CONTEXT_METHODS))] | None
    expert: kinds.Count | None
    expert_tensor: kinds.Count | None
    imbalance: kinds.Number | None
    expert_overlap: bool
    recompute: Annotated[str, Kind("NAME", choices=tuple(RECOMPUTES))] | None
    recompute_layers: kinds.Count | None
    zero: kinds.Count | None
    shard: kinds.Count | None
    sequence_parallel: bool
    schedule: Annotated[str, Kind("NAME", choices=tuple(SCHEDULES))] | None
    stages: Annotated[str | Sequence[int], Kind("N,...")] | None
    offload: Annotated[str, Kind("NAME", choices=tuple(OFFLOADS))] | None
    microbatch: kinds.Count | None
    dtype: kinds.Dtype | None
    optimizer: kinds.Optimizer | None
    lora: Annotated[str, Kind("r=N[,on=WHERE][,dropout=P]")] | None
    adapter: Annotated[str, Kind("NAME[,KEY=VALUE...]")] | None
    modules_to_save: Annotated[str | Sequence[str], Kind("NAME,...")] | None
    weights: kinds.Name | None
    train: Annotated[str, Kind("PATTERN")] | None
    packed: kinds.Count | None
    padded: kinds.Count | None
    update_early: bool
    gradients: kinds.Count | None
    tokens: kinds.Count | None
    prices: kinds.PriceFile | None
    method: Method
    options: kinds.MethodSettings | None
    strict: Annotated[bool, Kind(panel="Model")]
    batch_axis: kinds.Axis | None


class RequestFields(TypedDict):
    """The fields of `Request` that `PlanOptions` decides."""

    microbatch: int | None
    gradients: int | None
    tokens: int | None
    split: Mapping[str, Any]
    dtype: str | None
    stack: str | None
    method: Any
    options: Mapping[str, str]
    prices: Path | None
    optimizer: str | None
    tuning: Tuning


@dataclass(frozen=True)
class PlanOptions(NodeOptions, ExecutionOptions, keywords=PlanKeywords):
    """How the devices of a training are joined, how its step is split, and what is trained.

    Args:
        per_node: Devices of a node. Default: as in the maker's node, else 8.
        inside: The link between the devices of a node.
        link: The link of a device to other nodes.
        links_per_node: Links from a node to other nodes. Default: one per device.
        host_link: With --offload: the link from a device to its host.
        tensor: Tensor parallelism: devices that split each matrix product. Default: 1.
        pipeline: Pipeline parallelism: number of stages. Default: 1.
        virtual: Virtual pipeline stages of a device (interleaved schedule). Default: 1.
        data: Data parallelism: number of replicas. Default: 1.
        context: Context parallelism: devices that split each sequence. Default: 1.
        context_method: How context-parallel devices get the keys and values of all: `gather`
            (default), `ring` (overlapped with attention) or `all-to-all` (each gets all tokens of
            some heads).
        expert: Expert parallelism: devices that divide the experts. Default: 1.
        expert_tensor: Of a mixture of experts with `--tensor`: 1 gives each tensor-parallel device
            whole experts. Default: the matrix products of each expert are split over these devices.
        imbalance: Tokens of the busiest expert-parallel device over the mean. Default: 1.
        expert_overlap: Send tokens to experts while another microbatch computes.
        recompute: What the backward pass computes again: `none`, `selective` (attention) or `full`.
            Default: `none`.
        recompute_layers: Recompute only in the first N layers of each stage. Default: all.
        zero: ZeRO level, what replicas divide: 1 optimizer state, 2 also gradients, 3 also weights.
            Default: 0.
        shard: Number of replicas that divide among them what --zero names; groups of this size are
            copies of each other (HSDP). Default: all replicas.
        sequence_parallel: Tensor-parallel devices also split the ops between matrix products.
        schedule: Pipeline schedule: `1f1b` (default), `gpipe`, `interleaved`, `zero-bubble` or
            `dualpipe`.
        stages: Layers of each stage, in order. Default: divided evenly.
        offload: What is kept in the host's memory: none (default), optimizer, activations or both.
        microbatch: Sequences that pass through the network at once. Default: 1.
        dtype: `bfloat16-mixed`, `float16-mixed` (weights and optimizer state in `float32`);
            `float8` or `float4` for the layers' matrix products; `bfloat16`, `float16`, `float32`
            for all. Default: `bfloat16-mixed`, or `float16-mixed` on a device without `bfloat16`;
            `float32` for networks that read no tokens, and on a CPU.
        optimizer: `sgd`, `momentum`, `rmsprop`, `adam`, `adamw`, `adam8bit`. Default: `adam`; `sgd`
            for networks that read no tokens.
        lora: Fine-tune by LoRA of rank N and freeze all other weights. WHERE: attention (default),
            linear (all linear layers but the output layer), all, or named layers (q+v).
        adapter: An adapter with its keys, such as `dora,r=16,on=linear`: `lora` or `dora` (keys of
            --lora), `ia3` (`on=WHERE`, by default `k+v+down`) or `prefix` (`tokens=N`, by default
            20).
        modules_to_save: Modules of which a full copy is trained beside the adapter, such as
            `embed_tokens,lm_head`.
        weights: Format of frozen weights: `nf4`, `nf4-dq` (scales in 8 bits), `int4`, `awq`,
            `gptq`, `float4`, `mxfp4` (experts only), `int8`, `float8`, or none for that of --dtype.
            Default: as the network's file states.
        train: Train only the weights whose names match these patterns, such as
            `'*norm*,block32/*'`.
        packed: Mean tokens of a document, if several documents are packed into a sequence.
        padded: Mean tokens of text in a sequence, if the others are padding.
        update_early: Apply and free each gradient as soon as it is computed.
        gradients: Bits of a gradient: 16 or 32. Default: the stack's.
        tokens: Tokens of a whole training: shows its hours and cost.
        prices: A file of prices. Default: the shipped prices, each with its date.
        stack: The software: a name (`steptime list stacks`), a family (`fsdp`, `megatron`) for its
            newest release, or a year (`2023`) for what was usual then. Default: the usual one for
            such a plan; the printed interval then covers the other candidates, too.
        channels_last: Whether images are stored with their channels last (NHWC). Default: as the
            stack does.
        tf32: Whether float32 matrix products and convolutions run as TF32: `on`, `off` or `auto`.
            Default: `auto`, the frameworks' default: only convolutions do.
        host: The CPU that launches kernels. `any-server` or `any-desktop`: an unknown CPU of a
            server or desktop, so the interval is wider. `server` or `desktop`: the usual CPU of
            one. `fast` or `slow`: an end of the range of CPUs. `calibrated`, or the name of a
            calibrated device: the CPU that launched the steps of its calibration. Default:
            `calibrated` for a device that was calibrated with steps; else `any-desktop` for gaming
            cards, `any-server` for others.
        method: The cost model: how kernels are priced (steptime list methods).
        options: A setting of the cost model; may be repeated.
        strict: Refuse a network (.onnx, .pt2, code) with an op whose FLOP are unknown. Without this
            option such an op counts by its bytes alone.
        batch_axis: For code: which axis of its first input is the batch. Default: detected.
    """

    host_link: Any = None
    tensor: int | str | None = None
    pipeline: int | str | None = None
    virtual: int | str | None = None
    data: int | str | None = None
    context: int | str | None = None
    context_method: str | None = None
    expert: int | str | None = None
    expert_tensor: int | str | None = None
    imbalance: float | str | None = None
    expert_overlap: bool = False
    recompute: str | None = None
    recompute_layers: int | str | None = None
    zero: int | str | None = None
    shard: int | str | None = None
    sequence_parallel: bool = False
    schedule: str | None = None
    stages: Any = None
    offload: str | None = None
    microbatch: int | str | None = None
    dtype: str | None = None
    optimizer: str | None = None
    lora: str | None = None
    adapter: str | None = None
    modules_to_save: str | Sequence[str] | None = None
    weights: str | None = None
    train: str | None = None
    packed: int | str | None = None
    padded: int | str | None = None
    update_early: bool = False
    gradients: int | str | None = None
    tokens: float | str | None = None
    prices: Any = None
    method: Any = DEFAULT
    options: Any = None
    strict: bool = False
    batch_axis: int | str | None = None

    @property
    def split(self) -> Mapping[str, object]:
        """The fields of `Plan` that were given; raises `InputError` for values of another kind."""
        fields: dict[str, object] = {}
        for name, smallest in SPLIT_COUNTS.items():
            count = getattr(self, name)
            if count is not None:
                fields[name] = parse_count(text_of(count), option_name(name), smallest)
        for name, choices in SPLIT_NAMES.items():
            choice = getattr(self, name)
            if choice is not None:
                fields[name] = check_choice(option_name(name), choice, choices)
        if self.imbalance is not None:
            fields["imbalance"] = parse_number(self.imbalance, "--imbalance", MIN_IMBALANCE)
        if self.stages is not None:
            layer_counts = str(text_of(self.stages)).split(",")
            fields["stages"] = tuple(parse_count(count, "--stages", 0) for count in layer_counts)
        if self.expert_overlap:
            fields["expert_overlap"] = True
        if self.sequence_parallel:
            fields["sequence"] = True
        return fields

    @property
    def tuning(self) -> Tuning:
        """The part of the network that is trained; raises `InputError` for other values."""
        values = {name: text_of(getattr(self, name)) for name in TUNING_OPTIONS}
        return make_tuning(**values, weights=self.weights, optimizer=self.optimizer)

    def _software_settings(self) -> dict[str, str]:
        """Return the options of the method but the stack, which a plan chooses by itself."""
        values = self.execution_values()
        del values["stack"]
        return software(setting_texts(self.options), **values)

    @property
    def request_fields(self) -> RequestFields:
        """The fields of `Request` that these options say; raises `InputError`."""
        return {
            "microbatch": count_or_none(self.microbatch, "--microbatch"),
            "gradients": count_or_none(self.gradients, "--gradients"),
            "tokens": count_or_none(self.tokens, "--tokens"),
            "split": self.split,
            "dtype": self.dtype,
            "stack": self.stack,
            "method": self.method,
            "options": self._software_settings(),
            "prices": None if self.prices is None else Path(self.prices),
            "optimizer": self.optimizer,
            "tuning": self.tuning,
        }
