"""The command `steptime`: runs a command line, turns errors into one line and an exit code.

Exit codes: 0 done; 2 wrong input; 3 some experiments did not succeed; 130 Ctrl-C;
1 anything else.
"""

import errno
import os
import re
import sys
from collections.abc import Sequence

from cyclopts import CycloptsError

from steptime.cli.commands import build_app
from steptime.core.errors import MAX_VALUE_CHARACTERS, InputError, OutsideError, escape_controls
from steptime.core.progress import print_note

INTERRUPTED = 130  # what shells give a command after Ctrl-C
MAX_WORD_CHARACTERS = 300  # a path may be so long in a message
_LONG_WORD = re.compile(rf"\S{{{MAX_WORD_CHARACTERS + 1},}}")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; errors print one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = build_app(words)(
            words, exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
    except InputError as error:
        return _fail(str(error), 2)
    except OutsideError as error:
        return _fail(str(error), 1)
    except CycloptsError as error:
        from steptime.cli.usage import describe_usage_error

        return _fail(describe_usage_error(error), 2)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        # Python flushes stdout once more as it ends: into nothing, or it would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        is_path_too_long = error.errno == errno.ENAMETOOLONG  # a path that the user typed
        line = f"{error.filename or 'system'}: {error.strerror or error}"
        return _fail(line, 2 if is_path_too_long else 1)
    except KeyboardInterrupt as error:
        return _fail("; ".join(filter(None, ("interrupted", str(error)))), INTERRUPTED)
    return code if isinstance(code, int) else 0


def _fail(text: str, code: int) -> int:
    """Print one line and return the code; a word longer than any path that people read is cut."""
    line = _LONG_WORD.sub(
        lambda word: word[0][:MAX_VALUE_CHARACTERS] + "...", escape_controls(text)
    )
    print_note(f"steptime: {line}")
    return code


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run())
