"""Reads the text of Caffe's network files with protobuf, by the table of `data/caffe.toml`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.toml_files import packaged

_TABLE = packaged("caffe.toml")
ENUMS: Mapping[str, str] = _TABLE["enums"]
_PARAMETERS = {f"{key}_param": fields for key, fields in _TABLE["parameters"].items()}
_LAYER = " ".join([_TABLE["layer"], *(f"{key}:{key}" for key in _PARAMETERS)])
MESSAGES: Mapping[str, str] = {
    **{name: fields.replace("LAYER", _LAYER) for name, fields in _TABLE["messages"].items()},
    **_PARAMETERS,
}
LONGEST_LINE = 10_000  # protobuf copies the line at every unknown field that it passes over
_FIELD = re.compile(r"(?P<name>\w+):(?P<type>\w+)(?P<many>\*?)(?:=(?P<default>\S+))?")
_PACKAGE = "steptime.caffe"


@lru_cache(maxsize=1)
def _net_class() -> Any:
    """Return the class of a network's message, made of the table."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="steptime/caffe", package=_PACKAGE, syntax="proto2"
    )
    holder = file.message_type.add(name="Enums")  # values of two enumerations may share a name
    for name, values in ENUMS.items():
        inner = holder.nested_type.add(name=name)
        enum = inner.enum_type.add(name=name)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, result in enumerate(_FIELD.finditer(fields), 1):
            field = message.field.add(name=result["name"], number=number)
            many = bool(result["many"])
            field.label = field_type.LABEL_REPEATED if many else field_type.LABEL_OPTIONAL
            kind = result["type"]
            if kind in ENUMS:
                field.type = field_type.TYPE_ENUM
                field.type_name = f".{_PACKAGE}.Enums.{kind}.{kind}"
            elif kind in MESSAGES:
                field.type = field_type.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(field_type, f"TYPE_{kind.upper()}")
            if result["default"]:
                field.default_value = result["default"]
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Net"))


def enum_name(message: Any, field: str) -> str:
    """Return the name of the value that an enumeration has in `message`."""
    kind = message.DESCRIPTOR.fields_by_name[field].enum_type
    return str(kind.values_by_number[getattr(message, field)].name)


@dataclass(frozen=True)
class Strange:
    """A field that is not in the table: its message, and the place of its layer in the file.

    `layer` counts the file's layers from 0; -1 is the network itself.
    """

    field: str
    message: str
    layer: int
    line: int

    def error(self, where: str) -> InputError:
        """Return the line that names the field and the nearest one of its message."""
        known = [field["name"] for field in _FIELD.finditer(MESSAGES[self.message])]
        return unknown("field", self.field, known, f"{where}: line {self.line}, in {self.message}")


def parse(text: str, where: str) -> tuple[Any, list[Strange]]:
    """Return the message of a network, and the fields in it that are not in the table.

    Raises `InputError` for what is not a text of this form.
    """
    from google.protobuf import text_format

    unread = (text_format.ParseError, RecursionError, ValueError, OverflowError)
    try:
        try:
            return text_format.Parse(text, _net_class()()), []
        except text_format.ParseError as error:
            if "has no field named" not in str(error):
                raise
        if max(map(len, text.split("\n"))) > LONGEST_LINE:
            raise InputError(f"{where}: unknown fields in lines of over {LONGEST_LINE} characters")
        message = text_format.Parse(text, _net_class()(), allow_unknown_field=True)
        return message, list(_strange_fields(text))
    except unread as error:
        raise _no_text(error, where) from None


def _strange_fields(text: str) -> Iterator[Strange]:
    """Return every field outside the table of a text that protobuf has read.

    A field's name is a word before a colon or a bracket; `inside` are the open messages, None for
    one of an unknown field.
    """
    from google.protobuf import text_format

    tokens = text_format.Tokenizer(text.split("\n"))
    inside: list[Any] = [_net_class().DESCRIPTOR]
    opened: Any = None
    layer = -1
    line = 0  # of the first one alone: protobuf tells it with a copy of the line
    while not tokens.AtEnd():
        token = tokens.token
        tokens.NextToken()
        if token in ("}", ">"):
            inside.pop()
        elif token in ("{", "<"):
            inside.append(opened)
        elif tokens.token in (":", "{", "<") and token not in (":", ",", ";", "[", "]"):
            field = inside[-1].fields_by_name.get(token) if inside[-1] else None
            opened = field.message_type if field else None
            layer += len(inside) == 1 and token in ("layer", "layers")
            if inside[-1] and not field:
                line = line or tokens.ParseErrorPreviousToken("").GetLine()
                yield Strange(token, inside[-1].name, layer if len(inside) > 1 else -1, line)


_PLACE = re.compile(r"(?:(\d+):\d+ : )?(?:'.*': )?(.*)")  # line, the line itself, what is wrong


def _no_text(error: Exception, where: str) -> InputError:
    if isinstance(error, RecursionError):
        return InputError(f"{where}: nested too deeply for a network")
    result = _PLACE.match(str(error).partition("\n")[0])
    line, reason = result.groups() if result else (None, "")
    text = shorten(re.sub(rf"{_PACKAGE}\.(Enums\.\w+\.)?", "", reason)).strip("'")
    at = f"line {line}: " if line else ""
    return InputError(f"{where}: {at}is no network in Caffe's text form: {text}")
