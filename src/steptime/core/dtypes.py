"""Element types and the precisions a network can be run in."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.core.errors import unknown

SIZE_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "bool": 1,
}


@dataclass(frozen=True)
class Precision:
    """What a user calls the dtype of a run: the types of weights and of arithmetic."""

    weights: str
    compute: str

    @property
    def mixed(self) -> bool:
        """Whether weights are kept in a wider type than the one computed in (autocast)."""
        return self.weights != self.compute


PRECISIONS = {
    "float64": Precision("float64", "float64"),
    "float32": Precision("float32", "float32"),
    "bfloat16": Precision("bfloat16", "bfloat16"),
    "float16": Precision("float16", "float16"),
    "bfloat16-mixed": Precision("float32", "bfloat16"),
    "float16-mixed": Precision("float32", "float16"),
}


def precision(dtype: str) -> Precision:
    """Return the `Precision` of a dtype name; raises `InputError` for an unknown one."""
    if dtype not in PRECISIONS:
        raise unknown("dtype", dtype, PRECISIONS)
    return PRECISIONS[dtype]
