"""Element types and the precisions a network can be run in."""

from collections.abc import Collection
from dataclasses import dataclass

from steptime.core.errors import InputError, unknown

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
    """The data types of a run.

    Attributes:
        weights: the type in which weights are kept.
        compute: the type of activations and of arithmetic.
        products: the type of operands of linear layers and experts, where it is lower; "" else.
    """

    weights: str
    compute: str
    products: str = ""

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
    "float8": Precision("bfloat16", "bfloat16", "float8"),
    "float8-mixed": Precision("float32", "bfloat16", "float8"),
    "float4": Precision("bfloat16", "bfloat16", "float4"),
    "float4-mixed": Precision("float32", "bfloat16", "float4"),
}
OPERAND_BYTES = {"float8": 1.0, "float4": 0.5625}  # a number of an operand, scales of 16 included


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
    "fp8": "float8",
    "mxfp8": "float8",
    "fp4": "float4",
    "nvfp4": "float4",
}


def find_dtype(text: str) -> str:
    """Return the dtype that a text names, an alias or not; raises `InputError` for none."""
    name = ALIASES.get(text.lower(), text.lower())
    if name not in PRECISIONS:
        raise unknown("dtype", text, PRECISIONS)
    return name


def check_measured_dtype(dtype: str) -> str:
    """Return a dtype that can be measured; raises `InputError` for products of lower operands."""
    # The type of the operands of products, where it is lower than the one computed in.
    products = precision(dtype).products
    if products:
        nearest = "bfloat16-mixed" if precision(dtype).mixed else "bfloat16"
        raise InputError(
            f"dtype {dtype}: products of {products} operands are predicted, not measured; "
            f"nearest: {nearest}"
        )
    return dtype


def precision(dtype: str) -> Precision:
    """Return the `Precision` of a dtype name; raises `InputError` for an unknown one."""
    return PRECISIONS[find_dtype(dtype)]


# Words of several tools for weights or caches of few bits: types, the likeliest first.
QUANTISED_WORDS = {
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "mxfp8"), ("float8",)),
    **dict.fromkeys(
        ("modelopt", "modelopt_fp8", "w8a8_fp8", "fbgemm_fp8", "ptpc_fp8"), ("float8",)
    ),
    **dict.fromkeys(("awq", "gptq", "awq_marlin", "gptq_marlin", "marlin"), ("int4",)),
    **dict.fromkeys(("w4a16", "int4_awq", "w4afp8", "moe_wna16"), ("int4",)),
    **dict.fromkeys(("4bit", "4-bit", "bnb", "bitsandbytes", "nf4"), ("nf4", "int4")),
    **dict.fromkeys(("nf4-dq",), ("nf4-dq", "nf4", "int4")),
    **dict.fromkeys(("8bit", "8-bit", "w8a8", "w8a8_int8", "experts_int8", "q8_0"), ("int8",)),
    **dict.fromkeys(("nvfp4", "modelopt_fp4", "fp4"), ("float4",)),
    **dict.fromkeys(("q4_0", "q4_1", "q4_k_s", "q4_k_m", "iq4_xs", "iq4_nl"), ("int4",)),
}


def find_quantised_type(text: str, priced_types: Collection[str]) -> str | None:
    """Return the type of weights or of a cache that a word of any tool says.

    Args:
        text: the word, in any case, such as `awq`, `q4_k_m` or `4bit`.
        priced_types: types that can be priced.

    Returns:
        One of `priced_types`; None where the word says none of them.
    """
    word = text.strip().lower()
    likely_types = (word, *QUANTISED_WORDS.get(word, ()))
    return next((name for name in likely_types if name in priced_types), None)


def describe_low_products(dtype: str) -> list[str]:
    """Return the remark of a step whose products have operands of 8 or 4 bit; [] for others.

    Example: `linear layers and experts multiply float8 operands; weights are kept in bfloat16`.
    """
    types = precision(dtype)
    if not types.products:
        return []
    layers = f"linear layers and experts multiply {types.products} operands"
    return [f"{layers}; weights are kept in {types.weights}"]
