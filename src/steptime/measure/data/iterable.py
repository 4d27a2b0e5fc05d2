"""Input of a person's own: any iterable of batches, `file.py:make_loader`, waited for each step.

The file runs in the worker, and nowhere else. `make_loader` is called with those of `batch`,
`seed`, `rank` and `replicas` that it names as arguments, and returns an iterable of batches: a
DataLoader, a `tf.data.Dataset`, a generator. When it is exhausted a new epoch begins: it is
iterated again, and a generator, which can be iterated once, is made anew.
"""

import inspect
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from steptime.core.errors import InputError
from steptime.core.graph import Graph, TensorSpec
from steptime.core.python_file import line_of, run_file
from steptime.core.units import counted
from steptime.core.workload import Workload
from steptime.measure.contract import Arrays, BadDataError, Feed


def open_loader(
    graph: Graph, workload: Workload, text: str, seed: int, rank: int = 0
) -> tuple[Feed, Mapping[str, Any]]:
    """Return the batches of `file.py:make_loader` for a forward graph, and what a record says.

    The first batch is taken and checked at once. Raises `InputError` for a file that does not run,
    a name that it has not and what is no iterable, `BadDataError` for a batch that does not fit.
    """
    values = {
        "batch": workload.batch_per_replica,
        "seed": seed,
        "rank": rank,
        "replicas": workload.plan.data,
    }
    make = run_file(text, "input")
    where = Path(text).name
    made = partial(_made, where, make, values)
    batches = made()
    taken = _epochs(where, made, batches, {name: graph.tensors[name] for name in graph.inputs})
    first = [next(taken)]
    facts = {
        "loader": where,
        "loader_class": f"{type(batches).__module__}.{type(batches).__qualname__}",
        "loaders": getattr(batches, "num_workers", None),
    }
    return Feed(lambda: first.pop() if first else next(taken), taken.close), facts


def _made(where: str, make: Any, values: Mapping[str, Any]) -> Iterable[Any]:
    """Return what the function makes, given those of the values that it names."""
    wanted = inspect.signature(make).parameters
    try:
        batches = make(**{key: value for key, value in values.items() if key in wanted})
    except Exception as error:  # whatever the function does
        raise InputError(f"input {where}: {line_of(error)}") from error
    if not isinstance(batches, Iterable):
        raise InputError(f"input {where}: returns {type(batches).__name__}, which is no iterable")
    return batches


def _epochs(
    where: str,
    make: Callable[[], Iterable[Any]],
    batches: Iterable[Any],
    specs: Mapping[str, TensorSpec],
) -> Generator[Arrays, None, None]:
    """Yield batches, epoch after epoch, as arrays by the names of a graph's inputs.

    The processes of a loader end with its iterator, which is let go when this is closed.
    """
    while True:
        given = None
        for given in batches:
            named = _named(where, given, specs)
            yield {name: _array(where, name, one, specs[name]) for name, one in named.items()}
        if given is None:
            raise BadDataError(f"input {where}: gives no batch")
        if isinstance(batches, Iterator):
            batches = make()


def _named(where: str, batch: Any, names: Collection[str]) -> Mapping[str, Any]:
    """Return the values of a batch by input; those beyond the network's inputs are left out."""
    if isinstance(batch, Mapping):
        if lacking := [name for name in names if name not in batch]:
            has = ", ".join(map(str, batch))
            raise BadDataError(f"input {where}: has no '{lacking[0]}', but {has}")
        return {name: batch[name] for name in names}
    values = batch if isinstance(batch, Sequence) else [batch]
    if len(values) < len(names):
        takes = f"the network takes {len(names)}: {', '.join(names)}"
        has = f"a batch has {counted(len(values), 'array')}"
        raise BadDataError(f"input {where}: {has}, {takes}")
    return dict(zip(names, values, strict=False))


def _array(where: str, name: str, value: Any, spec: TensorSpec) -> Any:
    """Return a value as an array of the input's shape; raises `BadDataError`."""
    array = _numpy(value)
    of_floats, wants_floats = array.dtype.kind == "f", "float" in spec.dtype
    of_numbers = array.dtype.kind in "biuf"
    same_rows = array.size == spec.size and array.shape[:1] == spec.shape[:1]
    if not of_numbers or of_floats != wants_floats or not same_rows:
        raise BadDataError(
            f"input {where}: '{name}' is {array.dtype} {list(array.shape)}, "
            f"the network takes {spec.dtype} {list(spec.shape)}"
        )
    return array.reshape(spec.shape)


def _numpy(value: Any) -> Any:
    """Return an array, or a tensor of any framework, as numpy's; bfloat16 as float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.ascontiguousarray(value)
