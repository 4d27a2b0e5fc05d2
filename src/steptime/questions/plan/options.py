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
        per_node: Devices of a node. Default: the maker's, else 8.
        inside: What joins the devices of a node.
        link: What joins nodes: the link of a device.
        links_per_node: Links of a node. Default: one per device.
        host_link: With --offload: what joins a device to its host.
        tensor: Devices that share each product. Default: 1.
        pipeline: Stages of the pipeline. Default: 1.
        virtual: Stages of a device, interleaved. Default: 1.
        data: Replicas. Default: 1.
        context: Devices that share a sequence. Default: 1.
        context_method: How they see each other's keys and values: gather (default), ring (beside
            attention) or all-to-all (each has all tokens for some heads).
        expert: Devices that share the experts. Default: 1.
        expert_tensor: 1: tensor-parallel devices have whole experts. Default: these are split, too.
        imbalance: Tokens of the busiest of these devices over the mean. Default: 1.
        expert_overlap: Tokens are sent beside another microbatch's products.
        recompute: none, selective (attention) or full. Default: none.
        recompute_layers: In the first N layers of each stage alone. Default: all.
        zero: Shared out over the replicas: 1 states, 2 gradients too, 3 weights too. Default: 0.
        shard: Replicas that share these; the others are copies. Default: all.
        sequence_parallel: Tensor-parallel devices share what lies between products too.
        schedule: 1f1b (default), gpipe, interleaved, zero-bubble or dualpipe.
        stages: Layers of each stage, in order. Default: shared out evenly.
        offload: What lies on the host: none (default), optimizer, activations or both.
        microbatch: Sequences that pass at once. Default: 1.
        dtype: bfloat16-mixed, float16-mixed (states in float32); float8 or float4 for the layers'
            products; bfloat16, float16, float32 for all. Default: bfloat16-mixed, float16-mixed
            where a device has no bfloat16; of images and the like, and on a CPU, float32.
        optimizer: sgd, momentum, rmsprop, adam, adamw, adam8bit. Default: adam; of images and the
            like sgd.
        lora: Fine-tune by LoRA of this rank; WHERE is attention (default), linear (every product
            but the head), all, or names of products (q+v). All other weights are frozen.
        adapter: An adapter by its name: lora, dora (keys as of --lora), ia3 (on=WHERE, by default
            k+v+down) or prefix (tokens=N, by default 20): dora,r=16,on=linear.
        modules_to_save: Modules that are trained whole beside an adapter, in a copy, such as
            embed_tokens,lm_head.
        weights: How frozen weights are kept: nf4, nf4-dq (scales in 8 bits), int4, awq, gptq,
            float4, mxfp4 (experts alone), int8, float8; none for the step's own type. Default: as
            the network's file states.
        train: Train the weights of these names alone, with commas, such as '*norm*,block32/*'.
        packed: Sequences are packed from documents of so many tokens in the mean.
        padded: So many tokens of a sequence are text in the mean, the rest padding.
        update_early: Each gradient is applied, and dropped, as soon as it is made.
        gradients: Bits: 16 or 32. Default: the stack's.
        tokens: Tokens of a training: shows hours and cost.
        prices: Prices of devices. Default: the shipped ones, of their dates.
        stack: The software: a name, a family (fsdp, megatron: its newest) or a year (2023).
            Default: what runs such a plan; the interval over any stack then holds the others that
            could be meant.
        channels_last: Images lie with their channels last. Default: as the stack does.
        tf32: Products of float32 as TF32. Default: auto, as the software does (convolutions).
        host: The host that issues kernels: server, desktop, any-server, any-desktop, fast, slow,
            calibrated (the device's own), or a device calibrated on it.
        method: The cost model (steptime list methods).
        options: An option of the method; repeatable.
        strict: Refuse a network with an op of unknown work (of .onnx, .pt2 and code).
        batch_axis: Of code: the axis of its first input that is the batch. Default: found out.
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
