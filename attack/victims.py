"""Processes to be killed: forked from one that has imported all, and ended at a drawn point.

A point is the n-th event of a process (it opens a file for writing, writes, flushes to the disk,
renames, removes, makes a folder, starts a process), or a share of the time that it takes. At the
event of a write half of it may be written before the signal comes.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import mmap
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import vl_convert

from steptime.__main__ import report_unraisable

Act = Callable[[], int]
MARK = "STEPTIME_ATTACK"  # a variable by which all processes of a victim are known
LIMIT_S = 600.0  # of waiting for an event: a fault, however busy this machine is
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
CHANGES = {
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"),
    *("os.posix_spawn", "subprocess.Popen", "fcntl.flock", "tempfile.mkdtemp", "tempfile.mkstemp"),
}


class Point(NamedTuple):
    """When a signal comes: at the n-th event, or after so many seconds where `event` is 0."""

    number: signal.Signals
    event: int = 0
    is_torn: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class End:
    """How a process ended: exit code (-9 for SIGKILL), what it said, and whether a signal came."""

    code: int
    said: str
    events: int
    seconds: float
    orphans: int
    left: tuple[str, ...]
    was_sent: bool

    @property
    def has_traceback(self) -> bool:
        """Return whether Python's own words stand in what it said."""
        return "Traceback (most recent call last)" in self.said


class _Events:
    """Count the events of this process, and send it a signal at one of them."""

    def __init__(self, point: Point | None, shared: memoryview) -> None:
        self._point, self._shared, self._at, self._is_inside = point, shared, 0, False

    def install(self) -> None:
        for name in ("write", "fsync", "ftruncate", "pwrite"):
            setattr(os, name, self._wrapped(getattr(os, name)))
        sys.addaudithook(self._audit)

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *more: Any) -> Any:
            if self._is_due() and self._point:
                if self._point.is_torn and real.__name__ == "write":
                    real(descriptor, more[0][: len(more[0]) // 2])
                self._send()
            return real(descriptor, *more)

        return call

    def _audit(self, name: str, words: tuple[Any, ...]) -> None:
        writes = name == "open" and isinstance(words[2], int) and words[2] & 3
        if (writes or name in CHANGES) and self._is_due():
            self._send()

    def _is_due(self) -> bool:
        if self._is_inside:
            return False
        self._at += 1
        self._shared[0] = self._at
        return self._point is not None and self._point.event == self._at

    def _send(self) -> None:
        self._is_inside = True
        self._shared[1] = 1
        number = self._point.number if self._point else signal.SIGKILL
        # Ctrl-C on a terminal is for all processes of its group
        (os.killpg if number == signal.SIGINT else os.kill)(os.getpid(), number)
        self._is_inside = False


def run(act: Act, folder: Path, point: Point | None = None, more: Mapping[str, str] = {}) -> End:
    """Return how `act` ended in a process whose current folder is `folder`.

    TMPDIR, caches and the home of steptime lie in `folder` unless `more` says so. Whatever it
    started is to go by itself, which is waited for.
    """
    shared = memoryview(mmap.mmap(-1, 16)).cast("q")
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    places = {"TMPDIR": "tmp", "XDG_CACHE_HOME": "caches", "STEPTIME_HOME": "home"}
    env = {name: str(folder / place) for name, place in places.items()} | {MARK: mark, **more}
    for name in places:
        Path(env[name]).mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    heard, said = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        _be(act, folder, env, said, _Events(point, shared))
    os.close(said)
    pieces: list[bytes] = []
    reader = threading.Thread(target=_read, args=(heard, pieces))
    reader.start()
    is_late = _signal_after(pid, point.seconds, point.number) if point and not point.event else None
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - began
    orphans = _orphans(mark, pid)
    reader.join()
    os.close(heard)
    text = b"".join(pieces).decode("utf-8", "replace")
    left = tuple(sorted(str(one.name) for one in Path(env["TMPDIR"]).iterdir()))
    shutil.rmtree(env["TMPDIR"], ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    return End(code, text, shared[0], seconds, orphans, left, bool(is_late or shared[1]))


def warm(act: Act, folder: Path) -> End:
    """Return how an act ended, after which this process has imported what it did: so have forks.

    What is made anew for each page by threads that no fork has, Vega's scripts, is kept as well.
    """
    bundle = vl_convert.javascript_bundle
    (made := folder / "bundle").mkdir(exist_ok=True)

    def bundled(*words: Any) -> str:
        text = bundle(*words)
        (made / "words").write_text(json.dumps(words))
        (made / "text").write_text(text)
        return text

    def acted() -> int:
        if bundle.__module__ != __name__:  # it is not kept yet
            vl_convert.javascript_bundle = bundled  # type: ignore[assignment]  # for this process
        code = act()
        ours = ("steptime", "duckdb", "numpy", "scipy", "pydantic", "msgspec", "cyclopts", "rich")
        names = [one for one in sys.modules if one.partition(".")[0] in ours and "__" not in one]
        (folder / "modules").write_text("\n".join(names))
        return code

    end = run(acted, folder)
    for name in (folder / "modules").read_text().split():
        importlib.import_module(name)
    (folder / "modules").unlink()
    if (made / "text").exists():
        text, wanted = (made / "text").read_text(), json.loads((made / "words").read_text())
        vl_convert.javascript_bundle = lambda *words: text if [*words] == wanted else bundle(*words)
    shutil.rmtree(made)
    return end


def _be(act: Act, folder: Path, env: Mapping[str, str], said: int, events: _Events) -> None:
    """Be the victim: this function does not come back."""
    code = 99
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
        os.environ.update(env)
        tempfile.tempdir = None
        os.chdir(folder)
        for descriptor in (1, 2):
            os.dup2(said, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.unraisablehook = report_unraisable  # as the command sets it
        events.install()
        code = act()
        gc.collect()
        atexit._run_exitfuncs()  # noqa: SLF001  # what goes with a process that ends by itself
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130  # before the command began, or when it was over
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  # whatever comes is what is looked for
        traceback.print_exc()
    finally:
        os._exit(code)


def _read(heard: int, pieces: list[bytes]) -> None:
    while piece := os.read(heard, 1 << 16):
        pieces.append(piece)


def _signal_after(pid: int, seconds: float, number: signal.Signals) -> bool:
    """Return whether a process still lived after so many seconds, and send it a signal then."""
    descriptor = os.pidfd_open(pid)
    try:
        if select.select([descriptor], [], [], seconds)[0]:
            return False
        (os.killpg if number == signal.SIGINT else os.kill)(pid, number)
    except ProcessLookupError:
        return False  # it has no group of its own yet, or is gone
    finally:
        os.close(descriptor)
    return True


def _orphans(mark: str, session: int) -> int:
    """Return how many processes of a victim outlive it: those that do not go by themselves."""
    wanted, end = f"{MARK}={mark}".encode(), time.monotonic() + LIMIT_S
    while True:
        living = [one for one in Path("/proc").glob("[0-9]*") if _is_of(one, wanted, session)]
        if not living or time.monotonic() > end:
            break
        time.sleep(0.01)
    for one in living:
        os.kill(int(one.name), signal.SIGKILL)
    return len(living)


def _is_of(process: Path, wanted: bytes, session: int) -> bool:
    """Return whether a process is of a victim: by its session, or by the mark that it inherits."""
    try:
        state, _, _, at = (process / "stat").read_text().rpartition(")")[2].split()[:4]
        return state != "Z" and (int(at) == session or wanted in (process / "environ").read_bytes())
    except OSError:
        return False  # it is gone, or is somebody else's
