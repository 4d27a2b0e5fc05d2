"""The text decoder that is nested in the `config.json` of a vision-language model."""

from collections.abc import Mapping
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.formats.huggingface.config import Table
from steptime.formats.huggingface.types import ModelType

NESTED_NAMES = ("text_config", "llm_config", "language_config")
WORDS_ALONE = "alone is counted: what"
SENSES = {"vision_config": "sees images", "audio_config": "hears sound"}
CLASS_UNCHECKED = "the name of its class is not checked"
_INHERITED = ("quantization_config", "dtype", "torch_dtype")
_TYPE_FIELD = "model_type"
_TIED_FIELD = "tie_word_embeddings"


def has_nested_decoder(table: Mapping[str, Any]) -> bool:
    """Return whether a table has a nested one that describes a decoder of words."""
    return any(isinstance(table.get(name), dict) for name in NESTED_NAMES)


def list_model_types(table: Mapping[str, Any]) -> list[str]:
    """Return the types that a table and its nested ones of words name."""
    nested_values = [table.get(name) for name in NESTED_NAMES]
    nested_tables = [value for value in nested_values if isinstance(value, dict)]
    return [str(type_table.get(_TYPE_FIELD)) for type_table in (table, *nested_tables)]


def extract_decoder(
    table: Mapping[str, Any], default: str, types: Mapping[str, ModelType], place: str
) -> tuple[Table, list[str]]:
    """Return the configuration of the decoder of words, and remarks on what is left out.

    Args:
        table: The values of the whole file.
        default: The type of the decoder where its table names none, "" if it must. Without a
            nested table its fields are those of the whole, as older files have them.
        types: The row of each type that is known.
        place: What messages begin with.

    Raises:
        InputError: If the nested table is none, or names no type of a decoder that is known.
    """
    name = next((key for key in NESTED_NAMES if table.get(key) is not None), None)
    if name is None:
        return _extract_flat_decoder(table, default)
    nested_table = table[name]
    if not isinstance(nested_table, dict):
        raise InputError(f"{place}: {name}: must be a table, not {shorten(nested_table)}")
    decoder_type = nested_table.get(_TYPE_FIELD) or default
    if not decoder_type:
        raise InputError(f"{place}: {name}: has no {_TYPE_FIELD}, which says what it is")
    if decoder_type != default:
        _check_decoder(decoder_type, types, f"{place}: {name}")
    decoder = {**_inherit_fields(table, nested_table), _TYPE_FIELD: decoder_type}
    remarks = [f"{name} {_describe_left_out(table)}"]
    states_both_ties = _TIED_FIELD in nested_table and _TIED_FIELD in table
    if states_both_ties and nested_table[_TIED_FIELD] != table[_TIED_FIELD]:
        remarks.append(f"{_TIED_FIELD} is that of {name}; the whole has another")
    return decoder, remarks


def _inherit_fields(table: Mapping[str, Any], nested_table: Mapping[str, Any]) -> Table:
    """Return the fields of a nested decoder, with those that it inherits from the whole.

    An inherited field is that of the whole even where the decoder states it, too, but whether
    weights are tied is the decoder's own.
    """
    inherited = {key: table[key] for key in (*_INHERITED, _TIED_FIELD) if key in table}
    decoder_fields = {
        key: value
        for key, value in nested_table.items()
        if key == _TIED_FIELD or key not in inherited
    }
    return {**inherited, **decoder_fields}


def _extract_flat_decoder(table: Mapping[str, Any], decoder_type: str) -> tuple[Table, list[str]]:
    """Return the decoder of an older file, whose fields are those of the whole, with a remark."""
    decoder = {key: value for key, value in table.items() if not key.endswith("_config")}
    # fields such as `quantization_config`, which are no tables of another network
    decoder |= {key: table[key] for key in _INHERITED if key in table}
    remark = f"the decoder of words {_describe_left_out(table)}"
    return {**decoder, _TYPE_FIELD: decoder_type}, [remark]


def _describe_left_out(table: Mapping[str, Any]) -> str:
    """Describe the parts beside the decoder: `alone is counted: what sees images is not`."""
    senses = [sense for name, sense in SENSES.items() if table.get(name)]
    return f"{WORDS_ALONE} {' and '.join(senses or [SENSES['vision_config']])} is not"


def _check_decoder(kind: object, types: Mapping[str, ModelType], place: str) -> None:
    """Raise `InputError` if a nested type is not that of a decoder of words."""
    decoders = {name: row for name, row in types.items() if row.is_decoder}
    if not isinstance(kind, str) or kind not in decoders:
        raise unknown(_TYPE_FIELD, kind, decoders, place)
