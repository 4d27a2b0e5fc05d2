"""The types of JSON documents: what answers, records and files hold as plain values."""

from typing import Any

JsonValue = Any
"""None, a truth value, a number, a text, a list of values or a `JsonObject`.

It is not narrowed, since readers know the fields of the documents that they read.
"""
JsonObject = dict[str, JsonValue]
"""A JSON object, or a TOML table: values by name."""
Scalar = bool | int | float | str | None
"""A value of a hyperparameter or an option in a row."""
