"""JAX: a step is one program that XLA compiles ahead of time, gradients by `jax.value_and_grad`.

What the timing rests on. Weights and inputs are arguments, which lie on the device: arrays that are
closed over become constants, and XLA computes with them while it compiles. Loss and all that a step
changes are results: what nobody asks for is not computed. And `sync` waits for all of them: a call
returns when it is queued.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from steptime.core.graph import Graph
from steptime.core.workload import Plan, Workload
from steptime.measure import contract, synthetic
from steptime.measure.backends.jax import device as jax_device
from steptime.measure.backends.jax.kinds import RUNS
from steptime.measure.backends.jax.profile import trace_of
from steptime.measure.backends.jax.program import (
    Carry,
    carry_of,
    network_of,
    seed_of,
    training_step,
    updated,
)
from steptime.measure.infeed import HOST_CLOCK, clocked
from steptime.measure.initial import initial_values

__all__ = ["RUNS", "STRATEGIES", "device_facts", "device_product", "prepare", "version"]

STRATEGIES: Mapping[str, Any] = {}  # it runs on one device
jax.config.update("jax_enable_x64", True)  # else 64-bit types become 32-bit without a word


def version() -> str:
    """Return JAX's version."""
    return jax.__version__.partition("+")[0]


def device_product(device: str) -> str:
    """Return the device's name; raises `InputError` for a device that is not here."""
    return jax_device.product(jax_device.find(device))


def device_facts(device: str) -> contract.DeviceFacts:
    """Return what is known of a device."""
    return jax_device.facts(jax_device.find(device))


class Running:
    """A compiled step, the arrays that it goes on from, and the results that are under way."""

    def __init__(self, compiled: Any, carry: Carry, inputs: dict[str, Any], trains: bool) -> None:
        self.compiled, self.carry, self.inputs, self.trains = compiled, carry, inputs, trains
        self.results: list[Any] = []  # the last loss, or all outputs since they were waited for

    def step(self) -> None:
        """Queue a step."""
        if self.trains:
            loss, self.carry = self.compiled(self.carry, self.inputs)
            self.results = [loss]
        else:
            carry = self.carry
            self.results.append(
                self.compiled(carry.weights, carry.buffers, self.inputs, carry.count)[0]
            )

    def sync(self) -> None:
        """Wait for every result: loss, weights, states and statistics, or all outputs."""
        jax.block_until_ready((self.results, self.carry))
        if not self.trains:
            self.results = []


def prepare(
    graph: Graph, workload: Workload, options: contract.Options, feed: contract.Feed | None = None
) -> contract.Prepared:
    """Return the step of a forward graph, compiled for its device, with its values there.

    Raises `InputError` for a device that is not here, `UnsupportedError` for a kind, type or plan
    that cannot be run, `OutOfMemoryError` where the weights and inputs do not fit.
    """
    device = jax_device.find(options.device)
    _check(workload, options)
    products = "tensorfloat32" if options.tf32 else "highest"
    jax.config.update("jax_default_matmul_precision", products)
    trains = workload.phase == "train"
    scaled = trains and workload.dtype == "float16-mixed"
    network = network_of(graph, options.seed)
    with _translated():
        values = initial_values(graph, options.seed, jnp.dtype)
        put = partial(jax.device_put, device=device, may_alias=False)
        made = carry_of(graph, workload.optimizer, values.__getitem__, np.zeros_like, scaled)
        carry = put(made)
        inputs = {name: put(values[name]) for name in graph.inputs}
        began = perf_counter()
        if trains:
            step = jax.jit(training_step(graph, workload.optimizer, options.seed), donate_argnums=0)
            compiled = step.lower(carry, inputs).compile()
        else:
            arguments = (carry.weights, carry.buffers, inputs, carry.count)
            compiled = jax.jit(network).lower(*arguments).compile()
        compile_s = perf_counter() - began
        running = Running(compiled, carry, inputs, trains)
        running.sync()
    take, waited = _input(graph, running, values, put, options, feed)
    meter = jax_device.MemoryMeter(device, compiled)

    @_translated()
    def whole() -> None:
        if take:
            take()
        running.step()

    facts = {
        "jax": jax.__version__,
        "compile": "XLA, the whole step as one program",
        "compile_s": compile_s,
        "platform_version": str(device.client.platform_version).partition("\n")[0],
        "matmul_precision": products,
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "parts": "forward, backward and update are three programs; the step is one",
        "learning_rate": synthetic.LEARNING_RATE if trains else None,
        "loss_scaling": "as torch.amp.GradScaler" if scaled else None,
    }
    return contract.Prepared(
        step=whole,
        sync=_translated()(running.sync),
        product=jax_device.product(device),
        memory=meter.read,
        reset_memory=meter.reset,
        parts=_parts(network, workload.optimizer, running),
        waited=waited,
        loss=(lambda: float(running.results[0])) if trains else None,
        inference=partial(_inference, running),
        facts=facts | ({"input_clock": HOST_CLOCK} if take else {}),
        trace=partial(trace_of, running, [op.name for op in graph.ops]),
    )


def _check(workload: Workload, options: contract.Options) -> None:
    if workload.plan != Plan():
        raise contract.UnsupportedError("jax runs on one device here, without a parallel plan")
    if options.compile:
        raise contract.UnsupportedError("jax compiles every step: leave out --compile")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Name errors of XLA as what they mean: missing memory, and what a device has no code for."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        text = str(error).strip().partition("\n")[0]
        if "RESOURCE_EXHAUSTED" in text:
            raise contract.OutOfMemoryError(text) from error
        if "UNIMPLEMENTED" in text:
            raise contract.UnsupportedError(f"XLA has no code for it here: {text}") from error
        raise


def _input(
    graph: Graph,
    running: Running,
    values: Mapping[str, Any],
    put: Callable[[Any], Any],
    options: contract.Options,
    feed: contract.Feed | None,
) -> tuple[Callable[[], None] | None, Callable[[], float] | None]:
    """Return what copies a step's input to the device, and how long steps have waited for it."""
    if options.input == "device":
        return None, None
    made = {name: values[name] for name in graph.inputs}

    def take() -> None:
        given = feed.next() if feed else made
        for name, array in given.items():
            typed = np.asarray(array).astype(jnp.dtype(graph.tensors[name].dtype), copy=False)
            running.inputs[name] = put(typed)
        jax.block_until_ready(running.inputs)

    return clocked(take)


def _parts(
    network: Callable[..., Any], optimizer: str, running: Running
) -> dict[str, Callable[[], None]]:
    """Return the parts of a step, each a program; it goes on from what the one before has left."""
    if not running.trains:
        return {"forward": running.step}
    held: dict[str, Any] = {}

    @jax.jit
    def forward_of(weights: Any, *given: Any) -> Any:
        return jax.vjp(lambda w: network(w, *given), weights, has_aux=True)

    backward_of = jax.jit(lambda back, loss, carry: back(seed_of(carry, loss))[0])
    update_of = jax.jit(partial(updated, optimizer), donate_argnums=0)

    @_translated()
    def forward() -> None:
        carry = running.carry
        loss, held["back"], held["buffers"] = forward_of(
            carry.weights, carry.buffers, running.inputs, carry.count
        )
        running.results = [loss]

    @_translated()
    def backward() -> None:
        held["grads"] = backward_of(held.pop("back"), running.results[0], running.carry)
        running.results = [running.results[0], held["grads"]]

    @_translated()
    def update() -> None:
        del running.results[1:]
        running.carry = update_of(running.carry, held.pop("buffers"), held.pop("grads"))

    return {"forward": forward, "backward": backward, "update": update}


def _inference(running: Running, graph: Graph) -> Callable[[contract.Arrays], Any]:
    """Return the function of an inference graph over the weights that training has now."""
    network = jax.jit(network_of(graph))

    def outputs(inputs: contract.Arrays) -> Any:
        typed = {
            name: jnp.asarray(array, jnp.dtype(graph.tensors[name].dtype))
            for name, array in inputs.items()
        }
        carry = running.carry
        return np.asarray(network(carry.weights, carry.buffers, typed, carry.count)[0], np.float32)

    return outputs
