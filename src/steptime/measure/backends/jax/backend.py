"""JAX: a step is one program that XLA compiles ahead of time, gradients by `jax.vjp`.

What the timing rests on. Weights and inputs are arguments, which lie on the device: arrays that are
closed over become constants, and XLA computes with them while it compiles. Loss and all that a step
changes are results: what nobody asks for is not computed. And `sync` waits for all of them: a call
returns when it is queued.

Several replicas are devices of this process (`JaxSpread`), a mesh of one axis over which the batch
is sharded and weights are replicated; the step is one program of all.
"""

import contextlib
import os
import re
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

from steptime.core.errors import InputError, shorten
from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.measure import contract, machine, synthetic
from steptime.measure.backends.jax import program
from steptime.measure.backends.jax.kinds import RUNS
from steptime.measure.backends.jax.profile import trace_of
from steptime.measure.infeed import clocked, in_turn
from steptime.measure.synthetic import initial_values

__all__ = ["RUNS", "STRATEGIES", "device_facts", "meant", "prepare"]

STRATEGIES = ("allreduce", "independent")
PLATFORMS = {"cpu": "cpu", "cuda": "cuda,cpu", "tpu": "tpu,cpu"}  # what is started for a device
_PEAK = "peak_bytes_in_use"
SAME = P()  # on every device
jax.config.update("jax_enable_x64", True)  # else 64-bit types become 32-bit without a word


def find(name: str, count: int = 1) -> list[jax.Device]:
    """Return the device of `cpu`, `cuda[:n]` or `tpu[:n]`, or the first `count` of its kind.

    A CPU is as many devices as are asked for before it is first used. Raises `InputError` for less.
    """
    kind, colon, _ = name.partition(":")
    if colon and count > 1:
        raise InputError(f"{shorten(name)} is one device; replicas run on '{kind}', one on each")
    if kind in PLATFORMS:
        jax.config.update("jax_platforms", PLATFORMS[kind])  # what was started stays
    if kind == "cpu" and count > 1:
        with contextlib.suppress(RuntimeError):  # it is in use, as so many devices as it has
            jax.config.update("jax_num_cpu_devices", count)
    try:
        found = jax.devices(kind) if kind in PLATFORMS else []
    except RuntimeError:
        found = []
    many = len(found) // count if count > 1 or kind != "cpu" else 1
    counts = {"cpu": 1} | ({kind: many} if many else {})
    try:
        several = count > 1 and not many
        _, first = contract.pick(f"{count} x {name}" if several else name, counts, "to jax")
    except InputError:
        jax.config.update("jax_platforms", "cpu")
        raise
    return found[first : first + count]


def device_facts(device: str) -> contract.DeviceFacts:
    """Return what is known of a device."""
    found = find(device)[0]
    if found.platform == "cpu":
        return machine.host_facts()
    stats = found.memory_stats() or {}
    limit, used = stats.get("bytes_limit"), stats.get("bytes_in_use", 0)
    capability = re.match(r"\d+", str(getattr(found, "compute_capability", "")))
    has_tf32 = found.platform == "tpu" or (capability is not None and int(capability[0]) >= 8)
    product = str(found.device_kind)
    return contract.DeviceFacts(product, limit, limit and limit - used, None, True, has_tf32)


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


class JaxSpread:
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
        self.waits = waits
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
    devices = find(options.device, replicas)
    contract.check_plan("jax", STRATEGIES, workload, options)
    contract.refuse(
        {
            "jax always compiles: leave out --compile": options.compile,
            "jax scales no loss: train in bfloat16-mixed": workload.phase == "train"
            and workload.dtype == "float16-mixed",
            "XLA says what overlaps: leave out --no-overlap": replicas > 1 and not options.overlap,
            "replicas of jax have no data set: --input device or host": replicas > 1
            and options.input not in ("device", "host"),
        }
    )
    on_cpu = devices[0].platform == "cpu"
    products = "tensorfloat32" if options.tf32 else "highest"
    jax.config.update("jax_default_matmul_precision", products)
    trains = workload.phase == "train"
    spread, strategy = JaxSpread(devices), options.strategy if replicas > 1 else ""
    given = _inputs(graph, options.seed, replicas)

    values = initial_values(graph, options.seed, jnp.dtype)
    carry = spread.put(program.carry_of(graph, workload.optimizer, values))
    inputs, specs = spread.put_inputs(given), spread.specs(given)
    if trains:
        step: Any = program.training_step(graph, workload.optimizer, options.seed, strategy)
    else:
        step = program.output_of(graph, options.seed, strategy)
    began = perf_counter()
    jitted = spread.jit(step, (SAME, specs), donate_argnums=(0,) if trains else ())
    compiled = jitted.lower(carry, inputs).compile()
    compile_s = perf_counter() - began
    running = Running(compiled, carry, inputs, trains, replicas > 1 and on_cpu)
    running.sync()
    syncs = [running.sync]

    def alone() -> Callable[[], None]:
        apart = prepare(graph, workload, replace(options, strategy="independent"), feed)
        syncs.append(apart.sync)
        return apart.step

    def sync() -> None:
        for one in syncs:
            one()

    def take() -> None:
        arrays = feed.next() if feed else given
        typed = {n: np.asarray(one, jnp.dtype(graph.tensors[n].dtype)) for n, one in arrays.items()}
        running.inputs.update(spread.put_inputs(typed))
        jax.block_until_ready(running.inputs)

    timed, waited = (None, None) if options.input == "device" else clocked(take)
    memory, reset_memory = memory_meter(devices[0])

    facts = {
        "jax": jax.__version__,
        "compile": "XLA, the whole step as one program",
        "compile_s": compile_s,
        "platform_version": str(devices[0].client.platform_version).partition("\n")[0],
        "matmul_precision": products,
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "parts": "forward, backward and update are three programs; the step is one",
        "learning_rate": synthetic.LEARNING_RATE if trains else None,
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
            communication_s=None if exchanges else lambda: 0.0,
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
        facts=facts,
        group=group,
        trace=partial(trace_of, running, [op.name for op in graph.ops]),
        planned_bytes=planned_bytes(compiled),
    )


def planned_bytes(compiled: Any) -> int | None:
    """Return the bytes of arguments, outputs and temporaries that XLA has planned; None: no plan.

    What is donated counts once.
    """
    plan = compiled.memory_analysis()
    if plan is None:
        return None
    made = plan.output_size_in_bytes + plan.temp_size_in_bytes - plan.alias_size_in_bytes
    return int(plan.argument_size_in_bytes + made)


def memory_meter(device: jax.Device) -> tuple[contract.Peak, Callable[[], None]]:
    """Return what reads the peak bytes of a step and names the meter, and what starts it again.

    The peak is None on a CPU, and on a device whose peak another network has made: JAX cannot set
    it back.
    """
    before = 0

    def peak() -> int:
        return int((device.memory_stats() or {}).get(_PEAK, 0))

    def reset() -> None:
        nonlocal before
        before = peak()

    def read() -> tuple[int | None, str]:
        if (most := peak()) > before:
            return most, f"memory_stats, {_PEAK}"
        return None, "JAX tells no peak that is this network's"

    reset()
    return read, reset


def _inputs(graph: Graph, seed: int, replicas: int) -> dict[str, Any]:
    """Return the inputs of all replicas, one behind the other, each drawn by a seed of its own."""
    alone = replace(graph, weights=(), buffers=())
    each = [initial_values(alone, seed + number, jnp.dtype) for number in range(replicas)]
    return {
        name: np.concatenate([one[name] for one in each]) if np.ndim(first) else first
        for name, first in each[0].items()
    }


def _parts(
    network: program.Network, workload: Workload, running: Running, spread: JaxSpread, strategy: str
) -> dict[str, Callable[[], None]]:
    """Return the parts of a step, each a program; it goes on from what the one before has left."""
    if not running.trains:
        return {"forward": running.step}
    held: dict[str, Any] = {}

    def backwards(back: Any, loss: Any) -> Any:
        return program.averaged(back(jnp.ones_like(loss))[0], strategy)

    forward_of = spread.jit(
        partial(program.forwards, network), (SAME, spread.specs(running.inputs))
    )
    backward_of = spread.jit(backwards)
    update_of = spread.jit(partial(program.updated, workload.optimizer), donate_argnums=0)

    def forward() -> None:
        loss, held["back"], held["buffers"] = forward_of(running.carry, running.inputs)
        running.results = [loss]

    def backward() -> None:
        held["grads"] = backward_of(held.pop("back"), running.results[0])
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
