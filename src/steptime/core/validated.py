"""Tables of files that users write, as their models: every fault with its place, in our words."""

import re
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from steptime.core.errors import InputError, shorten, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

Checked = TypeVar("Checked", bound="BaseModel")


def validated(table: object, model: type[Checked], where: str) -> Checked:
    """Return a table of a user's file as its model; raises `InputError` with all its faults."""
    from pydantic import ValidationError

    try:
        return model.model_validate(table)
    except ValidationError as error:
        faults = dict.fromkeys(_reason(one, model) for one in error.errors())
        raise InputError(f"{where}: {'; '.join([*faults][:10])}") from None


def read_by(read: "Callable[[Any], Any]", kind: "Callable[[Any], Any]") -> Any:
    """Return the validator, of a `kind` of pydantic's, by a function that says what is wrong."""

    def check(value: Any) -> Any:
        try:
            return read(value)
        except InputError as error:
            raise ValueError(str(error).lstrip(": ")) from None

    return kind(check)


_QUOTES = re.compile(r"^unknown|, not |^formula '")  # says by itself what is there
_SAID = {  # what a value must be, by the fault's type
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "must be a table"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    "string_type": "must be a text",
    "list_type": "must be a list",
}


def _reason(fault: Any, model: Any) -> str:
    """Return one fault of a file: its place, what is wrong, and the nearest name of one unknown."""
    text, given = str(fault["msg"]).removeprefix("Value error, "), fault.get("input")
    text = _SAID.get(fault["type"], text.replace("Input should be", "must be"))
    *path, last = [one for one in fault["loc"] if isinstance(one, str)] or [""]
    if fault["type"] == "extra_forbidden":
        for name in path:
            if name in model.model_fields:
                kind = model.model_fields[name].annotation
                model = (kind, *get_args(kind))[-1]
        known = [one.alias or name for name, one in model.model_fields.items()]
        return str(unknown("key", last, known, ".".join(path)))
    if fault["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        return str(unknown(last, given, known, ".".join(path)))
    simple = isinstance(given, str | int | float | bool)
    text += f", not {shorten(given)}" if simple and not _QUOTES.search(text) else ""
    place = "" if text.startswith(f"unknown {last}") else f"{'.'.join((*path, last))}: "
    return place + text
