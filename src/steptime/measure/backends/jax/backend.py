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
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from numpy.typing import NDArray

from steptime.core.errors import InputError, shorten
from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.measure import contract, machine, synthetic
from steptime.measure.backends.jax import program
from steptime.measure.backends.jax.kinds import RUNS
from steptime.measure.backends.jax.profile import trace_of
from steptime.measure.backends.jax.spread import REPLICATED, JaxSpread
from steptime.measure.infeed import chain_calls, time_input
from steptime.measure.synthetic import initial_values

__all__ = ["RUNS", "STRATEGIES", "device_facts", "prepare", "translate_error"]

STRATEGIES = ("allreduce", "independent")
PLATFORMS = {"cpu": "cpu", "cuda": "cuda,cpu", "tpu": "tpu,cpu"}  # what is started for a device
_PEAK = "peak_bytes_in_use"
jax.config.update("jax_enable_x64", True)  # else 64-bit types become 32-bit without a word


def find(name: str, count: int = 1) -> list[jax.Device]:
    """Return the device of `cpu`, `cuda[:n]` or `tpu[:n]`, or the first `count` of its kind.

    A CPU is as many devices as are asked for before it is first used. Raises `InputError` for less.
    """
    kind, colon, _ = name.partition(":")
    if colon and count > 1:
        raise InputError(f"{shorten(name)} is one device; replicas run on '{kind}', one on each")
    if kind in PLATFORMS:
        # Takes effect until JAX starts its first platform; later the started ones stay.
        jax.config.update("jax_platforms", PLATFORMS[kind])
    if kind == "cpu" and count > 1:
        # JAX splits a CPU into so many devices, but refuses to once the CPU is in use.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)
    try:
        devices = jax.devices(kind) if kind in PLATFORMS else []
    except RuntimeError:
        devices = []
    if count > 1 and len(devices) >= count:
        return devices[:count]
    device_counts = {"cpu": 1}
    if count == 1 and devices and kind != "cpu":
        device_counts[kind] = len(devices)
    # With too few devices for `count` replicas the message says "2 x cuda is not available".
    label = name if count == 1 else f"{count} x {name}"
    try:
        _, index = contract.pick_device(label, device_counts, "to jax")
    except InputError:
        # Otherwise every later call of JAX would try to start the absent platform again, and fail.
        jax.config.update("jax_platforms", "cpu")
        raise
    return [devices[index]]


def device_facts(device: str) -> contract.DeviceFacts:
    """Return the facts of a device."""
    jax_device = find(device)[0]
    if jax_device.platform == "cpu":
        return machine.host_facts()
    stats = jax_device.memory_stats() or {}
    limit_bytes = stats.get("bytes_limit")
    used_bytes = stats.get("bytes_in_use", 0)
    capability = re.match(r"\d+", str(getattr(jax_device, "compute_capability", "")))
    # Compute capability 8 is NVIDIA's Ampere, the first generation with TF32.
    is_ampere_or_newer = capability is not None and int(capability[0]) >= 8
    return contract.DeviceFacts(
        str(jax_device.device_kind),
        memory_bytes=limit_bytes,
        room_bytes=limit_bytes and limit_bytes - used_bytes,  # None where the limit is unknown
        cache_bytes=None,
        is_accelerator=True,
        has_tf32=jax_device.platform == "tpu" or is_ampere_or_newer,
    )


def translate_error(error: Exception) -> Exception | None:
    """Return the error of `contract` for one of XLA: no memory, or no code for the device."""
    text = str(error).strip().partition("\n")[0]
    if not isinstance(error, jax.errors.JaxRuntimeError):  # not of XLA
        return None
    if "RESOURCE_EXHAUSTED" in text:
        return contract.OutOfMemoryError(text)
    if "UNIMPLEMENTED" in text:
        return contract.UnsupportedError(f"XLA has no code for it here: {text}")
    return None


class Running:
    """A compiled step, the arrays that it goes on from, and the results that are under way.

    One that `waits` ends before the next is queued: of several devices of a CPU, which share its
    threads, one would fill them with steps that wait for another.
    """

    def __init__(
        self,
        compiled: Any,
        carry: program.Carry,
        inputs: dict[str, jax.Array],
        trains: bool,
        waits: bool,
    ) -> None:
        self.compiled, self.carry, self.inputs, self.trains = compiled, carry, inputs, trains
        self.waits = waits  # whether each step ends before the next is queued
        self.results: list[Any] = []  # the last loss, or all outputs since they were waited for

    def step(self) -> None:
        """Queue a step."""
        if self.trains:
            loss, self.carry = self.compiled(self.carry, self.inputs)
            self.results = [loss]
        else:
            self.results.append(self.compiled(self.carry, self.inputs))
        # Devices of a CPU share its threads, which queued steps that wait for others would fill.
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
    """Compile the step of a forward graph for its devices, with its values there."""
    replicas = workload.plan.data
    devices = find(options.device, replicas)
    _check(workload, options)
    matmul_precision = "tensorfloat32" if options.tf32 else "highest"
    jax.config.update("jax_default_matmul_precision", matmul_precision)
    trains = workload.phase == "train"
    spread = JaxSpread(devices)  # puts weights on all devices, and a part of the batch on each
    strategy = options.strategy if replicas > 1 else ""
    host_inputs = _inputs(graph, options.seed, replicas)
    running, compile_s = _compile(graph, workload, options, spread, host_inputs)
    running.sync()
    syncs = [running.sync]

    # A second compiled step whose replicas exchange nothing; `sync` then waits for both.
    def step_without_exchange() -> Callable[[], None]:
        copy = prepare(graph, workload, replace(options, strategy="independent"), feed)
        syncs.append(copy.sync)
        return copy.step

    def sync() -> None:
        for wait in syncs:
            wait()

    def load_batch() -> None:
        arrays = feed.next() if feed else host_inputs
        typed = {
            name: np.asarray(array, jnp.dtype(graph.tensors[name].dtype))
            for name, array in arrays.items()
        }
        running.inputs.update(spread.put_inputs(typed))
        jax.block_until_ready(running.inputs)

    # The input "device" lies there from the start: no step waits for it.
    timed_load, waited = (None, None) if options.input == "device" else time_input(load_batch)
    memory, reset_memory = memory_meter(devices[0])
    network = program.network_of(graph, options.seed, strategy)
    return contract.Prepared(
        step=chain_calls(timed_load, running.step),
        sync=sync if replicas > 1 else running.sync,
        memory=memory,
        reset_memory=reset_memory,
        parts=_parts(network, workload, running, spread, strategy),
        waited=waited,
        loss=(lambda: float(running.results[0])) if trains else None,
        inference=partial(_inference, running),
        facts=_facts(devices[0], matmul_precision, compile_s, trains),
        group=_group(replicas, strategy, step_without_exchange) if replicas > 1 else None,
        trace=partial(trace_of, running, [op.name for op in graph.ops]),
        planned_bytes=planned_bytes(running.compiled),
    )


def _check(workload: Workload, options: contract.Options) -> None:
    """Raise `UnsupportedError` for a workload or options that JAX does not run here."""
    has_replicas = workload.plan.data > 1
    needs_scaling = workload.phase == "train" and workload.dtype == "float16-mixed"
    contract.check_plan("jax", STRATEGIES, workload, options)
    contract.refuse(
        {
            "jax always compiles: leave out --compile": options.compile,
            "jax scales no loss: train in bfloat16-mixed": needs_scaling,
            "XLA says what overlaps: leave out --no-overlap": has_replicas and not options.overlap,
            "replicas of jax have no data set: --input device or host": has_replicas
            and options.input not in ("device", "host"),
        }
    )


def _compile(
    graph: Graph,
    workload: Workload,
    options: contract.Options,
    spread: JaxSpread,
    host_inputs: Mapping[str, Any],
) -> tuple[Running, float]:
    """Compile the step ahead of time, and return it with its values and the seconds it took."""
    replicas = workload.plan.data
    trains = workload.phase == "train"
    strategy = options.strategy if replicas > 1 else ""
    values = initial_values(graph, options.seed, jnp.dtype)
    carry = spread.put(program.carry_of(graph, workload.optimizer, values))
    inputs = spread.put_inputs(host_inputs)
    if trains:
        step: Any = program.training_step(graph, workload.optimizer, options.seed, strategy)
    else:
        step = program.output_of(graph, options.seed, strategy)
    start_s = perf_counter()
    specs = (REPLICATED, spread.specs(host_inputs))
    # A training step may overwrite its first argument, the carry, with the new one.
    jitted = spread.jit(step, specs, donate_argnums=(0,) if trains else ())
    compiled = jitted.lower(carry, inputs).compile()
    compile_s = perf_counter() - start_s
    is_cpu = find(options.device, replicas)[0].platform == "cpu"
    running = Running(compiled, carry, inputs, trains, waits=replicas > 1 and is_cpu)
    return running, compile_s


def _facts(
    device: jax.Device, matmul_precision: str, compile_s: float, trains: bool
) -> dict[str, object]:
    """Return the versions and settings of JAX that change numbers."""
    return {
        "jax": jax.__version__,
        "compile": "XLA, the whole step as one program",
        "compile_s": compile_s,
        "platform_version": str(device.client.platform_version).partition("\n")[0],
        "matmul_precision": matmul_precision,
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "parts": "forward, backward and update are three programs; the step is one",
        "learning_rate": synthetic.LEARNING_RATE if trains else None,
    }


def _group(
    replicas: int, strategy: str, step_without_exchange: Callable[[], Callable[[], None]]
) -> contract.ProcessGroup:
    """Return the group of replicas in this process, which decides for all and has one time."""
    exchanges = strategy == "allreduce"
    paired_meter = "exposed: step with exchange less step of a copy without, in turns"
    return contract.ProcessGroup(
        rank=0,
        size=replicas,
        backend="xla",
        broadcast=lambda number: number,  # one process drives all replicas: nothing is to be agreed
        gather=lambda value: [value] * replicas,
        comm_meter=paired_meter if exchanges else "nothing is exchanged",
        communication_s=None if exchanges else lambda: 0.0,
        make_step_without_exchange=step_without_exchange if exchanges else None,
    )


def planned_bytes(compiled: Any) -> int | None:
    """Return the bytes of arguments, outputs and temporaries that XLA has planned; None: no plan.

    What is donated counts once.
    """
    plan = compiled.memory_analysis()
    if plan is None:
        return None
    new_bytes = plan.output_size_in_bytes + plan.temp_size_in_bytes - plan.alias_size_in_bytes
    return int(plan.argument_size_in_bytes + new_bytes)


def memory_meter(device: jax.Device) -> tuple[contract.Peak, Callable[[], None]]:
    """Return a reader of the peak bytes of a step with the meter's name, and its reset.

    The peak is None on a CPU, and on a device whose peak is that of an earlier network: JAX cannot
    reset it.
    """
    before = 0

    def peak() -> int:
        return int((device.memory_stats() or {}).get(_PEAK, 0))

    def reset() -> None:
        nonlocal before
        before = peak()

    def read() -> tuple[int | None, str]:
        peak_bytes = peak()
        # JAX cannot reset its peak: one that has not grown is an earlier network's.
        if peak_bytes > before:
            return peak_bytes, f"memory_stats, {_PEAK}"
        return None, "JAX tells no peak that is this network's"

    reset()
    return read, reset


def _inputs(graph: Graph, seed: int, replicas: int) -> dict[str, NDArray[Any]]:
    """Return the inputs of all replicas, one behind the other, each drawn by a seed of its own."""
    inputs_alone = replace(graph, weights=(), buffers=())
    replica_values = [
        initial_values(inputs_alone, seed + replica, jnp.dtype) for replica in range(replicas)
    ]
    inputs = {}
    for name, first_array in replica_values[0].items():
        has_batch = np.ndim(first_array) > 0  # a number is the same for all replicas
        arrays = [values[name] for values in replica_values]
        inputs[name] = np.concatenate(arrays) if has_batch else first_array
    return inputs


def _parts(
    network: program.Network, workload: Workload, running: Running, spread: JaxSpread, strategy: str
) -> dict[str, Callable[[], None]]:
    """Return the parts of a step, each a program; it goes on from what the one before has left."""
    if not running.trains:
        return {"forward": running.step}
    forward_of = spread.jit(
        partial(program.run_forward, network), (REPLICATED, spread.specs(running.inputs))
    )
    backward_of = spread.jit(partial(_gradients, strategy))
    update_of = spread.jit(partial(program.apply_update, workload.optimizer), donate_argnums=0)
    state = _PassState()

    # Three programs that hand on what the next one needs; the step itself is a single program.
    def forward() -> None:
        loss, state.backward, state.buffers = forward_of(running.carry, running.inputs)
        running.results = [loss]

    def backward() -> None:
        state.grads = backward_of(state.backward, running.results[0])
        state.backward = None  # frees the saved tensors
        running.results = [running.results[0], state.grads]  # `sync` waits for these

    def update() -> None:
        del running.results[1:]  # the gradients, which the update may overwrite
        buffers, grads = state.buffers, state.grads
        state.buffers = state.grads = None
        running.carry = update_of(running.carry, buffers, grads)

    return {"forward": forward, "backward": backward, "update": update}


@dataclass
class _PassState:
    """The results that a part of a step leaves to the next one; each is dropped after its use.

    Attributes:
        backward: the function of the backward pass.
        buffers: the new buffers.
        grads: the gradients of weights.
    """

    backward: Any = None
    buffers: Any = None
    grads: Any = None


def _gradients(strategy: str, backward: Any, loss: Any) -> Any:
    """Return the gradients of weights, averaged as the strategy says."""
    return program.average(backward(jnp.ones_like(loss))[0], strategy)


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
