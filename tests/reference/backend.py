"""numpy: the reference for values, which runs the training graph op by op, as it is counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reference import general, image, kinds, norm, recurrent
from reference.kinds import ALSO_GIVEN, Run, element_type
from steptime.core.errors import InputError, shorten
from steptime.core.graph import Graph
from steptime.core.workload import Plan, Workload
from steptime.measure.contract import (
    Arrays,
    Feed,
    Options,
    OutOfMemoryError,
    Prepared,
    UnsupportedError,
)
from steptime.measure.infeed import time_input
from steptime.measure.interpreter import TableCall, interpret, list_calls
from steptime.measure.synthetic import Fill, angles, list_fills
from steptime.network.ops.training import training_graph

Values = npt.NDArray[Any]

RUNS: dict[str, Run] = {
    **kinds.RUNS,
    **image.RUNS,
    **norm.RUNS,
    **recurrent.RUNS,
    **general.RUNS,
}
STRATEGIES: Mapping[str, Any] = {}  # it runs on one device


def execute(
    graph: Graph,
    values: Mapping[str, Values],
    keep: Collection[str] = (),
    step: int = 1,
    seed: int = 0,
) -> dict[str, Values]:
    """Return the graph's outputs and the tensors in `keep`, from values of what it starts with.

    `step` is the number of the step that Adam's correction asks for, `seed` that of dropout's
    masks. Raises `UnsupportedError` for a kind or a type that numpy does not run here.
    """
    live = dict(values)
    interpret(_calls(graph, keep), live, _given({"step": step, "rng": np.random.default_rng(seed)}))
    return {name: live[name] for name in {*graph.outputs, *keep}}


def _calls(graph: Graph, keep: Collection[str] = ()) -> tuple[TableCall, ...]:
    for dtype in {spec.dtype for spec in graph.tensors.values()}:
        element_type(dtype)
    return list_calls(graph, RUNS, "numpy", keep)


def _given(given: Mapping[str, Any]) -> Callable[[TableCall, list[Any]], Any]:
    """Return what makes a call, with what a kind needs besides its inputs."""

    def apply(call: TableCall, inputs: list[Any]) -> Any:
        also = {name: given[name] for name in ALSO_GIVEN.get(call.kind, ())}
        return call.function(*inputs, **call.attrs, **also)

    return apply


def initial_values(graph: Graph, seed: int) -> dict[str, Values]:
    """Return values for every input, weight and buffer of `graph`, from one generator."""
    rng = np.random.default_rng(seed)
    return {
        name: _DRAWS[fill.kind](graph.tensors[name].shape, fill, rng).astype(
            element_type(graph.tensors[name].dtype)
        )
        for name, fill in list_fills(graph).items()
    }


def _normal(shape: tuple[int, ...], fill: Fill, rng: np.random.Generator) -> Values:
    return rng.standard_normal(shape, np.float32) * np.float32(fill.amount)


def _constant(shape: tuple[int, ...], fill: Fill, _: np.random.Generator) -> Values:
    return np.full(shape, fill.amount)


def _ids(shape: tuple[int, ...], fill: Fill, rng: np.random.Generator) -> Values:
    return rng.integers(0, int(fill.amount), shape)


_DRAWS = {"normal": _normal, "constant": _constant, "ids": _ids, "angles": angles}


def prepare(
    graph: Graph, workload: Workload, options: Options, feed: Feed | None = None
) -> Prepared:
    """Return the step of a forward graph, with its gradients and updates as ops in training.

    The number of threads is the BLAS library's, set before numpy is imported. Raises `InputError`
    for another device than the CPU, `UnsupportedError` for a kind, type or plan that cannot be run.
    """
    if options.device != "cpu":
        raise InputError(f"{shorten(options.device)} is not available to numpy; there is: cpu")
    if workload.plan != Plan():
        raise UnsupportedError("numpy runs on one device, without a parallel plan")
    if options.compile:
        raise UnsupportedError("numpy compiles nothing")
    training = workload.phase == "train"
    whole = training_graph(graph, workload.optimizer) if training else graph
    calls = _calls(whole, _new_values(whole))
    try:
        live = initial_values(whole, options.seed)
    except MemoryError as error:
        raise OutOfMemoryError(str(error)) from error
    parts = _parts(whole, calls, live, options.seed)
    take, waited = _input(graph, live, options, feed)

    def step() -> None:
        if take:
            take()
        for part in parts.values():
            part()

    return Prepared(
        step=step,
        sync=lambda: None,
        parts=parts,
        waited=waited,
        loss=(lambda: float(live[graph.outputs[0]])) if training else None,
        inference=lambda one: _inference(one, live),
        facts={"numpy": np.__version__, "blas": _blas()},
    )


def _input(
    graph: Graph, live: Mapping[str, Values], options: Options, feed: Feed | None
) -> tuple[Callable[[], None] | None, Callable[[], float] | None]:
    """Return what copies a step's input to where the step reads it, and how long that took."""
    if options.input == "device":
        return None, None
    made = {} if feed else {name: live[name].copy() for name in graph.inputs}

    def take() -> None:
        for name, array in (feed.next() if feed else made).items():
            np.copyto(live[name], array, casting="same_kind")

    return time_input(take)


def _inference(graph: Graph, live: Mapping[str, Values]) -> Callable[[Arrays], Values]:
    """Return the function of an inference graph, over the weights in `live` when it is called."""
    if any(op.kind == "batch_norm" for op in graph.ops):
        raise UnsupportedError("numpy keeps no running statistics, so it gives no accuracy here")
    kept = (*graph.weights, *graph.buffers)

    def outputs(inputs: Arrays) -> Values:
        values = {name: live[name] for name in kept}
        return execute(graph, {**values, **_typed(graph, inputs)})[graph.outputs[0]]

    return outputs


def _typed(graph: Graph, inputs: Arrays) -> dict[str, Values]:
    dtypes = {name: element_type(graph.tensors[name].dtype) for name in inputs}
    return {name: array.astype(dtypes[name]) for name, array in inputs.items()}


def _new_values(graph: Graph) -> list[str]:
    return [name for op in graph.ops if op.part == "update" for name in op.outputs]


def _parts(
    graph: Graph, calls: Iterable[TableCall], live: dict[str, Values], seed: int
) -> dict[str, Callable[[], None]]:
    """Return the parts of a step by name; each goes on from what the one before has left."""
    updates = [op for op in graph.ops if op.part == "update"]
    given: dict[str, Any] = {"step": 0, "rng": np.random.default_rng(seed)}

    def part_of(name: str) -> Callable[[], None]:
        own = [call for call in calls if call.part == name]

        def run() -> None:
            try:
                interpret(own, live, _given(given))
            except MemoryError as error:
                raise OutOfMemoryError(str(error)) from error

        return run

    forward, backward = part_of("forward"), part_of("backward")
    if not updates:
        return {"forward": forward}
    apply = part_of("update")

    def update() -> None:
        given["step"] += 1
        apply()
        for op in updates:
            for old, new in zip(op.inputs, op.outputs, strict=False):
                live[old] = live.pop(new)

    return {"forward": forward, "backward": backward, "update": update}


def _blas() -> str:
    """Return the name and version of the library that multiplies matrices."""
    config: Any = np.show_config(mode="dicts")
    found = config["Build Dependencies"]["blas"]
    return f"{found['name']} {found['version']}"
