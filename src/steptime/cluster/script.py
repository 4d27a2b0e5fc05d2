"""The batch script of a job: a pure function of what its cells need."""

import shlex
from collections.abc import Iterable

from steptime.cluster.scheduler import Need

BEGUN = "steptime: begun"
READY = "steptime: ready"
NO_MODULE = "steptime: cannot load module"
RUN_FIRST_FAILED = "steptime: a line of run_first failed"


def script(
    need: Need,
    name: str,
    folder: str,
    python: str,
    flags: Iterable[str],
    job: str,
    index: str,
    launcher: str,
) -> str:
    """Return the text of the batch script of array `name`.

    Its argument is the number of the array's first task. `folder` holds what was submitted. What a
    scheduler says of itself: the lines of its `flags`, its variables for the job's id and for the
    place in the array, and the launcher that starts the processes of a cell on several nodes.
    """
    task = shlex.join((python, "-P", "-m", "steptime.cluster.task", folder))
    request = need.request
    lines = [
        "#!/bin/bash",
        f"# steptime: {name}",
        *flags,
        f'echo "{BEGUN} ${job}"',
        *(
            _or_end(f"module load {shlex.quote(module)}", f"{NO_MODULE} {module}")
            for module in request.modules
        ),
        *(_or_end(f"{{ {line}\n}}", f"{RUN_FIRST_FAILED}: {line}") for line in request.run_first),
        f'echo "{READY}"',
        f'exec {f"{launcher} " if need.nodes > 1 else ""}{task} "$(($1 + {index}))"',
    ]
    return "\n".join(lines) + "\n"


def _or_end(line: str, otherwise: str) -> str:
    return f"{line} || {{ echo {shlex.quote(otherwise)} >&2; exit 1; }}"
