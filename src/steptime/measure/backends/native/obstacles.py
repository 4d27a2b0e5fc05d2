"""What stands in the way of an export, in one line: a value, packed sequences, torch's words."""

import traceback
from pathlib import Path

import torch

from steptime.core.errors import InputError
from steptime.measure.backends.native.inputs import VALUE_ERRORS

MAX_REASON = 300  # characters of what torch says


def describe_obstacle(error: Exception) -> str:
    """Describe what stops a trace: packed sequences and values by name, else in torch's words."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Torch's recurrent layers hold `batch_sizes` where their input is a packed sequence.
    if any(frame.f_locals.get("batch_sizes") is not None for frame in frames):
        hint = "give the recurrent layer the padded tensor, which counts the padding, too"
        return f"packs sequences by their lengths, which are values that no export has; {hint}"
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, VALUE_ERRORS):
        line = _describe_user_line(error)
        return f"a value decides a size or a branch{line}, which no export has; give it as a number"
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text[:MAX_REASON]


def _describe_user_line(error: Exception) -> str:
    """Say which line of the module an error comes from: ` (net.py, line 7: n = int(b.max()))`.

    It is the innermost that lies neither in torch nor here; "" if there is none.
    """
    libraries = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    for entry in reversed(traceback.extract_tb(error.__traceback__)):
        is_in_library = entry.filename.startswith((*libraries, "<"))  # "<string>": made code
        if not is_in_library and "contextlib" not in entry.filename:
            return f" ({Path(entry.filename).name}, line {entry.lineno}: {entry.line})"
    return ""
