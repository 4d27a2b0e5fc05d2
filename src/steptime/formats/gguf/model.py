"""The network of a GGUF file, by what the metadata of its header says."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.json_types import JsonObject
from steptime.core.toml_files import read_packaged_toml
from steptime.formats import Source
from steptime.formats.gguf.header import Header, LongArray, read_header
from steptime.formats.gguf.types import file_types_by_number
from steptime.formats.huggingface.reading import describe_network, name_class
from steptime.formats.huggingface.types import types
from steptime.network.families.family import Family

CAUSAL_CLASS_END = "ForCausalLM"
OUTPUT_TENSOR = "output.weight"
QUERY_BIAS_TENSOR = "blk.0.attn_q.bias"
EMBEDDING_TENSOR = "token_embd.weight"
TOKENS_KEY = "tokenizer.ggml.tokens"
PLAIN_DECODER, PLAIN_MIXTURE = "llama", "qwen3moe"
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")


def read(source: Source, _allow_unknown: bool) -> Family:
    """Return the network of a GGUF file.

    Raises:
        InputError: for a file that is no GGUF, and for one that holds no language model.
    """
    header = read_header(source)
    place = shorten(source.name)[1:-1]  # without quotes
    config, remarks = config_of(header, place)
    family = describe_network(config, place, remarks)
    return family_with_weights(family, header)


def family_with_weights(family: Family, header: Header) -> Family:
    """Return a network whose weights have the type that the file says."""
    number = header.metadata.get("general.file_type")
    name = file_types_by_number().get(number) if isinstance(number, int) else None
    return replace(family, weights=name or "gguf")


def config_of(header: Header, place: str) -> tuple[JsonObject, list[str]]:
    """Return the values of a `config.json` for the network of a header, and remarks on it.

    An architecture without a row of its own is taken as a decoder of the usual kind.

    Raises:
        InputError: for a header without a number of layers.
    """
    architecture = header.architecture
    if f"{architecture}.block_count" not in header.metadata:
        raise InputError(f"{place}: no language model: {architecture or 'it'} has no block_count")
    remarks: list[str] = []
    has_row = architecture in read_packaged_toml("gguf.toml")["architectures"]
    if not has_row:
        remarks.append(f"architecture {shorten(architecture)[1:-1]} is taken as a usual decoder")
    row = _find_architecture_row(header)
    config = _read_fields(header, row)
    config |= _find_vocabulary_size(header)
    config |= _infer_fields_of_tensors(header)
    config["model_type"] = row["model_type"]
    model_type = types()[row["model_type"]]
    # the head is not stated: a file of a type that can write words is taken to do so
    if CAUSAL_CLASS_END in model_type.head_by_class_end:
        config["architectures"] = [name_class(model_type, CAUSAL_CLASS_END)]
    return config, remarks


def _find_architecture_row(header: Header) -> JsonObject:
    """Return the row of a header's architecture, by default that of a usual decoder.

    An architecture that can have experts has two rows: the plain one names the other, `mixture`.
    """
    rows: Mapping[str, JsonObject] = read_packaged_toml("gguf.toml")["architectures"]
    has_experts = bool(header.metadata.get(f"{header.architecture}.expert_count", 0))
    usual_row = rows[PLAIN_MIXTURE if has_experts else PLAIN_DECODER]
    row = rows.get(header.architecture, usual_row)
    return rows[row["mixture"]] if has_experts and "mixture" in row else row


def _read_fields(header: Header, row: JsonObject) -> JsonObject:
    """Return the fields that the metadata of a header hold, by the names of a `config.json`."""
    key_by_field = {**read_packaged_toml("gguf.toml")["fields"], **row.get("fields", {})}
    values = {
        field: header.metadata.get(f"{header.architecture}.{key}")
        for field, key in key_by_field.items()
    }
    # of a value for each layer the largest counts
    return {
        field: _find_largest_value(value) for field, value in values.items() if value is not None
    }


def _find_largest_value(value: Any) -> Any:
    """Return a value as a `config.json` has it: of a list with one value of all layers that."""
    if isinstance(value, list) and value:
        return max(value)
    return value


def _find_vocabulary_size(header: Header) -> dict[str, int]:
    """Return the size of the vocabulary, from the table of embeddings or the tokens."""
    for tensor in header.tensors:
        if tensor.name == EMBEDDING_TENSOR:
            return {"vocab_size": tensor.shape[0]}
    tokens = header.metadata.get(TOKENS_KEY)
    if isinstance(tokens, LongArray):
        return {"vocab_size": tokens.length}
    return {}


def _infer_fields_of_tensors(header: Header) -> JsonObject:
    """Return the settings that tensors show: a shared table, and biases of queries."""
    names = {tensor.name for tensor in header.tensors}
    values: JsonObject = {}
    if names:
        values["tie_word_embeddings"] = OUTPUT_TENSOR not in names
    if QUERY_BIAS_TENSOR in names:
        values["attention_bias"] = True
    return values


def split_tensor_name(name: str) -> tuple[int | None, str]:
    """Return the layer of a tensor, None without one, and its role: `blk.3.attn_q.weight`."""
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None:
        return None, name.rpartition(".")[0] or name
    return int(match[1]), match[2]
