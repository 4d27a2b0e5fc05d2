"""Types of GGUF tensors and files: bytes of a tensor, and the type of each tensor of a file.

Both are tables of `data/gguf.toml`; a further type is one row there.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from math import ceil, prod
from typing import Any, NamedTuple

from steptime.core.toml_files import read_packaged_toml

DEFAULT_OUTPUT = "Q6_K"  # of the head, where a type of file has no rule for it
PLAIN_TYPE = "F32"  # of norms, biases and routers, which no type of file quantises
GROUPED_QUERIES = 4  # queries a key, from which on keys and values are cheap to keep in more bits
LAYERS_OF_70B = 80  # layers of the networks that llama-quantize knows as 70B
EIGHT_EXPERTS = 8
BITS_PER_BYTE = 8
NO_NUMBER = -1  # of a type of other files
RAISED_TYPES = {"Q3_K": "Q5_K", "Q4_K": "Q5_K"}  # of attn_v in a network of 70B


class TensorType(NamedTuple):
    """A type of a GGUF tensor.

    Args:
        name: its name, such as `Q4_K`.
        block: numbers of a block.
        block_bytes: bytes of a block.
        number: its number in files.
        fallback: the type of a tensor whose rows are no multiple of the block; "" without one.
        decode_flop: FLOP of float32 to unpack a number.
    """

    name: str
    block: int
    block_bytes: int
    number: int
    fallback: str
    decode_flop: float

    @property
    def bits(self) -> float:
        """Bits of a number."""
        return BITS_PER_BYTE * self.block_bytes / self.block

    def tensor_bytes(self, shape: Sequence[int]) -> int:
        """Return the bytes of a tensor whose last axis is that of its rows."""
        rows = prod(shape[:-1])
        blocks_per_row = ceil(shape[-1] / self.block)
        return rows * blocks_per_row * self.block_bytes


class TensorPlacement(NamedTuple):
    """The layer of a tensor, and what of the network decides its type.

    Args:
        layer: number of the layer, from 0.
        layer_count: number of layers.
        queries_per_key: heads of queries for each head of keys.
        expert_count: number of experts, 0 without any.
    """

    layer: int
    layer_count: int
    queries_per_key: float
    expert_count: int


@cache
def tensor_types() -> Mapping[str, TensorType]:
    """Return the types of tensors by name."""
    return {
        name: TensorType(
            name=name,
            block=row["block"],
            block_bytes=row["bytes"],
            number=row.get("id", NO_NUMBER),
            fallback=row.get("fallback", ""),
            decode_flop=row.get("decode_flop", 0.0),
        )
        for name, row in read_packaged_toml("gguf.toml")["types"].items()
    }


@cache
def types_by_number() -> Mapping[int, TensorType]:
    """Return the types of tensors by their number in files."""
    return {row.number: row for row in tensor_types().values() if row.number != NO_NUMBER}


@cache
def file_types() -> Mapping[str, Mapping[str, Any]]:
    """Return the types of files by name in lower case, such as `q4_k_m`, smallest numbers first."""
    rows: Mapping[str, Mapping[str, Any]] = read_packaged_toml("gguf.toml")["files"]
    return {name.lower(): row for name, row in rows.items()}


@cache
def file_types_by_number() -> Mapping[int, str]:
    """Return the names of types of files by their number in files."""
    return {row["id"]: name for name, row in file_types().items() if "id" in row}


def type_of_tensor(file_type: str, role: str, width: int, placement: TensorPlacement) -> TensorType:
    """Return the type that llama-quantize gives to a matrix.

    Args:
        file_type: the type of the file, such as `q4_k_m`.
        role: the name of the tensor in files, such as `attn_v` or `ffn_down_exps`.
        width: numbers of a row.
        placement: the layer, and what of the network decides the type.
    """
    file_row = file_types()[file_type]
    name = _find_type_by_rules(file_row, role, placement)
    return _find_type_for_width(tensor_types()[name], width)


def _find_type_by_rules(file_row: Mapping[str, Any], role: str, placement: TensorPlacement) -> str:
    """Return the name of the type of a role by the rules of a type of file."""
    base_type: str = file_row["base"]
    # only quantised types, which have blocks, state a type to fall back to
    is_unquantised = not tensor_types()[base_type].fallback
    # a rule for a role holds for the tensors of experts with this role, too
    role_without_experts = role.removesuffix("_exps").removesuffix("_shexp")
    rules = file_row.get(role, file_row.get(role_without_experts, ()))
    for rule in rules:
        if _rule_applies(rule, placement):
            return _raise_bits(file_row, role, str(rule["type"]), placement)
    if role == "output":
        return DEFAULT_OUTPUT
    return base_type if is_unquantised else _raise_bits(file_row, role, base_type, placement)


def _raise_bits(
    file_row: Mapping[str, Any], role: str, type_name: str, placement: TensorPlacement
) -> str:
    """Return the type of keys and values that few bytes keep in more bits: of 70B, of 8 experts."""
    # llama-quantize raises these after all rules, but not in its files of one and two bits, which
    # have rules of their own: such a file is recognised by the type of its output
    first_output_rule = file_row.get("output", [{}])[0]
    has_low_output = first_output_rule.get("type") == "Q5_K"
    has_three_bits = file_row["base"] == "IQ3_XXS"  # its output is Q5_K, too
    if has_low_output and not has_three_bits:
        return type_name
    is_grouped_70b = placement.layer_count == LAYERS_OF_70B and placement.queries_per_key > 1
    if role in ("attn_k", "attn_v") and placement.expert_count == EIGHT_EXPERTS:
        return "Q8_0"
    if role == "attn_v" and is_grouped_70b:
        return RAISED_TYPES.get(type_name, type_name)
    return type_name


def _rule_applies(rule: Mapping[str, Any], placement: TensorPlacement) -> bool:
    """Whether a rule is for the layer and the network of a tensor."""
    if rule.get("eight_experts") and placement.expert_count != EIGHT_EXPERTS:
        return False
    # many queries for a key, or many experts, make more bits of keys and values cheap; llama.cpp
    # has one threshold for both
    has_many_queries = placement.queries_per_key >= GROUPED_QUERIES
    has_many_experts = placement.expert_count >= GROUPED_QUERIES
    if rule.get("grouped") and not has_many_queries and not has_many_experts:
        return False
    return _is_in_layers(rule.get("layers", "all"), placement.layer, placement.layer_count)


def _is_in_layers(range_name: str, layer: int, layer_count: int) -> bool:
    """Whether a layer is one of those of a rule, of a network of so many layers."""
    eighth = layer_count // 8
    is_in_first_eighth = layer < eighth
    is_in_last_eighth = layer >= 7 * layer_count // 8
    is_in_middle = not is_in_first_eighth and not is_in_last_eighth
    is_third_of_middle = (layer - eighth) % 3 == 2
    is_in_range = {
        "all": True,
        "first_2": layer < 2,
        "first_4": layer < 4,
        "first_sixteenth": layer < layer_count // 16,
        "first_eighth": is_in_first_eighth,
        "middle": is_in_middle,
        # use_more_bits of llama.cpp
        "more": not is_in_middle or is_third_of_middle,
    }
    return is_in_range[range_name]


def _find_type_for_width(tensor_type: TensorType, width: int) -> TensorType:
    """Return the type, or its fallback where the rows are no multiple of its block."""
    while width % tensor_type.block and tensor_type.fallback:
        tensor_type = tensor_types()[tensor_type.fallback]
    return tensor_type
