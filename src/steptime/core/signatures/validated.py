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


def validate_table(table: object, model: type[Checked], source: str) -> Checked:
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
            # Without the name of an option before it, a message begins with its colon.
            raise ValueError(str(error).lstrip(": ")) from None

    return kind(check)  # such as a `BeforeValidator` of pydantic


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
    message = str(fault["msg"]).removeprefix("Value error, ")
    text = _REQUIREMENTS.get(fault["type"], message.replace("Input should be", "must be"))
    keys = [key for key in fault["loc"] if isinstance(key, str)]  # without places in lists
    if not keys:  # of the table as a whole
        return text
    *path, last = keys
    table_name = ".".join(path)
    if fault["type"] == "extra_forbidden":
        return str(unknown("key", last, _valid_keys(model, path), table_name))
    value = fault.get("input")
    if fault["type"] == "literal_error":
        valid_texts = _literal_texts(fault["ctx"]["expected"])
        return str(unknown(last, value, valid_texts, table_name))
    is_scalar = isinstance(value, str | int | float | bool)
    quotes_value = _QUOTES.search(text) is not None  # the text shows the value already
    if is_scalar and not quotes_value:
        text += f", not {shorten(value)}"
    names_key = text.startswith(f"unknown {last}")
    return text if names_key else f"{'.'.join(keys)}: {text}"


def _valid_keys(model: Any, path: list[str]) -> list[str]:
    """Return the keys of the table at a path of keys in a pydantic model."""
    table_model = model
    for name in path:
        if name in table_model.model_fields:
            kind = table_model.model_fields[name].annotation
            table_model = (kind, *get_args(kind))[-1]  # of dict[str, Table], the Table
    return [field.alias or name for name, field in table_model.model_fields.items()]


def _literal_texts(expected: str) -> list[str]:
    """Return the texts that pydantic expects; single marks stand in quotes: `','`."""
    texts = [str(literal_eval(text)) for text in re.findall(r"'[^']*'|\"[^\"]*\"", expected)]
    return [text if text.isalnum() or len(text) > 1 else repr(text) for text in texts if text]
