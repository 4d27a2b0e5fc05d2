"""Input of a person's own: any iterable of batches, `file.py:make_loader`, waited for each step.

The file runs in the worker, and nowhere else. `make_loader` is called with those of `batch`,
`seed`, `rank` and `replicas` that it names as arguments, and returns an iterable of batches: a
DataLoader, a `tf.data.Dataset`, a generator. When it is exhausted a new epoch begins: it is
iterated again, and a generator, which can be iterated once, is made anew. A smaller batch at the
end of an epoch is passed over, as the last images of a data set are.
"""

import inspect
import math
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
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from steptime.core.errors import InputError
from steptime.core.graph import Graph, TensorSpec
from steptime.core.python_file import line_of, run_file
from steptime.core.units import format_count
from steptime.core.workload import Workload
from steptime.measure.contract import Arrays, BadDataError, Feed


def open_loader(
    graph: Graph, workload: Workload, text: str, seed: int, rank: int = 0
) -> tuple[Feed, Mapping[str, Any]]:
    """Return the batches of `file.py:make_loader` for a forward graph, and facts for a record.

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
    loader_name = Path(text).name
    make_batches = partial(_call_loader, loader_name, make, values)
    batches = make_batches()
    specs = {name: graph.tensors[name] for name in graph.inputs}
    arrays = _epochs(loader_name, make_batches, batches, specs)
    first_arrays = next(arrays)  # raises here if the loader's batches do not fit the network
    all_arrays = chain([first_arrays], arrays)
    facts = {
        "loader": loader_name,
        "loader_class": f"{type(batches).__module__}.{type(batches).__qualname__}",
        "loaders": getattr(batches, "num_workers", None),
    }
    return Feed(partial(next, all_arrays), arrays.close), facts


def _call_loader(loader_name: str, make: Any, values: Mapping[str, Any]) -> Iterable[Any]:
    """Call the function with the values that it names as arguments; return its iterable."""
    parameters = inspect.signature(make).parameters
    try:
        batches = make(**{key: value for key, value in values.items() if key in parameters})
    except Exception as error:  # whatever the function does
        raise InputError(f"input {loader_name}: {line_of(error)}") from error
    if not isinstance(batches, Iterable):
        raise InputError(
            f"input {loader_name}: returns {type(batches).__name__}, which is no iterable"
        )
    return batches


def _epochs(
    loader_name: str,
    make: Callable[[], Iterable[Any]],
    batches: Iterable[Any],
    specs: Mapping[str, TensorSpec],
) -> Generator[Arrays, None, None]:
    """Yield batches, epoch after epoch, as arrays by the names of a graph's inputs.

    The processes of a loader end with its iterator, which is let go when this is closed.

    Raises:
        BadDataError: for an epoch without a batch of this size, and for a smaller batch within one.
    """
    while True:
        batch_count = 0
        iterator = iter(batches)
        for batch in iterator:
            values = _values_by_input(loader_name, batch, specs)
            arrays = {name: _numpy(values[name]) for name in specs}
            smaller = _describe_smaller_batch(arrays, specs)
            if smaller:  # the end of an epoch, which is passed over
                _check_last(loader_name, smaller, iterator, batch_count)
                break
            batch_count += 1
            yield {
                name: _fit_array(loader_name, name, array, specs[name])
                for name, array in arrays.items()
            }
        if batch_count == 0:
            raise BadDataError(f"input {loader_name}: gives no batch")
        if isinstance(batches, Iterator):  # a generator cannot be iterated again
            batches = make()


def _describe_smaller_batch(arrays: Arrays, specs: Mapping[str, TensorSpec]) -> str:
    """Return "81 of 4096 examples" for a batch that lacks examples alone, else ""."""
    # (examples of the batch, examples that the network takes); a number has no axis of examples
    size_pairs = {
        (len(array), specs[name].shape[0]) if array.ndim else (0, 0)
        for name, array in arrays.items()
    }
    if len(size_pairs) != 1:  # inputs that disagree are another fault, which `_fit_array` names
        return ""
    ((size, full_size),) = size_pairs
    examples_fit = all(
        array[:1].size == math.prod(specs[name].shape[1:]) for name, array in arrays.items()
    )
    is_smaller_batch = 0 < size < full_size and examples_fit
    return f"{size} of {full_size} examples" if is_smaller_batch else ""


def _check_last(loader_name: str, smaller: str, iterator: Iterator[Any], batch_count: int) -> None:
    """Raise `BadDataError` for a smaller batch that is not the last of several in an epoch."""
    if batch_count == 0:
        raise BadDataError(
            f"input {loader_name}: the first batch has {smaller}: give the loader this batch, or a "
            "smaller --batch"
        )
    is_last_of_epoch = next(iterator, None) is None
    if not is_last_of_epoch:
        raise BadDataError(
            f"input {loader_name}: a batch within an epoch has {smaller}: steps have one size; "
            "drop_last=True of a DataLoader leaves smaller ones out"
        )


def _values_by_input(loader_name: str, batch: Any, names: Collection[str]) -> Mapping[str, Any]:
    """Return the values of a batch by input; those beyond the network's inputs are left out."""
    if isinstance(batch, Mapping):
        missing_names = [name for name in names if name not in batch]
        if missing_names:
            present = ", ".join(map(str, batch))
            raise BadDataError(f"input {loader_name}: has no '{missing_names[0]}', but {present}")
        return {name: batch[name] for name in names}
    values = batch if isinstance(batch, Sequence) else [batch]
    if len(values) < len(names):
        expected = f"the network takes {len(names)}: {', '.join(names)}"
        present = f"a batch has {format_count(len(values), 'array')}"
        raise BadDataError(f"input {loader_name}: {present}, {expected}")
    return dict(zip(names, values, strict=False))


def _fit_array(loader_name: str, name: str, array: Any, spec: TensorSpec) -> Any:
    """Return an array in the input's shape; raises `BadDataError` if it does not fit."""
    is_number = array.dtype.kind in "biuf"  # numpy's truth values, integers and floats
    has_kind = (array.dtype.kind == "f") == ("float" in spec.dtype)
    has_size = array.size == spec.size and array.shape[:1] == spec.shape[:1]
    if not (is_number and has_kind and has_size):
        raise BadDataError(
            f"input {loader_name}: '{name}' is {array.dtype} {list(array.shape)}, "
            f"the network takes {spec.dtype} {list(spec.shape)}"
        )
    return array.reshape(spec.shape)


def _numpy(value: Any) -> Any:
    """Return an array, or a tensor of any framework, as numpy's; bfloat16 as float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.ascontiguousarray(value)
