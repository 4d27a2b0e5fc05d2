"""Model types of a `config.json` that transformers or diffusers build, where they are installed.

Types that are read natively need no library. Others are exported as code, by their class, with no
weights and no download; code that a file names itself (`auto_map`) is never run.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from steptime.core.errors import InputError
from steptime.formats import Source
from steptime.formats.diffusers.read import CLASS_FIELD, CLASSES
from steptime.formats.huggingface.composed import has_nested_decoder, list_model_types
from steptime.formats.huggingface.reading import find_head
from steptime.formats.huggingface.types import UNREAD_TYPES, ModelType, types

TYPE_FIELD = "model_type"


def find_library(source: Source) -> str:
    """Return the installed library that builds the type of a `config.json`.

    "" for a type that is read natively, for another file, and where the library is not installed.
    """
    if not source.path.lower().endswith(".json") or not isinstance(source.table, dict):
        return ""
    library = _name_library(source.table)
    is_installed = bool(library) and find_spec(library) is not None
    return library if is_installed else ""


def _name_library(table: Mapping[str, Any]) -> str:
    """Return the library that a configuration is of, "" for types that are read natively."""
    states_type = isinstance(table.get(TYPE_FIELD), str)
    # files of Paleo have a table of layers, whatever other fields are called
    is_paleo_network = isinstance(table.get("layers"), dict)
    if states_type and not is_paleo_network:
        return "" if _is_native(table) else "transformers"
    states_class = isinstance(table.get(CLASS_FIELD), str)
    if states_class:
        return "" if table[CLASS_FIELD] in CLASSES else "diffusers"
    return ""


def _is_native(table: Mapping[str, Any]) -> bool:
    """Whether the type, or that of the decoder of words in it, is read natively."""
    kinds = list_model_types(table)  # its own type, then those of the networks in it
    if any(kind in UNREAD_TYPES for kind in kinds):
        return False
    native_types = types()
    inner_kinds = kinds[1:]
    has_native_part = any(kind in native_types for kind in inner_kinds)
    row = native_types.get(table[TYPE_FIELD])
    if row is not None:
        return _has_native_class(table, row)
    return has_nested_decoder(table) and has_native_part


def _has_native_class(table: Mapping[str, Any], row: ModelType) -> bool:
    """Whether the class that `architectures` names is one that is read natively."""
    try:
        find_head(table, row, place="")
    except InputError:
        return False
    return True
