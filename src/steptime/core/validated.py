"""Validation of users' files by pydantic models, with the place of each fault in a message."""

import re
from ast import literal_eval
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from steptime.core.errors import InputError, shorten, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

MAX_FAULTS = 10  # of a file in one message
Checked = TypeVar("Checked", bound="BaseModel")


def validated(table: object, model: type[Checked], source: str) -> Checked:
    """Return a table of a user's file as its model; raises `InputError` with up to 10 faults."""
    from pydantic import ValidationError

    try:
        return model.model_validate(table)
    except ValidationError as error:
        faults = dict.fromkeys(_describe_fault(fault, model) for fault in error.errors())
        raise InputError(f"{source}: {'; '.join([*faults][:MAX_FAULTS])}") from None


def read_by(read: "Callable[[Any], Any]", kind: "Callable[[Any], Any]") -> Any:
    """Return a pydantic validator of a `kind` that calls a parser which raises `InputError`."""

    def check(value: Any) -> Any:
        try:
            return read(value)
        except InputError as error:
            raise ValueError(str(error).lstrip(": ")) from None

    return kind(check)


_QUOTES = re.compile(r"^unknown|, not |^formula '")  # texts that quote the value themselves
_REQUIREMENTS = {  # the expected value, by the type of fault
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "must be a table"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    "string_type": "must be a text",
    "list_type": "must be a list",
}


def _describe_fault(fault: Any, model: Any) -> str:
    """Return the text of a fault: `train.layers: must be a whole number, not 'x'`."""
    text = str(fault["msg"]).removeprefix("Value error, ")
    value = fault.get("input")
    text = _REQUIREMENTS.get(fault["type"], text.replace("Input should be", "must be"))
    keys = [key for key in fault["loc"] if isinstance(key, str)]
    if not keys:  # of the table as a whole
        return text
    *path, last = keys
    if fault["type"] == "extra_forbidden":
        for name in path:
            if name in model.model_fields:
                kind = model.model_fields[name].annotation
                model = (kind, *get_args(kind))[-1]
        valid_keys = [field.alias or name for name, field in model.model_fields.items()]
        return str(unknown("key", last, valid_keys, ".".join(path)))
    if fault["type"] == "literal_error":
        return str(unknown(last, value, _literal_texts(fault["ctx"]["expected"]), ".".join(path)))
    is_simple = isinstance(value, str | int | float | bool)
    text += f", not {shorten(value)}" if is_simple and not _QUOTES.search(text) else ""
    place = "" if text.startswith(f"unknown {last}") else f"{'.'.join((*path, last))}: "
    return place + text


def _literal_texts(expected: str) -> list[str]:
    """Return the texts that pydantic expects; single marks stand in quotes: `','`."""
    texts = [str(literal_eval(text)) for text in re.findall(r"'[^']*'|\"[^\"]*\"", expected)]
    return [text if text.isalnum() or len(text) > 1 else repr(text) for text in texts if text]
