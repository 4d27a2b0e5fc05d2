"""Export of code in the process of the tests: a process for each export takes four seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from steptime.core.errors import InputError


def export_in_process(request: Mapping[str, Any], _code: str) -> dict[str, Any]:
    """Answer a request as the process of an export does."""
    from steptime.measure.backends.native import export

    try:
        return export._answer(json.loads(json.dumps(request)))
    except InputError as error:
        return {"refused": str(error)}
