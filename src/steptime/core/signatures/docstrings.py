"""Google docstrings of questions, groups of options and answers, as the surfaces show them."""

import inspect
from functools import cache
from typing import Any


@cache
def _parse(docstring: str) -> Any:
    from docstring_parser import parse
    from docstring_parser.common import DocstringStyle

    return parse(docstring, DocstringStyle.GOOGLE)


@cache
def argument_texts(docstring: str) -> dict[str, str]:
    """Return the texts under `Args` and `Attributes` by name, each on one line."""
    items = _parse(inspect.cleandoc(docstring)).params
    return {item.arg_name: " ".join((item.description or "").split()) for item in items}


def summary(docstring: str) -> str:
    """Return a docstring without its sections."""
    parsed = _parse(inspect.cleandoc(docstring))
    return "\n\n".join(filter(None, (parsed.short_description, parsed.long_description)))
