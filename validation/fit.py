"""Fit the priors of `calibrated` to reference data: python -m validation.fit DATA [STAGE ...].

DATA is a folder with the data sets of others. Each stage reads its sets, leaves each device out in
turn, prints the table of errors on the device that was left out, and rewrites its section of
src/steptime/data/priors/. Without a stage, all run. The stage `intervals` comes last: it writes how
wide intervals are on devices never seen, from how far devices that were left out are off.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from validation.fitting.devices import fit_intervals
from validation.fitting.stages import PRIORS, STACKS, main
from validation.fitting.write import write, write_lines


def run(arguments: Sequence[str]) -> int:
    """Run the stages that are asked for, and return the exit code."""
    if arguments[1:] != ["intervals"]:
        return main(arguments)
    for stack, found in fit_intervals(Path(arguments[0])).items():
        if stack:
            write_lines(STACKS / Path(stack).with_suffix(".toml"), found)
        else:
            write(PRIORS / "gpu.toml", found)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
