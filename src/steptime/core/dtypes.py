"""Element types and the precisions a network can be run in."""

from dataclasses import dataclass

from steptime.core.errors import unknown

SIZE_BYTES: dict[str, float] = {  # whole numbers, but of types of which several share a byte
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "complex128": 16,
    "complex64": 8,
    "complex32": 4,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "int4": 0.5,
    "int2": 0.25,
    "bool": 1,
}
HALVES = ("bfloat16", "float16")


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


ALIASES = {  # as people and frameworks write them
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "bf16-mixed": "bfloat16-mixed",
    "fp16-mixed": "float16-mixed",
    "16-mixed": "float16-mixed",
    "amp": "float16-mixed",
}


def find_dtype(text: str) -> str:
    """Return the dtype that a text names, an alias or not; raises `InputError` for none."""
    name = ALIASES.get(text.lower(), text.lower())
    if name not in PRECISIONS:
        raise unknown("dtype", text, PRECISIONS)
    return name


def precision(dtype: str) -> Precision:
    """Return the `Precision` of a dtype name; raises `InputError` for an unknown one."""
    return PRECISIONS[find_dtype(dtype)]
