"""PyTorch: the network as one generated function, autograd, and torch.optim, eager or compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from steptime.core.dtypes import Precision, precision
from steptime.core.graph import Graph
from steptime.core.workload import Plan, Workload
from steptime.measure import synthetic
from steptime.measure.backends import torch_device
from steptime.measure.backends.torch_input import EVENTS, input_of
from steptime.measure.backends.torch_kinds import RUNS
from steptime.measure.backends.torch_module import (
    initial_values,
    join_recurrent_weights,
    module_of,
)
from steptime.measure.contract import (
    Arrays,
    Feed,
    Options,
    OutOfMemoryError,
    Prepared,
    UnsupportedError,
)
from steptime.measure.infeed import HOST_CLOCK

__all__ = ["RUNS", "device_memory_bytes", "device_product", "prepare", "version"]

_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def version() -> str:
    """Give PyTorch's version without the tag of its build."""
    return torch.__version__.partition("+")[0]


def device_product(device: str) -> str:
    """Give the device's name; raises `InputError` for a device that is not here."""
    return torch_device.product(torch_device.find(device))


def device_memory_bytes(device: str) -> int | None:
    """Give an accelerator's memory; None for the host's."""
    return torch_device.memory_bytes(torch_device.find(device))


def prepare(
    graph: Graph, workload: Workload, options: Options, feed: Feed | None = None
) -> Prepared:
    """Give the step of a forward graph, ready on its device: weights, inputs, optimizer made.

    Raises `InputError` for a device that is not here, `UnsupportedError` for a kind, type or plan
    that cannot be run, `OutOfMemoryError` where the weights and inputs do not fit.
    """
    device = torch_device.find(options.device)
    types = precision(workload.dtype)
    _check(workload, types, device)
    _settings(options)
    translated = _translator(options.compile)
    held: dict[str, Any] = {}

    def make() -> None:
        values = _values(graph, options, device)
        held.update(_parts(graph, workload, options, device, types, values))
        held["values"] = values
        held["input"] = input_of(graph, values, device, options, feed)

    translated(make)()
    parts: dict[str, Callable[[], None]] = held["parts"]
    take, waited = held["input"] or (None, None)

    def step() -> None:
        if take:
            take()
        for part in parts.values():
            part()

    memory, reset_memory = torch_device.memory_meter(device)
    return Prepared(
        step=translated(step),
        sync=torch_device.sync(device),
        product=torch_device.product(device),
        memory=memory,
        reset_memory=reset_memory,
        parts={name: translated(part) for name, part in parts.items()},
        timer=torch_device.timer(device),
        waited=waited,
        loss=held["loss"],
        inference=lambda one: _outputs(one, held["values"], types, device),
        facts=_facts(options, device) | held["facts"],
    )


def _check(workload: Workload, types: Precision, device: torch.device) -> None:
    if workload.plan != Plan():
        raise UnsupportedError("torch runs on one device here, without a parallel plan")
    if device.type == "mps" and types.weights == "float64":
        raise UnsupportedError("mps has no float64")
    if device.type == "mps" and workload.dtype == "float16-mixed" and workload.phase == "train":
        raise UnsupportedError("mps has no loss scaling for float16-mixed")


def _settings(options: Options) -> None:
    """Set what holds for the whole process; tf32 both ways, because defaults have changed."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = True  # shapes never change, so the search pays
    if options.compile:
        torch.compiler.reset()


def _values(graph: Graph, options: Options, device: torch.device) -> dict[str, Tensor]:
    """Give what the network starts from: inputs, weights and buffers, by name."""
    torch.manual_seed(options.seed)  # dropout draws from it
    values = initial_values(graph, device, options.seed)
    if device.type == "cuda":
        join_recurrent_weights(graph, values)
    return values


def _parts(
    graph: Graph,
    workload: Workload,
    options: Options,
    device: torch.device,
    types: Precision,
    values: Mapping[str, Tensor],
) -> dict[str, Any]:
    """Give the parts of a step by name, what gives the last loss, and facts about them."""
    training = workload.phase == "train"
    module = module_of(graph, values, types, options.compile)
    network = torch.compile(module, dynamic=False) if options.compile else module
    inputs = [values[name] for name in graph.inputs]
    autocast = _autocast(types, device)
    if not training:
        forward = _inference(network, inputs, autocast)
        return {"parts": {"forward": forward}, "loss": None, "facts": {}}
    weights = [values[name] for name in graph.weights]
    scaled = workload.dtype == "float16-mixed"
    scaler = torch.amp.GradScaler(device.type, enabled=True) if scaled else None
    optimizer = optimizer_of(workload.optimizer, weights, types.weights)
    parts, loss = _training(network, inputs, autocast, optimizer, scaler)
    facts = {
        "learning_rate": synthetic.LEARNING_RATE,
        "loss_scaling": "torch.amp.GradScaler" if scaled else None,
    }
    return {"parts": parts, "loss": loss, "facts": facts}


def _autocast(
    types: Precision, device: torch.device
) -> Callable[[], contextlib.AbstractContextManager[Any]] | None:
    """Give what opens autocast, or None where the whole network has one type."""
    if not types.mixed:
        return None
    dtype = getattr(torch, types.compute)
    return lambda: torch.autocast(device.type, dtype=dtype)


Network = Callable[..., Tensor]
Open = Callable[[], contextlib.AbstractContextManager[Any]] | None


def _inference(network: Network, inputs: list[Tensor], autocast: Open) -> Callable[[], None]:
    def forward() -> None:
        with torch.inference_mode(), autocast() if autocast else contextlib.nullcontext():
            network(*inputs)

    return forward


def _training(
    network: Network,
    inputs: list[Tensor],
    autocast: Open,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
) -> tuple[dict[str, Callable[[], None]], Callable[[], float]]:
    """Give forward, backward and update, and what gives the last loss.

    Gradients are dropped after they have been used, and the loss keeps none of what it is from.
    """
    losses: list[Tensor] = []
    last: list[Tensor] = []

    def forward() -> None:
        if autocast is None:
            losses.append(network(*inputs))
            return
        with autocast():
            losses.append(network(*inputs))

    def backward() -> None:
        loss = losses.pop()
        last[:] = (loss.detach(),)
        (scaler.scale(loss) if scaler else loss).backward()

    def update() -> None:
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    parts = {"forward": forward, "backward": backward, "update": update}
    return parts, lambda: float(last[0])


def _outputs(
    graph: Graph, values: Mapping[str, Tensor], types: Precision, device: torch.device
) -> Callable[[Arrays], Any]:
    """Give the function of an inference graph over the weights in `values`, eager."""
    module = module_of(graph, values, types)
    autocast = _autocast(types, device)

    def outputs(inputs: Arrays) -> Any:
        with torch.inference_mode(), autocast() if autocast else contextlib.nullcontext():
            tensors = [
                torch.from_numpy(inputs[name]).to(
                    device, getattr(torch, graph.tensors[name].dtype), copy=True
                )
                for name in graph.inputs
            ]
            return module(*tensors).float().cpu().numpy()

    return outputs


def optimizer_of(name: str, weights: Iterable[Tensor], dtype: str) -> torch.optim.Optimizer:
    """Give torch's optimizer of that name over `weights` of type `dtype`."""
    return _OPTIMIZERS[name](weights, dtype)


def _sgd(weights: Iterable[Tensor], _: str) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=synthetic.LEARNING_RATE)


def _momentum(weights: Iterable[Tensor], _: str) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=synthetic.LEARNING_RATE, momentum=synthetic.MOMENTUM)


def _rmsprop(weights: Iterable[Tensor], dtype: str) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(
        weights,
        lr=synthetic.LEARNING_RATE,
        alpha=synthetic.RMSPROP_DECAY,
        eps=synthetic.optimizer_epsilon(dtype),
    )


def _adam(weights: Iterable[Tensor], dtype: str) -> torch.optim.Optimizer:
    return torch.optim.Adam(
        weights,
        lr=synthetic.LEARNING_RATE,
        betas=synthetic.ADAM_DECAYS,
        eps=synthetic.optimizer_epsilon(dtype),
    )


_OPTIMIZERS: dict[str, Callable[[Iterable[Tensor], str], torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "rmsprop": _rmsprop,
    "adam": _adam,
}


def _translator(compiled: bool) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Give what wraps a call so that missing memory and a failing compiler are named as such."""

    def translated(call: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                call()
            except (MemoryError, RuntimeError) as error:
                text = str(error).strip().partition("\n")[0]
                if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY):
                    raise OutOfMemoryError(text or "no memory left") from error
                if compiled and type(error).__module__.startswith("torch._"):
                    raise RuntimeError(f"torch.compile: {text}") from error
                raise

        return run

    return translated


def _facts(options: Options, device: torch.device) -> dict[str, object]:
    facts: dict[str, object] = {
        "torch": torch.__version__,
        "compile": "inductor, default mode" if options.compile else None,
        "tf32": options.tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if options.input != "device":
        facts["input_clock"] = EVENTS if device.type == "cuda" else HOST_CLOCK
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        facts |= {
            "gpu": torch.cuda.get_device_name(device),
            "compute_capability": f"{major}.{minor}",
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
        }
    return facts
