"""`python -m steptime` is the command `steptime`: the door of both."""

import gc
import os
import signal
import sys

from steptime import __version__

INTERRUPTED = 130  # the exit code after Ctrl-C
# New objects before Python looks for circles among them, which a short command makes few of: at its
# default, 700, looking took an eighth of the time of `predict`.
MORE_OBJECTS = 50_000


def _end(*_: object) -> None:
    """End at once: while modules are imported nothing is kept, and some would lose the signal."""
    os.write(2, b"steptime: interrupted\n")
    os._exit(INTERRUPTED)


def _dropped(told: "sys.UnraisableHookArgs") -> None:
    """Say what Python drops where an object ends, but for Ctrl-C, which may come after the work."""
    if told.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(told)


def main() -> None:
    """Run the command line of this process; Ctrl-C while it is imported ends it, too."""
    if sys.argv[1:] in (["--version"], ["-V"]):  # what takes no time to say
        print(f"steptime {__version__}")
        return
    before = signal.getsignal(signal.SIGINT)
    is_ours = before is signal.default_int_handler  # not where a shell has it ignored
    if is_ours:
        signal.signal(signal.SIGINT, _end)
    gc.set_threshold(MORE_OBJECTS)
    sys.unraisablehook = _dropped
    from steptime.cli.main import main as run

    if is_ours:
        signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":  # not in processes that it starts
    main()
