"""The options that several predictions share, and the step that they name."""

from dataclasses import dataclass
from typing import Annotated, Any

from steptime.core.errors import InputError
from steptime.core.question import Text, choice, named, option, optional
from steptime.core.workload import Tuning, Workload
from steptime.hardware import catalog
from steptime.hardware.software import stack_named
from steptime.prediction import DEFAULT
from steptime.prediction.step_model import StepModel
from steptime.questions import options

OF_TRAINING = (
    "lora", "train", "recompute", "offload", "host_link", "update_early", "packed", "padded",
)  # fmt: skip


@dataclass(frozen=True)
class ExecutionOptions:
    """The options that say how a step is executed, by the keys of an answer's `assumed`."""

    stack: Annotated[
        Text,
        optional("NAME", "What runs it (steptime list stacks); of predict several, side by side."),
    ] = None
    channels_last: Annotated[
        Text,
        choice(
            ("yes", "no"),
            "Images lie with their channels last: yes or no. Default: as the stack does.",
        ),
    ] = None
    tf32: Annotated[
        Text,
        choice(
            ("auto", "on", "off"),
            "Products of float32 as TF32: on, off, or auto, as the software does (convolutions).",
        ),
    ] = None
    host: Annotated[
        Text,
        optional(
            "NAME",
            "The host that issues kernels: server, desktop, any-server, any-desktop, fast, slow, "
            "calibrated (the device's own), or a device calibrated on it.",
        ),
    ] = None

    def method_options(self, texts: list[str] | None) -> dict[str, str]:
        """Return the options of a method: those of `--option` and these.

        Raises:
            InputError: if an option is given twice, or no stack has this name.
        """
        settings = dict(vars(self))
        if self.stack is not None:
            settings["stack"] = _stack_name(self.stack)
        return options.software(texts, **settings)

    def words(self) -> dict[str, str]:
        """Return the options that were given, as the texts of a command line."""
        return options.software(None, **vars(self))


def _stack_name(text: str) -> str:
    """Return the full name of a stack, a path as it is; raises `InputError` for an unknown one."""
    found = catalog.stack(stack_named(text))
    return text if text.lower().endswith(".toml") else found.name


@dataclass(frozen=True)
class StepOptions:
    """The options that say which step of a network it is, and how it is predicted."""

    dtype: options.Dtype = "float32"
    phase: options.Phase = "train"
    optimizer: options.Optimizer = "sgd"
    method: options.Method = DEFAULT
    option_: options.Settings = None
    allow_unknown: options.AllowUnknown = False
    length: options.Length = None
    lora: options.Lora = None
    weights: options.Weights = None
    train: options.Train = None
    recompute: Annotated[
        Text,
        option("WHAT", "none, or full: layers keep their input alone, and compute the rest again."),
    ] = None
    offload: Annotated[
        Text, option("WHAT", "none, or optimizer: its states lie on the host, which updates.")
    ] = None
    host_link: Annotated[
        Text,
        option("LINK", "What joins a device to its host. Default: its PCIe, else pcie-4-x16."),
    ] = None
    update_early: options.UpdateEarly = False
    packed: options.Packed = None
    padded: options.Padded = None

    @property
    def tuning(self) -> Tuning:
        """What of the network is trained; raises `InputError`."""
        from steptime.build import make_tuning

        said = {name: getattr(self, name) for name in OF_TRAINING}
        if self.phase != "train":
            given = {named(name): one for name, one in said.items()}
            options.refuse(given, "{} is of a training: --phase train")
        if self.host_link is not None:
            catalog.link(self.host_link, "--host-link")
            if self.offload != "optimizer" and "paged" not in self.optimizer:
                need = "--offload optimizer or an optimizer such as paged_adam"
                raise InputError(f"--host-link goes with {need}; leave it out")
        return make_tuning(**said, weights=self.weights, optimizer=self.optimizer)

    def workload(self, model: str | Workload, batch: str | int | None) -> Workload:
        """Return the workload of a network; raises `InputError`."""
        return options.workload_of(
            model,
            batch,
            self.dtype,
            self.phase,
            self.optimizer,
            self.allow_unknown,
            self.tuning,
            self.length,
        )

    def on(
        self,
        model: str | Workload,
        batch: str | int | None,
        device: Any,
        execution: ExecutionOptions,
    ) -> StepModel:
        """Return the step of a network on one device; raises `InputError`."""
        workload, given = self.workload(model, batch), execution.method_options(self.option_)
        on = options.one_device(device)
        return StepModel(workload, on, None, self.method, given, assumes=True)
