"""Op kinds that array libraries say in the same words: one table over the modules of a library.

`kinds(array, nn, ...)` takes the module of arrays (`torch`, `jax.numpy`) and that of layers
(`torch.nn.functional`, `jax.nn`). A backend adds what it fuses or says in other words.
"""

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from steptime.measure.contract import UnsupportedError
from steptime.network.ops import elementwise

Run = Callable[..., Any]
Table = Mapping[str, Run]

_OPERATORS = {"div": "truediv", "floor_divide": "floordiv", "and": "and_", "or": "or_"}
_REDUCTIONS = {"max": "amax", "min": "amin"}


def find_elementwise_functions(library: Table, *modules: Any) -> dict[str, Run]:
    """Return the functions of elements by name; one that there is not raises `UnsupportedError`.

    They are those of `library`, else Python's operator of the name, else what the first of its
    modules has under it, with underscores or without.
    """
    run_by_name = dict(library)
    for name in elementwise.FUNCTIONS:
        # Python's operator first, then the library's modules, whose names may lack underscores.
        candidates = [getattr(operator, _OPERATORS.get(name, name), None)]
        for module in modules:
            candidates.append(getattr(module, name, None))
            candidates.append(getattr(module, name.replace("_", ""), None))
        raise_missing = partial(_raise_missing, name)  # when an op calls the function
        run = next((candidate for candidate in candidates if candidate), raise_missing)
        run_by_name.setdefault(name, run)  # what `library` says wins
    return run_by_name


def _raise_missing(name: str, *_: Any, **__: Any) -> Any:
    raise UnsupportedError(f"no function {name} of elements here")


def align_to_axis(vector: Any, x: Any, axis: int = 1) -> Any:
    """Return a vector as an array that lies along an axis of `x`."""
    axes_behind = x.ndim - 1 - axis % x.ndim
    return vector.reshape(-1, *(1,) * axes_behind)


def matmul(
    a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, fold: bool = False
) -> Any:
    """Return the product of two (batches of) matrices."""
    if fold:
        a, b = (x.reshape(-1, x.shape[-1]) for x in (a, b))
    return (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)


def activate(runs: Table, name: str, x: Any) -> Any:
    """Return the activation of an expert, by a library's kinds."""
    if name == "relu2":
        positive = runs["relu"](x)
        return positive * positive
    return runs["gelu"](x, tanh=True) if name == "gelu_tanh" else runs[name](x)


def kinds(
    array: Any, nn: Any, elementwise_functions: Table, prod: Run | None = None
) -> dict[str, Run]:
    """Return the functions of these kinds in a library.

    Args:
        array: the module of arrays.
        nn: the module of layers.
        elementwise_functions: the functions of elements by name.
        prod: the product over several axes, None if the library's takes several.
    """

    def pointwise(
        *tensors: Any,
        function: str,
        scalar: float | None = None,
        scalar_place: int = -1,
        **limits: float,
    ) -> Any:
        """Return a function of elements; a number is one of its operands."""
        operands: list[Any] = list(tensors)
        if scalar is not None:
            # counted among all operands from 0, or from the end as -1
            operand_count = len(tensors) + 1
            operands.insert(scalar_place % operand_count, scalar)
        return elementwise_functions[function](*operands, **limits)

    def reduce(x: Any, function: str, axes: tuple[int, ...], keep: bool = False) -> Any:
        """Return `x` reduced over `axes`."""
        if function == "prod" and prod:
            return prod(x, axes, keep)
        is_index = function.startswith("arg")  # argmax and argmin
        reduced_axes = axes[0] if is_index else axes  # an index is along one axis alone
        run_reduction = getattr(array, _REDUCTIONS.get(function, function))
        return run_reduction(x, axis=reduced_axes, keepdims=keep)

    def expand(x: Any, shape: tuple[int, ...], scale: float = 1.0) -> Any:
        """Return `x` repeated to `shape` along new last dimensions, times `scale`."""
        new_axes = (1,) * (len(shape) - x.ndim)
        expanded = x.reshape(*x.shape, *new_axes)
        return array.broadcast_to(expanded, shape) * scale

    def silu(x: Any, beta: float = 1.0) -> Any:
        """Return x sigmoid(beta x)."""
        return nn.silu(x) if beta == 1 else x * nn.sigmoid(beta * x)

    return {
        "pointwise": pointwise,
        "reduce": reduce,
        "broadcast": lambda x, shape: array.broadcast_to(x, tuple(shape)),
        "tile": lambda x, times: array.tile(x, tuple(times)),
        "flip": lambda x, axes: array.flip(x, tuple(axes)),
        "matmul": matmul,
        "bias": lambda x, b, axis=-1: x + align_to_axis(b, x, axis),
        "reduce_sum": lambda x, axes, shape: (x.sum(axes) if axes else x).reshape(shape),
        "mean": array.mean,
        "expand": expand,
        "global_avg_pool": lambda x: x.mean((2, 3)),
        "silu": silu,
        "softmax": lambda x: nn.softmax(x, -1),
        "add": array.add,
        "sub": array.subtract,
        "mul": array.multiply,
        "maximum": array.maximum,
        "tanh": array.tanh,
        "concat": lambda *arrays, axis: array.concatenate(arrays, axis),
        "reshape": array.reshape,
        "flatten": lambda x: x.reshape(x.shape[0], -1),
    }
