"""The options that several predictions share, and the step that they name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import Annotated, Any, TypedDict

from steptime.core.errors import InputError, check_choice
from steptime.core.signatures.kinds import Kind, setting_texts, text_of
from steptime.core.signatures.signature import OptionGroup, option_name
from steptime.core.values import parse_count
from steptime.core.workload import Tuning, Workload
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction import DEFAULT
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.method import Method as CostModel
from steptime.prediction.steps.step_model import StepModel
from steptime.questions import kinds, options

TRAINING_OPTIONS = (
    "lora",
    "adapter",
    "modules_to_save",
    "train",
    "recompute",
    "offload",
    "host_link",
    "update_early",
    "packed",
    "padded",
)
Method = Annotated[
    str | CostModel | Callable[[Kernel, Device], Interval | float],
    Kind("NAME", completes="steptime.prediction:METHODS"),
]
LAYOUTS = ("yes", "no")
TF32_USES = ("auto", "on", "off")


class ExecutionKeywords(TypedDict, total=False):
    """Keywords of `ExecutionOptions`."""

    stack: kinds.StackName | None
    channels_last: Annotated[str | bool, Kind("yes|no", choices=LAYOUTS, panel="Software")] | None
    tf32: Annotated[str, Kind("NAME", choices=TF32_USES, panel="Software")] | None
    host: Annotated[str, Kind("NAME", panel="Software")] | None


@dataclass(frozen=True)
class ExecutionOptions(OptionGroup, keywords=ExecutionKeywords):
    """How a step is executed, by the keys of an answer's `assumed`.

    Args:
        stack: The software that runs the step (steptime list stacks). `predict` also takes several,
            with commas, and compares them.
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
    """

    stack: str | None = None
    channels_last: str | bool | None = None
    tf32: str | None = None
    host: str | None = None

    def method_options(self, settings: Any) -> dict[str, str]:
        """Return the options of a method: those of `--option` and these.

        Args:
            settings: `NAME=VALUE` texts, or a table of names and values.

        Raises:
            InputError: if an option is given twice, or a value is none that it takes.
        """
        values = self.execution_values()
        if self.stack is not None:
            # A cost model takes a stack by its name with the version.
            values["stack"] = options.full_stack_name(self.stack)
        return options.software(setting_texts(settings), **values)

    def words(self) -> dict[str, str]:
        """Return the options that were given, as the texts of a command line."""
        return options.software(None, **self.execution_values())

    def execution_values(self) -> dict[str, str | None]:
        """Return the values of these options as texts, None of those left out.

        Raises:
            InputError: for a layout or a use of TF32 that does not exist.
        """
        layout = self.channels_last
        # Python callers may give True or False.
        if isinstance(layout, bool):
            layout = "yes" if layout else "no"
        for name, value, choices in (
            ("--channels-last", layout, LAYOUTS),
            ("--tf32", self.tf32, TF32_USES),
        ):
            if value is not None:
                check_choice(name, value, choices)
        return {
            "stack": self.stack,
            "channels_last": layout,
            "tf32": self.tf32,
            "host": self.host,
        }


class StepKeywords(ExecutionKeywords, total=False):
    """Keywords of `StepOptions`."""

    dtype: kinds.Dtype | None
    phase: kinds.Phase
    optimizer: kinds.Optimizer | None
    method: Method
    options: kinds.MethodSettings | None
    allow_unknown: Annotated[bool, Kind(panel="Model")]
    strict: Annotated[bool, Kind(panel="Model")]
    batch_axis: kinds.Axis | None
    length: kinds.Length | None
    lora: Annotated[str, Kind("r=N[,on=WHERE][,dropout=P]", panel="Fine-tuning")] | None
    adapter: Annotated[str, Kind("NAME[,KEY=VALUE...]", panel="Fine-tuning")] | None
    modules_to_save: Annotated[str | Sequence[str], Kind("NAME,...", panel="Fine-tuning")] | None
    weights: Annotated[str, Kind("NAME", panel="Fine-tuning")] | None
    train: Annotated[str, Kind("PATTERN", panel="Fine-tuning")] | None
    recompute: Annotated[str, Kind("WHAT", panel="Memory")] | None
    offload: Annotated[str, Kind("WHAT", panel="Memory")] | None
    host_link: Annotated[kinds.Link, Kind("LINK", panel="Memory")] | None
    update_early: Annotated[bool, Kind(panel="Memory")]
    packed: Annotated[int | str, Kind("TOKENS", panel="Fine-tuning")] | None
    padded: Annotated[int | str, Kind("TOKENS", panel="Fine-tuning")] | None


@dataclass(frozen=True)
class StepOptions(ExecutionOptions, keywords=StepKeywords):
    """Which step of a network it is, and how it is predicted.

    Args:
        dtype: `float32`, `float64`, `bfloat16` or `float16`; `bfloat16-mixed` or `float16-mixed`
            with weights in `float32`; `float8` or `float4` (also `-mixed`) for the operands of
            linear layers and experts only. Default: `bfloat16-mixed` for sequence models
            (`float16-mixed` on a device without `bfloat16`), `float32` for others and on a CPU.
        phase: `train` or `infer`.
        optimizer: `sgd`, `momentum`, `rmsprop`, `adam`, `adamw`, `lion`, `lamb`, `adafactor` or
            `muon`. `adam`, `adamw` and `lion` also with a state in 8 bits (`adam8bit`), or moved to
            the host if the device is full (`paged_adam`, `paged_adam8bit`). Default: `adam` for
            sequence models, `sgd` for others.
        method: The cost model: how kernels are priced (steptime list methods).
        options: A setting of the cost model; may be repeated.
        allow_unknown: Accept layers of unknown type in a network's file: they pass their input on
            and count as no work.
        strict: Refuse a network (.onnx, .pt2, code) with an op whose FLOP are unknown. Without this
            option such an op counts by its bytes alone.
        batch_axis: For code: which axis of its first input is the batch. Default: detected.
        length: Tokens of a sequence. Default: the model's.
        lora: Fine-tune by LoRA of rank N and freeze all other weights. WHERE: attention (default),
            linear (all linear layers but the output layer), all, or named layers (q+v).
        adapter: An adapter with its keys, such as `dora,r=16,on=linear`: `lora` or `dora` (keys of
            --lora), `ia3` (`on=WHERE`, by default `k+v+down`) or `prefix` (`tokens=N`, by default
            20).
        modules_to_save: Modules of which a full copy is trained beside the adapter, such as
            `embed_tokens,lm_head`.
        weights: Format of the frozen weights; in inference, of all weights: `nf4`, `nf4-dq` (scales
            in 8 bits), `int4`, `awq`, `gptq`, `float4`, `mxfp4` (experts only), `int8`, `float8`,
            or `none` (weights in the type of --dtype). `fit` and `choose` also take a GGUF type, or
            `all`. Default: as the network's file states.
        train: Train only the weights whose names match these patterns, such as
            `'*norm*,block32/*'`.
        recompute: `none`, or `full`: layers save their input only; the backward pass computes their
            activations again.
        offload: `none`, or `optimizer`: its state stays in the host's memory, and the host updates
            the weights.
        host_link: The link from a device to its host: a name of steptime list links, or FILE.toml.
            Default: the device's PCIe, else pcie-4-x16.
        update_early: Apply and free each gradient as soon as it is computed.
        packed: Mean tokens of a document, if several documents are packed into a sequence.
        padded: Mean tokens of text in a sequence, if the others are padding.
        stack: The software that runs the step (steptime list stacks). `predict` also takes several,
            with commas, and compares them.
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
    """

    dtype: str | None = None
    phase: str = "train"
    optimizer: str | None = None
    method: Any = DEFAULT
    options: Any = None
    allow_unknown: bool = False
    strict: bool = False
    batch_axis: int | str | None = None
    length: int | str | None = None
    lora: str | None = None
    adapter: str | None = None
    modules_to_save: str | Sequence[str] | None = None
    weights: str | None = None
    train: str | None = None
    recompute: str | None = None
    offload: str | None = None
    host_link: Any = None
    update_early: bool = False
    packed: int | str | None = None
    padded: int | str | None = None

    @property
    def tuning(self) -> Tuning:
        """The part of the network that is trained, and how.

        Raises:
            InputError: for values that the options do not take.
        """
        from steptime.core.tuning import make_tuning

        training_texts = {name: text_of(getattr(self, name)) for name in TRAINING_OPTIONS}
        if self.phase != "train":
            texts_by_option = {option_name(name): text for name, text in training_texts.items()}
            options.refuse(texts_by_option, "{} is of a training: --phase train")
        if self.host_link is not None:
            self._check_host_link()
        return make_tuning(
            **training_texts, weights=self.weights, optimizer=self.optimizer, phase=self.phase
        )

    def _check_host_link(self) -> None:
        """Raise `InputError` for an unknown `--host-link`, and for one that nothing crosses."""
        catalog.link(self.host_link, "--host-link")
        has_paged_optimizer = "paged" in (self.optimizer or "")
        has_states_on_host = self.offload == "optimizer" or has_paged_optimizer
        if not has_states_on_host:
            need = "--offload optimizer or an optimizer such as paged_adam"
            raise InputError(f"--host-link goes with {need}; leave it out")

    def refuse_network_options(self, message: str) -> None:
        """Raise `InputError` for the first option that says which step of a network it is.

        Args:
            message: the text of the error, with `{}` for the name of the option.
        """
        # These say how a step is run and priced. Every other field says which step it is.
        execution_fields = {field.name for field in fields(ExecutionOptions)}
        price_fields = execution_fields | {"dtype", "method", "options"}
        network_fields = [field for field in fields(self) if field.name not in price_fields]
        for field in network_fields:
            is_set = getattr(self, field.name) != field.default
            if is_set:
                raise InputError(message.format(option_name(field.name)))

    @property
    def sequence_length(self) -> int | None:
        """The tokens of a sequence, None for the model's own; raises `InputError`."""
        return None if self.length is None else parse_count(text_of(self.length), "--length")

    def workload(
        self, model: str | PathLike[str] | Workload, batch: Any, device: Device | None = None
    ) -> Workload:
        """Return the workload of a network, on a device of its own data types.

        Raises:
            InputError: for unknown names, and values that the options do not take.
        """
        return options.workload_of(
            options.set_reading(model, self.strict, self.batch_axis),
            text_of(batch),
            self.dtype,
            self.phase,
            self.optimizer,
            self.allow_unknown,
            self.tuning,
            self.sequence_length,
            device,
        )

    def build_model(
        self, model: str | PathLike[str] | Workload, batch: Any, device: Any
    ) -> StepModel:
        """Return the step of a network on one device; raises `InputError`."""
        workload = self.workload(model, batch)
        settings = self.method_options(self.options)
        device_name = options.single_device(device)
        return StepModel(workload, device_name, method=self.method, options=settings, assumes=True)
