"""What commands print."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steptime.cli.main import run


def answer(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    """Return the document of a command line with --json that ends with `code`."""
    assert run([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)
