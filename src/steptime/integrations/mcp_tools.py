"""The tools of the MCP server: a tool for each question, its schemas, and trimmed answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

from steptime.api import QUESTIONS, schema
from steptime.core.answer import Answer
from steptime.core.errors import InputError, check_choice, unknown
from steptime.core.json_types import JsonObject
from steptime.core.registry import load
from steptime.core.signatures.signature import parameters_of
from steptime.core.values import parse_count

DEFAULT_ROWS = 20  # rows of an answer without `top`
MAX_ITEMS = 50  # of any other list, such as the samples of a measured step
TRIMMED = "trimmed"
TRIM_PARAMETERS: Mapping[str, JsonObject] = {
    "top": {
        "type": "integer",
        "minimum": 1,
        "description": f"Rows of the answer. Default: {DEFAULT_ROWS}.",
    },
    "fields": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Fields of the answer to return, such as step_s or rows.device. "
        "Default: all.",
    },
}
"""Parameters that every tool has beside those of its question."""
TRIMMED_SCHEMA: JsonObject = {
    "type": "object",
    "additionalProperties": {"type": "integer"},
    "description": "Length of each list of which the answer has the first items alone.",
}


class ToolSchema(NamedTuple):
    """A tool as a client sees it.

    Attributes:
        name: its name: that of the command, with `_` for a space.
        description: the summary of the question.
        input: the JSON schema of its arguments.
        output: the JSON schema of its answer.
    """

    name: str
    description: str
    input: JsonObject
    output: JsonObject


def command_of_tool(name: str) -> str:
    """Return the command of a tool: `sweep status` of `sweep_status`.

    Raises:
        InputError: for an unknown tool.
    """
    commands = {tool_name(command): command for command in QUESTIONS}
    return commands[check_choice("tool", name, commands)]


def tool_name(command: str) -> str:
    """Return the name of the tool of a command: `sweep_status` of `sweep status`."""
    return command.replace(" ", "_")


def tool_schema(name: str) -> ToolSchema:
    """Return a tool, with the schemas of `steptime.schema`.

    An answer may be trimmed, so that no field of its schema is required.
    """
    question_schema = dict(schema(command_of_tool(name)))
    output: JsonObject = _without_required(question_schema.pop("output", {}))
    output["type"] = "object"
    output["properties"] = dict(output.get("properties", {})) | {TRIMMED: TRIMMED_SCHEMA}
    question_parameters = question_schema["properties"]
    inputs = {
        "type": "object",
        "properties": {**question_parameters, **_trim_parameters(question_parameters)},
        "required": question_schema["required"],
        "additionalProperties": _takes_settings(_load_question(name)),
    }
    return ToolSchema(name, question_schema["description"], inputs, output)


def list_tools() -> Iterator[ToolSchema]:
    """Yield all tools."""
    return (tool_schema(tool_name(command)) for command in QUESTIONS)


def call_tool(name: str, arguments: Mapping[str, Any]) -> JsonObject:
    """Return the trimmed answer of a question.

    Args:
        name: the name of the tool.
        arguments: the question's parameters by name, `top` and `fields`.

    Raises:
        InputError: for an unknown tool, parameter or field, and whatever the question refuses.
    """
    question = _load_question(name)
    parameters = parameters_of(question)
    question_names = [parameter.name for parameter in parameters]
    trim_names = list(_trim_parameters(question_names))
    valid_names = [*question_names, *trim_names]
    values = {key: value for key, value in arguments.items() if value is not None}
    if not _takes_settings(question):
        for key in values:
            if key not in valid_names:
                raise unknown("parameter", key, valid_names, name)
    for parameter in parameters:
        is_required = parameter.default is ...  # `...` stands for no default
        if is_required and parameter.name not in values:
            raise InputError(f"{name}: the parameter '{parameter.name}' is missing")
    # `top` and `fields` trim the answer, unless the question itself has a parameter of that name:
    # then they are not among `trim_names`.
    trims = {key: values.pop(key) for key in trim_names if key in values}
    top = parse_count(trims["top"], "top") if "top" in trims else None
    answer = _call_question(question, values)
    return trim_answer(answer.to_dict(), top, trims.get("fields"))


def _load_question(tool: str) -> Callable[..., Answer]:
    question: Callable[..., Answer] = load(QUESTIONS[command_of_tool(tool)].answer)
    return question


def _takes_settings(question: Callable[..., Any]) -> bool:
    """Whether a question takes settings that its signature does not name."""
    variadic = [
        parameter
        for parameter in inspect.signature(question).parameters.values()
        if parameter.kind is inspect.Parameter.VAR_KEYWORD
    ]
    # `**settings: object` takes any name; a typed dict names the parameters that there are.
    hints = get_type_hints(question)
    return any(hints[parameter.name] is object for parameter in variadic)


def _call_question(question: Callable[..., Answer], values: Mapping[str, Any]) -> Answer:
    """Return the answer to a question; a list of `*folders` becomes its positional arguments."""
    keywords = dict(values)
    parameters = list(inspect.signature(question).parameters.values())
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return question(**keywords)
    list_index = kinds.index(inspect.Parameter.VAR_POSITIONAL)  # of `*folders`
    leading_values = [keywords.pop(parameter.name) for parameter in parameters[:list_index]]
    value = keywords.pop(parameters[list_index].name)
    list_values = value if isinstance(value, list) else [value]
    return question(*leading_values, *list_values, **keywords)


def trim_answer(
    document: JsonObject, top: int | None = None, fields: Sequence[str] | str | None = None
) -> JsonObject:
    """Return an answer with some fields and the first items of its lists.

    Args:
        document: the answer.
        top: number of rows; None for `DEFAULT_ROWS`.
        fields: names such as `step_s` or `rows.device`; None for all.

    Raises:
        InputError: for a field that the answer does not have.
    """
    selected = document
    if fields is not None:
        names = [fields] if isinstance(fields, str) else fields
        selected = _select_fields(document, names)
    full_lengths: dict[str, int] = {}  # of the lists that are shortened, filled in below
    trimmed = {
        key: _shorten_lists(value, key, top or DEFAULT_ROWS, full_lengths)
        for key, value in selected.items()
    }
    return {**trimmed, TRIMMED: full_lengths} if full_lengths else trimmed


def _trim_parameters(names: Iterable[str]) -> dict[str, JsonObject]:
    """Return `top` and `fields`, without those that a question has by itself."""
    return {
        name: parameter_schema
        for name, parameter_schema in TRIM_PARAMETERS.items()
        if name not in names
    }


def _without_required(value: Any) -> Any:
    """Return a schema in which no field is required, at any depth."""
    if isinstance(value, Mapping):
        # in a schema the key "required" has a list of names; else it is the name of a field
        lists_required_names = isinstance(value.get("required"), list)
        return {
            key: _without_required(item)
            for key, item in value.items()
            if not (lists_required_names and key == "required")
        }
    return [_without_required(item) for item in value] if isinstance(value, list) else value


def _select_fields(document: JsonObject, names: Sequence[str]) -> JsonObject:
    """Return an answer with the named fields alone, those of rows in all rows."""
    inner_names_by_field: dict[str, list[str]] = {}
    for name in names:
        field, _, inner_name = str(name).partition(".")
        if field not in document:
            raise unknown("field", field, document, "fields")
        inner_names = inner_names_by_field.setdefault(field, [])
        if inner_name:
            inner_names.append(inner_name)
    return {
        field: _select_inner(document[field], inner_names)
        for field, inner_names in inner_names_by_field.items()
    }


def _select_inner(value: Any, names: Sequence[str]) -> Any:
    if not names:
        return value
    if isinstance(value, Mapping):
        return _select_fields(dict(value), names)
    if isinstance(value, list):
        return [_select_inner(item, names) for item in value]
    raise unknown("field", names[0], [], "fields")  # a number or a text has no fields


def _shorten_lists(value: Any, path: str, top: int, full_lengths: dict[str, int]) -> Any:
    """Return a value with the first items of its lists, and put their lengths into `lengths`."""
    if isinstance(value, Mapping):
        return {
            key: _shorten_lists(item, f"{path}.{key}", top, full_lengths)
            for key, item in value.items()
        }
    if not isinstance(value, list):
        return value
    are_rows_of_answer = path == "rows"
    limit = top if are_rows_of_answer else MAX_ITEMS
    if len(value) > limit:
        full_lengths[path] = len(value)
    return [
        _shorten_lists(item, f"{path}[{index}]", top, full_lengths)
        for index, item in enumerate(value[:limit])
    ]
