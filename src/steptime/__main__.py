"""Entry point of `python -m steptime` and of the command `steptime`."""

import gc
import os
import signal
import sys

from steptime import __version__

INTERRUPTED = 130  # the exit code after Ctrl-C
# Allocations between two garbage collections. `predict`, which makes few reference cycles, ends
# before the first one; with Python's default, 700, collections took an eighth of its time.
GC_THRESHOLD = 250_000


def _exit_interrupted(*_: object) -> None:
    """Exit on Ctrl-C during the imports: no work is lost, and some modules swallow the signal."""
    os.write(2, b"steptime: interrupted\n")
    os._exit(INTERRUPTED)


def report_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Print an exception that Python cannot raise, except Ctrl-C while an object is destroyed."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)


def main() -> None:
    """Run the command line of this process; Ctrl-C while it is imported ends it, too."""
    if sys.argv[1:] in (["--version"], ["-V"]):  # what takes no time to say
        print(f"steptime {__version__}")
        return
    usual_handler = signal.getsignal(signal.SIGINT)
    may_replace = usual_handler is signal.default_int_handler  # not where a shell ignores Ctrl-C
    if may_replace:
        signal.signal(signal.SIGINT, _exit_interrupted)  # while modules are imported
    gc.set_threshold(GC_THRESHOLD)
    sys.unraisablehook = report_unraisable
    from steptime.cli.main import main as run

    if may_replace:
        signal.signal(signal.SIGINT, usual_handler)
    try:
        run()
    finally:
        gc.freeze()  # a last search for cycles among all objects would only delay the exit


if __name__ == "__main__":  # not in processes that it starts
    main()
