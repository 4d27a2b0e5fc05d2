"""PyTorch: the network as one generated function, autograd, and torch.optim, eager or compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from steptime.core.dtypes import Precision, precision
from steptime.core.graph import Graph
from steptime.core.workload import Plan, Workload
from steptime.measure import ranks, synthetic
from steptime.measure.backends import torch_device, torch_parallel
from steptime.measure.backends.torch_kinds import RUNS
from steptime.measure.backends.torch_module import (
    draw_inputs,
    initial_values,
    join_recurrent_weights,
    module_of,
)
from steptime.measure.backends.torch_parallel import STRATEGIES, Joined, Spread, Stopwatch
from steptime.measure.contract import (
    Options,
    OutOfMemoryError,
    Prepared,
    Team,
    UnsupportedError,
)

__all__ = ["RUNS", "STRATEGIES", "device_memory_bytes", "device_product", "prepare", "version"]

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


def prepare(graph: Graph, workload: Workload, options: Options) -> Prepared:
    """Give the step of a forward graph, ready on its device: weights, inputs, optimizer made.

    Raises `InputError` for a device that is not here, `UnsupportedError` for a kind, type or plan
    that cannot be run, `OutOfMemoryError` where the weights and inputs do not fit.
    """
    device = torch_device.find(options.device)
    types = precision(workload.dtype)
    _check(workload, options, types, device)
    _settings(options)
    translated = _translator(options.compile)
    held: list[Assembled] = []
    joined = torch_parallel.join(ranks.here(), device) if workload.plan.data > 1 else None
    sync = torch_device.sync(device)
    watch = Stopwatch(sync)

    def make() -> None:
        held.append(assemble(graph, workload, options, joined, watch))

    translated(make)()
    found = held[0]

    def alone() -> Callable[[], None]:
        if found.quiet is None:  # what is sharded cannot do without: a copy that is not
            translated(
                lambda: held.append(
                    assemble(
                        graph, workload, replace(options, strategy="independent"), joined, watch
                    )
                )
            )()
        return translated((found if found.quiet else held[1]).step_alone)

    memory, reset_memory = torch_device.memory_meter(device)
    team = None if joined is None else _team(joined, found, watch, alone)
    return Prepared(
        step=translated(found.step),
        sync=sync,
        product=torch_device.product(device),
        memory=memory,
        reset_memory=reset_memory,
        parts={name: translated(part) for name, part in found.parts.items()},
        timer=torch_device.timer(device),
        facts=_facts(options, device) | found.facts,
        team=team,
    )


def _check(workload: Workload, options: Options, types: Precision, device: torch.device) -> None:
    replicas, size = workload.plan.data, ranks.here().size
    if workload.plan != Plan(data=replicas):
        raise UnsupportedError("torch runs data-parallel here, and by no other parallel plan")
    if replicas > 1:
        _check_parallel(workload, options, device)
    if replicas not in {1, size}:
        raise UnsupportedError(f"{replicas} replicas are as many processes, not {size}")
    if device.type == "mps" and types.weights == "float64":
        raise UnsupportedError("mps has no float64")
    if device.type == "mps" and workload.dtype == "float16-mixed" and workload.phase == "train":
        raise UnsupportedError("mps has no loss scaling for float16-mixed")


def _check_parallel(workload: Workload, options: Options, device: torch.device) -> None:
    if device.type == "mps":
        raise UnsupportedError("mps is one device, without replicas")
    if workload.phase != "train" and options.strategy != "independent":
        raise UnsupportedError("inference exchanges nothing: its strategy is independent")
    if workload.dtype == "float16-mixed" and workload.phase == "train":
        raise UnsupportedError("float16-mixed scales the loss of one replica, not of several")
    if options.compile and options.strategy == "sharded":
        raise UnsupportedError("torch.compile is not run on a sharded network here")


def _settings(options: Options) -> None:
    """Set what holds for the whole process; tf32 both ways, because defaults have changed."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = True  # shapes never change, so the search pays
    if options.compile:
        torch.compiler.reset()


@dataclass(frozen=True)
class Assembled:
    """A network with its inputs, its weights as the optimizer has them, and the parts of a step.

    `quiet` opens a step that exchanges nothing, None where there is none to be left out.
    """

    inputs: list[Tensor]
    weights: Sequence[Tensor]
    parts: dict[str, Callable[[], None]]
    facts: dict[str, object]
    quiet: Open = None
    timed: bool = True

    def step(self) -> None:
        """Run all parts."""
        for part in self.parts.values():
            part()

    def step_alone(self) -> None:
        """Run all parts without an exchange."""
        with self.quiet() if self.quiet else contextlib.nullcontext():
            self.step()


def assemble(
    graph: Graph,
    workload: Workload,
    options: Options,
    joined: Joined | None,
    watch: Stopwatch,
) -> Assembled:
    """Give the parts of a step by name; replicas have the same weights and inputs of their own."""
    device, types = torch_device.find(options.device), precision(workload.dtype)
    training = workload.phase == "train"
    own_seed = options.seed + (joined.rank.rank if joined else 0)
    torch.manual_seed(own_seed)  # dropout draws from it
    values = initial_values(graph, device, options.seed)
    if own_seed != options.seed:
        draw_inputs(graph, values, device, own_seed)
    if device.type == "cuda":
        join_recurrent_weights(graph, values)
    module = module_of(graph, values, types, options.compile)
    inputs = [values[name] for name in graph.inputs]
    autocast = _autocast(types, device)
    spread = Spread(module, [values[name] for name in graph.weights])
    if joined and training:
        spread = torch_parallel.spread(options.strategy, module, joined, watch, options.overlap)
    network: Network = spread.network
    if options.compile:
        network = torch.compile(network, dynamic=False)
    if not training:
        return Assembled(inputs, [], {"forward": _inference(network, inputs, autocast)}, {})
    scaled = workload.dtype == "float16-mixed"
    scaler = torch.amp.GradScaler(device.type, enabled=True) if scaled else None
    optimizer = optimizer_of(workload.optimizer, spread.weights, types.weights)
    parts = _training(network, inputs, autocast, optimizer, scaler, spread)
    facts: dict[str, object] = {
        "learning_rate": synthetic.LEARNING_RATE,
        "loss_scaling": "torch.amp.GradScaler" if scaled else None,
    }
    return Assembled(inputs, spread.weights, parts, facts, spread.quiet, spread.timed)


def _team(
    joined: Joined,
    found: Assembled,
    watch: Stopwatch,
    alone: Callable[[], Callable[[], None]],
) -> Team:
    if found.timed:
        meter = "host clock around every exchange of a rank, waiting for others included; mean"
    elif found.quiet:
        meter = "exposed: step with exchange less step without (no_sync), in turns; rank 0 leads"
    else:
        meter = "exposed: step less that of an unsharded copy without exchange, in turns"
    return Team(
        rank=joined.rank.rank,
        backend=joined.backend,
        agree=joined.agree,
        gather=joined.gather,
        comm_meter=meter,
        comm_s=watch.read if found.timed else None,
        alone=None if found.timed else alone,
    )


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
    spread: Spread,
) -> dict[str, Callable[[], None]]:
    """Give forward, backward and update; gradients are dropped after they have been used."""
    losses: list[Tensor] = []

    def forward() -> None:
        if autocast is None:
            losses.append(network(*inputs))
            return
        with autocast():
            losses.append(network(*inputs))

    def backward() -> None:
        loss = losses.pop()
        (scaler.scale(loss) if scaler else loss).backward()
        spread.exchange()

    def update() -> None:
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        elif spread.updates:
            optimizer.step()
        spread.publish()
        optimizer.zero_grad(set_to_none=True)

    return {"forward": forward, "backward": backward, "update": update}


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
