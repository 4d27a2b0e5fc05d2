"""The step of a network in PyTorch: its input, forward, backward and update, on one replica."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from steptime.core.dtypes import Precision, precision
from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.measure import synthetic
from steptime.measure.backends.torch import device as torch_device
from steptime.measure.backends.torch import parallel as torch_parallel
from steptime.measure.backends.torch.module import initial_values, join_recurrent_weights, module_of
from steptime.measure.backends.torch.parallel import Spread
from steptime.measure.contract import Arrays, Feed, Options, ProcessGroup
from steptime.measure.infeed import Stopwatch, in_turn

Network = Callable[..., Tensor]


@dataclass(frozen=True)
class Assembled:
    """A network with its inputs, how it is spread over replicas, a step of it and its parts.

    `values` are inputs, weights and buffers by name, `waited` says how long the input of steps took
    (None where it is resident), `loss` gives the last one.
    """

    module: Any
    inputs: list[Tensor]
    spread: Spread
    parts: dict[str, Callable[[], None]]
    values: Mapping[str, Tensor]
    step: Callable[[], None]
    waited: Callable[[], float] | None
    loss: Callable[[], float] | None

    def step_alone(self) -> None:
        """Run a step without an exchange."""
        with self.spread.quiet() if self.spread.quiet else contextlib.nullcontext():
            self.step()


def assemble(
    graph: Graph,
    workload: Workload,
    options: Options,
    group: ProcessGroup | None,
    watch: Stopwatch,
    feed: Feed | None = None,
    own: nn.Module | None = None,
) -> Assembled:
    """Return the step of a graph, or of its `own` module; replicas share weights, not inputs."""
    device, types = torch_device.find(options.device), precision(workload.dtype)
    training = workload.phase == "train"
    own_seed = options.seed + (group.rank if group else 0)
    torch.manual_seed(own_seed)  # dropout draws from it
    inputs_alone = replace(graph, weights=(), buffers=())
    values = initial_values(inputs_alone if own else graph, device, options.seed)
    if own_seed != options.seed:
        values |= initial_values(inputs_alone, device, own_seed)
    if device.type == "cuda" and not own:
        join_recurrent_weights(graph, values)
    take, waited = None, None
    if options.input != "device":
        take, waited = torch_device.clocked_input(_copying(graph, values, device, feed), device)
    module: Any = own or module_of(graph, values, types, options.compile)
    inputs = [values[name] for name in graph.inputs]
    spread = Spread(module, list(module.parameters()))
    if group and training:
        how = torch_parallel.STRATEGIES[options.strategy]
        spread = how(module, group, watch, options.overlap)
    network: Network = spread.network
    if options.compile:
        network = torch.compile(network, dynamic=False)
    network = under_autocast(network, types, device)

    @torch.inference_mode()
    def forward() -> None:
        network(*inputs)

    parts, loss = {"forward": forward}, None
    if training:
        scaled = workload.dtype == "float16-mixed"
        scaler = torch.amp.GradScaler(device.type, enabled=True) if scaled else None
        optimizer = optimizer_of(workload.optimizer, spread.weights, types.weights)
        parts, loss = _training(network, inputs, optimizer, scaler, spread)
    step = in_turn(take, *parts.values())
    return Assembled(module, inputs, spread, parts, values, step, waited, loss)


def _copying(
    graph: Graph, values: Mapping[str, Tensor], device: torch.device, feed: Feed | None
) -> Callable[[], None]:
    """Return what copies a step's input to where the step reads it.

    Synthetic input lies on the host, in pages that a CUDA device can read by itself; batches of a
    data set are put into such pages first.
    """
    on_gpu = device.type == "cuda"

    def placed(tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if on_gpu else tensor

    made = {n: placed(values[n].to("cpu", copy=True)) for n in graph.inputs if not feed}

    def take() -> None:
        arrays = feed.next() if feed else {}
        given = {name: placed(torch.from_numpy(array)) for name, array in arrays.items()}
        for name, tensor in (made or given).items():
            values[name].copy_(tensor, non_blocking=on_gpu)

    return take


def under_autocast(network: Network, types: Precision, device: torch.device) -> Network:
    """Return a network that runs under autocast, or as it is where all of it has one type."""
    if not types.mixed:
        return network
    dtype = getattr(torch, types.compute)

    def mixed(*inputs: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=dtype):
            return network(*inputs)

    return mixed


def _training(
    network: Network,
    inputs: list[Tensor],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
    spread: Spread,
) -> tuple[dict[str, Callable[[], None]], Callable[[], float]]:
    """Return forward, backward and update, and what gives the last loss.

    Gradients are dropped after they have been used, and the loss keeps none of what it is from.
    """
    losses: list[Tensor] = []
    last: list[Tensor] = []

    def forward() -> None:
        losses.append(network(*inputs))

    def backward() -> None:
        loss = losses.pop()
        last[:] = (loss.detach(),)
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

    parts = {"forward": forward, "backward": backward, "update": update}
    return parts, lambda: float(last[0])


def outputs_of(
    graph: Graph, values: Mapping[str, Tensor], types: Precision, device: torch.device
) -> Callable[[Arrays], Any]:
    """Return the function of an inference graph over the weights in `values`, eager."""
    network = under_autocast(module_of(graph, values, types), types, device)
    dtypes = {name: getattr(torch, graph.tensors[name].dtype) for name in graph.inputs}

    @torch.inference_mode()
    def outputs(inputs: Arrays) -> Any:
        tensors = [
            torch.from_numpy(inputs[name]).to(device, dtype, copy=True)
            for name, dtype in dtypes.items()
        ]
        return network(*tensors).float().cpu().numpy()

    return outputs


def optimizer_of(name: str, weights: Iterable[Tensor], dtype: str) -> torch.optim.Optimizer:
    """Return torch's optimizer of that name over `weights` of type `dtype`."""
    kind, settings = _OPTIMIZERS[name]
    if kind is not torch.optim.SGD:
        settings = {**settings, "eps": synthetic.optimizer_epsilon(dtype)}
    return kind(weights, lr=synthetic.LEARNING_RATE, **settings)


_OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": synthetic.MOMENTUM}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": synthetic.RMSPROP_DECAY}),
    "adam": (torch.optim.Adam, {"betas": synthetic.ADAM_DECAYS}),
}
