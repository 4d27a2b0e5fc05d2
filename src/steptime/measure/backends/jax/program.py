"""A step as one pure function: weights and input in, loss and new weights out."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.measure import synthetic
from steptime.measure.backends.jax.kinds import RANDOM_KINDS, RUNS, STATISTICS_INPUTS
from steptime.measure.interpreter import TableCall, interpret, list_calls
from steptime.measure.synthetic import ADAM_DECAYS, LEARNING_RATE, MOMENTUM, RMSPROP_DECAY
from steptime.network.ops.optimizers import STATES

Arrays = Mapping[str, Any]  # by the name of the tensor
Tensors = dict[str, Array]  # as above, of a result
UPDATE = "optimizer"  # the scope of all updates
EXCHANGE = "exchange"  # that of gradients
REPLICAS = "replicas"  # the axis of devices


class Carry(NamedTuple):
    """The state that one step hands to the next: all that training changes.

    Attributes:
        weights: the weights by name.
        states: the states of the optimizer of each weight, in its order.
        buffers: the buffers by name.
        count: the number of steps so far.
    """

    weights: Tensors
    states: dict[str, list[Array]]
    buffers: Tensors
    count: Any


Network = Callable[[Carry, Arrays], tuple[Array, Tensors]]


def network_of(graph: Graph, seed: int = 0, strategy: str = "") -> Network:
    """Return the function of a forward graph: carry and inputs -> output, buffers.

    The buffers that it gives hold the new running statistics; the count says the masks of dropout.
    Every op runs in a scope of its name. Raises `UnsupportedError` for kinds without a function.
    """
    calls = list_calls(graph, RUNS, "jax")

    def network(carry: Carry, inputs: Arrays) -> tuple[Array, Tensors]:
        tensors_by_name = {**inputs, **carry.weights, **carry.buffers}
        buffers = dict(carry.buffers)
        key = jax.random.fold_in(jax.random.key(seed), carry.count)
        if strategy:  # each replica has masks of its own
            key = jax.random.fold_in(key, lax.axis_index(REPLICAS))

        def apply(call: TableCall, tensors: list[Any]) -> Any:
            nonlocal key
            if call.kind in RANDOM_KINDS:  # takes a key for random numbers as its last input
                key, op_key = jax.random.split(key)
                tensors = [*tensors, op_key]
            with jax.named_scope(call.op_name):
                result = call.function(*tensors, **call.attrs)
            # Batch norm in training also returns new running statistics, in place of these inputs.
            if call.kind in STATISTICS_INPUTS and isinstance(result, tuple):
                result, *statistics = result
                names = (call.inputs[index] for index in STATISTICS_INPUTS[call.kind])
                buffers.update(zip(names, statistics, strict=True))
            return result

        interpret(calls, tensors_by_name, apply)
        return tensors_by_name[graph.outputs[0]], buffers

    return network


def output_of(graph: Graph, seed: int = 0, strategy: str = "") -> Callable[[Carry, Arrays], Array]:
    """Return the function of an inference graph: carry and inputs -> output."""
    network = network_of(graph, seed, strategy)
    return lambda carry, inputs: network(carry, inputs)[0]


def training_step(
    graph: Graph, optimizer: str, seed: int = 0, strategy: str = ""
) -> Callable[[Carry, Arrays], tuple[Array, Carry]]:
    """Return the function of a step: carry and inputs -> loss and all that the next one needs."""
    network = network_of(graph, seed, strategy)

    def step(carry: Carry, inputs: Arrays) -> tuple[Array, Carry]:
        loss, run_backward, buffers = run_forward(network, carry, inputs)
        loss_grad = jnp.ones_like(loss)
        (replica_grads, *_) = run_backward(loss_grad)
        grads = average(replica_grads, strategy)
        return loss, apply_update(optimizer, carry, buffers, grads)

    return step


def run_forward(network: Network, carry: Carry, inputs: Arrays) -> tuple[Array, Any, Tensors]:
    """Return the loss, the function of the backward pass, and buffers.

    The function takes the gradient of the loss, and returns the gradients of weights.
    """

    def of_weights(weights: Tensors) -> tuple[Array, Tensors]:
        return network(carry._replace(weights=weights), inputs)

    loss, backward, buffers = jax.vjp(of_weights, carry.weights, has_aux=True)
    return loss, backward, buffers


def average(grads: Arrays, strategy: str) -> Any:
    """Return gradients as the strategy of the replicas has them; one has none."""
    with jax.named_scope(EXCHANGE):
        return lax.pmean(grads, REPLICAS) if strategy == "allreduce" else grads


def apply_update(optimizer: str, carry: Carry, buffers: Tensors, grads: Arrays) -> Carry:
    """Apply the optimizer; return the weights, states and buffers of the next step."""
    with jax.named_scope(UPDATE):
        count = carry.count + 1
        updates = {
            name: _update_of(optimizer)(count, w, grads[name], *carry.states[name])
            for name, w in carry.weights.items()
        }
    new_weights = {}
    new_states = {}
    for name, update in updates.items():
        dtype = carry.weights[name].dtype
        weight, *states = (array.astype(dtype) for array in update)
        new_weights[name] = weight
        new_states[name] = states
    return Carry(new_weights, new_states, buffers, count)


def _rmsprop(_: Array, w: Array, grad: Array, square: Array) -> tuple[Array, ...]:
    square = RMSPROP_DECAY * square + (1 - RMSPROP_DECAY) * grad * grad
    root = jnp.sqrt(square) + synthetic.optimizer_epsilon(w.dtype.name)
    return w - LEARNING_RATE * grad / root, square


def _momentum(_: Array, w: Array, grad: Array, velocity: Array) -> tuple[Array, ...]:
    velocity = MOMENTUM * velocity + grad
    return w - LEARNING_RATE * velocity, velocity


def _adam(count: Array, w: Array, grad: Array, first: Array, second: Array) -> tuple[Array, ...]:
    step_count = count.astype(jnp.promote_types(w.dtype, jnp.float32))
    first_decay, second_decay = ADAM_DECAYS
    first = first_decay * first + (1 - first_decay) * grad
    second = second_decay * second + (1 - second_decay) * grad * grad
    # The moments start at 0: both are divided by 1 - decay^count.
    first_correction = -jnp.expm1(step_count * float(np.log(first_decay)))
    second_correction = -jnp.expm1(step_count * float(np.log(second_decay)))
    epsilon = synthetic.optimizer_epsilon(w.dtype.name)
    root = jnp.sqrt(second) / jnp.sqrt(second_correction) + epsilon
    return w - (LEARNING_RATE / first_correction) * first / root, first, second


def _adamw(count: Array, w: Array, grad: Array, *moments: Array) -> tuple[Array, ...]:
    decayed = (1 - LEARNING_RATE * synthetic.WEIGHT_DECAY) * w
    return _adam(count, decayed, grad, *moments)


OPTIMIZERS: dict[str, Callable[..., tuple[Array, ...]]] = {  # count, weight, gradient, states...
    "sgd": lambda _, w, grad: (w - LEARNING_RATE * grad,),
    "momentum": _momentum,
    "rmsprop": _rmsprop,
    "adam": _adam,
    "adamw": _adamw,
}


def _update_of(optimizer: str) -> Callable[..., tuple[Array, ...]]:
    """Return the update of an optimizer; raises `InputError` for one that is not among them."""
    if optimizer not in OPTIMIZERS:
        raise InputError(f"optimizer {optimizer}: JAX runs none like it; nearest: adamw")
    return OPTIMIZERS[optimizer]


def carry_of(graph: Graph, optimizer: str, values: Arrays) -> Carry:
    """Return the weights, states and buffers of the first step."""
    weights, buffers = ({n: values[n] for n in names} for names in (graph.weights, graph.buffers))
    count = STATES.get(optimizer, 0)
    states = {name: [np.zeros_like(w) for _ in range(count)] for name, w in weights.items()}
    return Carry(weights, states, buffers, np.int32(0))
