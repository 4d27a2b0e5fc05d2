"""Parse the text of Caffe's network files with protobuf, by the table of `data/caffe.toml`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.toml_files import read_packaged_toml

_TABLE = read_packaged_toml("caffe.toml")
ENUMS: Mapping[str, str] = _TABLE["enums"]
_PARAMETERS = {f"{key}_param": fields for key, fields in _TABLE["parameters"].items()}
_LAYER = " ".join([_TABLE["layer"], *(f"{key}:{key}" for key in _PARAMETERS)])
MESSAGES: Mapping[str, str] = {
    **{name: fields.replace("LAYER", _LAYER) for name, fields in _TABLE["messages"].items()},
    **_PARAMETERS,
}
MAX_LINE_LENGTH = 10_000  # protobuf copies the line at every unknown field that it skips
NETWORK = -1  # in place of a layer's number: the network itself
_FIELD = re.compile(r"(?P<name>\w+):(?P<type>\w+)(?P<repeated>\*?)(?:=(?P<default>\S+))?")
_PACKAGE = "steptime.caffe"


@lru_cache(maxsize=1)
def _network_class() -> Any:
    """Return the protobuf class of a network's message, which is made from the table."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="steptime/caffe", package=_PACKAGE, syntax="proto2"
    )
    _add_enums(file)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, match in enumerate(_FIELD.finditer(fields), 1):
            _add_field(message, number, match)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Net"))


def _add_enums(file: Any) -> None:
    """Add the enumerations, each in a message: values of two of them may share a name."""
    holder = file.message_type.add(name="Enums")
    for name, values in ENUMS.items():
        enum = holder.nested_type.add(name=name).enum_type.add(name=name)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)


def _add_field(message: Any, number: int, match: re.Match[str]) -> None:
    """Add a field to a message from a match of `_FIELD`."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    field = message.field.add(name=match["name"], number=number)
    repeated, optional = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.LABEL_OPTIONAL
    field.label = repeated if match["repeated"] else optional
    type_name = match["type"]
    if type_name in ENUMS:
        field.type = FieldDescriptorProto.TYPE_ENUM
        # an enumeration is nested in a message of its own name (`_add_enums`)
        field.type_name = f".{_PACKAGE}.Enums.{type_name}.{type_name}"
    elif type_name in MESSAGES:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_name}"
    else:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{type_name.upper()}")
    if match["default"]:
        field.default_value = match["default"]


def enum_name(message: Any, field: str) -> str:
    """Return the name of the value of an enumeration in a message."""
    enum_type = message.DESCRIPTOR.fields_by_name[field].enum_type
    return str(enum_type.values_by_number[getattr(message, field)].name)


@dataclass(frozen=True)
class UnknownField:
    """A field that is not in the table.

    Attributes:
        field: its name.
        message: the message that it is in.
        layer_number: the number of its layer in the file from 0, or `NETWORK`.
        line: the line of the file.
    """

    field: str
    message: str
    layer_number: int
    line: int

    def error(self, file: str) -> InputError:
        """Return the error that names the field and the nearest one of its message."""
        field_names = [match["name"] for match in _FIELD.finditer(MESSAGES[self.message])]
        place = f"{file}: line {self.line}, in {self.message}"
        return unknown("field", self.field, field_names, place)


def parse(text: str, file: str) -> tuple[Any, list[UnknownField]]:
    """Parse the message of a network, and find the fields in it that are not in the table.

    Args:
        text: the content of the file.
        file: its name, for messages.

    Raises:
        InputError: for a text of another form.
    """
    from google.protobuf import text_format

    parse_errors = (text_format.ParseError, RecursionError, ValueError, OverflowError)
    try:
        try:
            # most files have no unknown field, and are parsed but once
            return text_format.Parse(text, message=_network_class()()), []
        except text_format.ParseError as error:
            if "has no field named" not in str(error):
                raise
        if max(map(len, text.split("\n"))) > MAX_LINE_LENGTH:
            limit = f"lines of over {MAX_LINE_LENGTH} characters"
            raise InputError(f"{file}: unknown fields in {limit}")
        message = text_format.Parse(text, message=_network_class()(), allow_unknown_field=True)
        return message, list(_find_unknown_fields(text))
    except parse_errors as error:
        raise _parse_error(error, file) from None


def _is_field_name(token: str, next_token: str) -> bool:
    """Return whether a token names a field, whose value follows."""
    is_followed_by_value = next_token in (":", "{", "<")
    is_punctuation = token in (":", ",", ";", "[", "]")
    return is_followed_by_value and not is_punctuation


def _find_unknown_fields(text: str) -> Iterator[UnknownField]:
    """Yield the fields outside the table in a text that protobuf has parsed.

    The name of a field is a word before a colon or a bracket. The line is that of the first
    unknown field for all of them: protobuf copies the text of the line to tell its number.
    """
    from google.protobuf import text_format

    tokens = text_format.Tokenizer(text.split("\n"))
    # the types of the messages that are open at this token; None for an unknown field
    open_messages: list[Any] = [_network_class().DESCRIPTOR]
    next_message: Any = None  # the type of the last field, opened by the bracket behind it
    layer = NETWORK
    line = 0
    while not tokens.AtEnd():
        token = tokens.token
        tokens.NextToken()
        if token in ("}", ">"):
            open_messages.pop()
        elif token in ("{", "<"):
            open_messages.append(next_message)
        elif _is_field_name(token, next_token=tokens.token):
            message = open_messages[-1]
            field = message.fields_by_name.get(token) if message else None
            next_message = field.message_type if field else None
            is_in_network = len(open_messages) == 1
            if is_in_network and token in ("layer", "layers"):
                layer += 1
            if message and not field:
                # every unknown field gets the line of the first one: to ask protobuf for a line
                # copies its text
                line = line or tokens.ParseErrorPreviousToken("").GetLine()
                layer_number = NETWORK if is_in_network else layer
                yield UnknownField(token, message.name, layer_number, line)


_ERROR_TEXT = re.compile(r"(?:(\d+):\d+ : )?(?:'.*': )?(.*)")  # line, the line itself, the reason


def _parse_error(error: Exception, file: str) -> InputError:
    """Return the error of a text that protobuf cannot parse, with the line if protobuf tells it."""
    if isinstance(error, RecursionError):
        return InputError(f"{file}: nested too deeply for a network")
    match = _ERROR_TEXT.match(str(error).partition("\n")[0])
    line, reason = match.groups() if match else (None, "")
    text = shorten(re.sub(rf"{_PACKAGE}\.(Enums\.\w+\.)?", "", reason)).strip("'")
    line_text = f"line {line}: " if line else ""
    return InputError(f"{file}: {line_text}is no network in Caffe's text form: {text}")
