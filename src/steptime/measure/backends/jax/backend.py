"""JAX: a step is one program that XLA compiles ahead of time, gradients by `jax.vjp`.

What the timing rests on. Weights and inputs are arguments, which lie on the device: arrays that are
closed over become constants, and XLA computes with them while it compiles. Loss and all that a step
changes are results: what nobody asks for is not computed. And `sync` waits for all of them: a call
returns when it is queued.

Several replicas are devices of this process (`Spread`), a mesh of one axis over which the batch is
sharded and weights are replicated; the step is one program of all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.measure import contract, synthetic
from steptime.measure.backends.jax import device as jax_device
from steptime.measure.backends.jax import program
from steptime.measure.backends.jax.kinds import RUNS
from steptime.measure.backends.jax.profile import trace_of
from steptime.measure.infeed import HOST_CLOCK, clocked, in_turn
from steptime.measure.initial import initial_values

__all__ = ["RUNS", "STRATEGIES", "device_facts", "meant", "prepare"]

STRATEGIES = ("allreduce", "independent")
SAME = P()  # on every device
jax.config.update("jax_enable_x64", True)  # else 64-bit types become 32-bit without a word


def device_facts(device: str) -> contract.DeviceFacts:
    """Return what is known of a device."""
    return jax_device.facts(jax_device.find(device)[0])


def meant(error: Exception) -> Exception | None:
    """Return what an error of XLA means: missing memory, and what a device has no code for."""
    text = str(error).strip().partition("\n")[0]
    if not isinstance(error, jax.errors.JaxRuntimeError):
        return None
    if "RESOURCE_EXHAUSTED" in text:
        return contract.OutOfMemoryError(text)
    if "UNIMPLEMENTED" in text:
        return contract.UnsupportedError(f"XLA has no code for it here: {text}")
    return None


class Spread:
    """The devices of a step, each with a replica that has the same weights and inputs of its own.

    What a program is given and gives lies on each device as that has it, `inputs` one behind the
    other. JAX is told that the rest is the same everywhere: true of weights that `allreduce` keeps
    so; statistics of batch norm, and all that is `independent`, are each replica's own.
    """

    def __init__(self, devices: list[jax.Device]) -> None:
        self.mesh = Mesh(np.array(devices), (program.REPLICAS,)) if len(devices) > 1 else None
        self.place: Any = NamedSharding(self.mesh, P()) if self.mesh else devices[0]

    def put(self, values: Any) -> Any:
        """Return values on every device."""
        return jax.device_put(values, self.place, may_alias=False)

    def put_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return inputs, each sharded along its first axis."""
        specs = self.specs(inputs)
        places = {n: NamedSharding(self.mesh, specs[n]) if self.mesh else self.place for n in specs}
        made: dict[str, Any] = jax.device_put(dict(inputs), places, may_alias=False)
        return made

    def specs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return how inputs are sharded; one without an axis is the same for all."""
        return {name: P(program.REPLICAS) if np.ndim(one) else P() for name, one in inputs.items()}

    def jit(self, function: Callable[..., Any], specs: Any = SAME, **how: Any) -> Any:
        """Return a function compiled for the devices, `specs` those of its arguments."""
        if self.mesh:
            about = {"mesh": self.mesh, "in_specs": specs, "out_specs": SAME}
            function = jax.shard_map(function, **about, check_vma=False)
        return jax.jit(function, **how)


class Running:
    """A compiled step, the arrays that it goes on from, and the results that are under way.

    One that `waits` ends before the next is queued: of several devices of a CPU, which share its
    threads, one would fill them with steps that wait for another.
    """

    def __init__(
        self, compiled: Any, carry: program.Carry, inputs: dict[str, Any], trains: bool, waits: bool
    ) -> None:
        self.compiled, self.carry, self.inputs, self.trains = compiled, carry, inputs, trains
        self.waits, self.compile_s = waits, 0.0
        self.results: list[Any] = []  # the last loss, or all outputs since they were waited for

    def step(self) -> None:
        """Queue a step."""
        made = self.compiled(self.carry, self.inputs)
        if self.trains:
            loss, self.carry = made
            self.results = [loss]
        else:
            self.results.append(made)
        if self.waits:
            self.sync()

    def sync(self) -> None:
        """Wait for every result: loss, weights, states and statistics, or all outputs."""
        jax.block_until_ready((self.results, self.carry))
        if not self.trains:
            self.results = []


def prepare(
    graph: Graph, workload: Workload, options: contract.Options, feed: contract.Feed | None = None
) -> contract.Prepared:
    """Return the step of a forward graph, compiled for its devices, with its values there."""
    replicas = workload.plan.data
    devices = jax_device.find(options.device, replicas)
    contract.check_plan("jax", STRATEGIES, workload, options)
    contract.refuse(
        {
            "jax always compiles: leave out --compile": options.compile,
            "XLA says what overlaps: leave out --no-overlap": replicas > 1 and not options.overlap,
            "replicas of jax have no data set: --input device or host": replicas > 1
            and options.input == "dataset",
        }
    )
    on_cpu = devices[0].platform == "cpu"
    products = "tensorfloat32" if options.tf32 else "highest"
    jax.config.update("jax_default_matmul_precision", products)
    trains = workload.phase == "train"
    scaled = trains and workload.dtype == "float16-mixed"
    spread, strategy = Spread(devices), options.strategy if replicas > 1 else ""
    given = _inputs(graph, options.seed, replicas)

    def start(how: str) -> Running:
        values = initial_values(graph, options.seed, jnp.dtype)
        carry = spread.put(program.carry_of(graph, workload.optimizer, values, scaled))
        inputs, specs = spread.put_inputs(given), spread.specs(given)
        began = perf_counter()
        if trains:
            step = program.training_step(graph, workload.optimizer, options.seed, how)
            jitted = spread.jit(step, (SAME, specs), donate_argnums=0)
        else:
            jitted = spread.jit(program.output_of(graph, options.seed, how), (SAME, specs))
        made = Running(
            jitted.lower(carry, inputs).compile(), carry, inputs, trains, replicas > 1 and on_cpu
        )
        made.compile_s = perf_counter() - began
        return made

    running = start(strategy)
    running.sync()
    others: list[Running] = []

    def alone() -> Callable[[], None]:
        others.append(start("independent"))
        return others[0].step

    def sync() -> None:
        for one in (running, *others):
            one.sync()

    def take() -> None:
        arrays = feed.next() if feed else given
        typed = {n: np.asarray(one, jnp.dtype(graph.tensors[n].dtype)) for n, one in arrays.items()}
        running.inputs.update(spread.put_inputs(typed))
        jax.block_until_ready(running.inputs)

    timed, waited = (None, None) if options.input == "device" else clocked(take)
    memory, reset_memory = jax_device.memory_meter(devices[0], running.compiled)

    facts = {
        "jax": jax.__version__,
        "compile": "XLA, the whole step as one program",
        "compile_s": running.compile_s,
        "platform_version": str(devices[0].client.platform_version).partition("\n")[0],
        "matmul_precision": products,
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "parts": "forward, backward and update are three programs; the step is one",
        "learning_rate": synthetic.LEARNING_RATE if trains else None,
        "loss_scaling": "as torch.amp.GradScaler" if scaled else None,
    }
    group = None
    if replicas > 1:
        exchanges = strategy == "allreduce"
        pairs = "exposed: step with exchange less step of a copy without, in turns"
        group = contract.ProcessGroup(  # this process decides for all, and has one time of them
            rank=0,
            size=replicas,
            backend="xla",
            agree=lambda number: number,
            gather=lambda value: [value] * replicas,
            comm_meter=pairs if exchanges else "nothing is exchanged",
            comm_s=None if exchanges else lambda: 0.0,
            alone=alone if exchanges else None,
        )
    network = program.network_of(graph, options.seed, strategy)
    return contract.Prepared(
        step=in_turn(timed, running.step),
        sync=sync if replicas > 1 else running.sync,
        memory=memory,
        reset_memory=reset_memory,
        parts=_parts(network, workload, running, spread, strategy),
        waited=waited,
        loss=(lambda: float(running.results[0])) if trains else None,
        inference=partial(_inference, running),
        facts=facts | ({"input_clock": HOST_CLOCK} if timed else {}),
        group=group,
        trace=partial(trace_of, running, [op.name for op in graph.ops]),
    )


def _inputs(graph: Graph, seed: int, replicas: int) -> dict[str, Any]:
    """Return the inputs of all replicas, one behind the other, each drawn by a seed of its own."""
    alone = replace(graph, weights=(), buffers=())
    each = [initial_values(alone, seed + number, jnp.dtype) for number in range(replicas)]
    return {
        name: np.concatenate([one[name] for one in each]) if np.ndim(first) else first
        for name, first in each[0].items()
    }


def _parts(
    network: program.Network, workload: Workload, running: Running, spread: Spread, strategy: str
) -> dict[str, Callable[[], None]]:
    """Return the parts of a step, each a program; it goes on from what the one before has left."""
    if not running.trains:
        return {"forward": running.step}
    held: dict[str, Any] = {}

    def backwards(back: Any, loss: Any, carry: program.Carry) -> Any:
        return program.averaged(back(program.seed_of(carry, loss))[0], strategy)

    forward_of = spread.jit(
        partial(program.forwards, network), (SAME, spread.specs(running.inputs))
    )
    backward_of = spread.jit(backwards)
    update_of = spread.jit(partial(program.updated, workload.optimizer), donate_argnums=0)

    def forward() -> None:
        loss, held["back"], held["buffers"] = forward_of(running.carry, running.inputs)
        running.results = [loss]

    def backward() -> None:
        held["grads"] = backward_of(held.pop("back"), running.results[0], running.carry)
        running.results = [running.results[0], held["grads"]]

    def update() -> None:
        del running.results[1:]
        running.carry = update_of(running.carry, held.pop("buffers"), held.pop("grads"))

    return {"forward": forward, "backward": backward, "update": update}


def _inference(running: Running, graph: Graph) -> Callable[[contract.Arrays], Any]:
    """Return the function of an inference graph over the weights that training has now."""
    network = jax.jit(program.output_of(graph))

    def outputs(inputs: contract.Arrays) -> Any:
        typed = {
            name: jnp.asarray(array, jnp.dtype(graph.tensors[name].dtype))
            for name, array in inputs.items()
        }
        return np.asarray(network(running.carry, typed), np.float32)

    return outputs
