"""Forty archives and files of weights as nobody should send them: an answer or one line each.

None is unpacked, none runs what it carries, and none takes more than 2 GB or 30 s of a processor.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import resource
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import exported
from attack.tally import Tally
from attack.victims import run, warm
from onnx_bytes import model, node, tensor, value
from psc_log_text import psc_log
from steptime.cli.main import run as command

LOG = psc_log().encode()
BOMB = 300_000_000  # bytes, of which a thousandth is in the archive
MEMORY_BYTES, SECONDS = 2e9, 30
ROOT = tempfile.gettempdir()  # where a name from the root leads
OUTSIDE = "escaped"  # the name of what an archive would write elsewhere
KERAS = {
    "class_name": "Sequential",
    "config": {
        "name": "s",
        "layers": [
            {"class_name": "InputLayer", "config": {"batch_shape": [None, 8], "name": "i"}},
            {"class_name": "Dense", "config": {"name": "d", "units": 5, "use_bias": True}},
        ],
    },
}
RELU = model(
    [node("MatMul", "x w", "h"), node("Relu", "h", "y")],
    [tensor("w", (4, 4))],
    [value("x", 2, 4)],
)


class Carrier:
    """What leaves a canary where it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("RAN"),)


def tarred(*members: tuple[str, bytes | str], mode: str = "w:gz") -> bytes:
    """Return an archive of files, and of links where the content is a text."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]  # its stubs want a literal mode
        for name, content in members:
            one = tarfile.TarInfo(name)
            if isinstance(content, str):
                one.type, one.linkname = tarfile.SYMTYPE, content
                archive.addfile(one)
            else:
                one.size = len(content)
                archive.addfile(one, io.BytesIO(content))
    return made.getvalue()


def zipped(*members: tuple[str, bytes | str], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a ZIP archive of files; a name that stands twice is there twice."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return made.getvalue()


def exported_with(*more: tuple[str, bytes | str], content: Any = None) -> bytes:
    """Return a `.pt2` with more members."""
    return zipped(("net/models/model.json", json.dumps(content or exported.document())), *more)


def small(packed: bytes) -> bytes:
    """Return a ZIP archive that says that its last member is of 1,000 bytes."""
    raw = bytearray(packed)
    at = raw.rfind(b"PK\x01\x02")
    raw[at + 24 : at + 28] = struct.pack("<I", 1000)
    return bytes(raw)


def flagged(packed: bytes) -> bytes:
    """Return a ZIP archive that says that its last member is encrypted."""
    raw = bytearray(packed)
    for mark, place in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        raw[raw.rfind(mark) + place] |= 1
    return bytes(raw)


def member(content: bytes, level: int = 9) -> bytes:
    """Return what gzip makes of bytes."""
    return gzip.compress(content, level)


PICKLED = pickle.dumps(Carrier())
CONFIG = json.dumps(KERAS)
DEEP = '{"a":' * 50_000
ARCHIVES: Mapping[str, Callable[[], bytes]] = {
    # of results, for `import`
    "log.tar.gz, cut": lambda: tarred(("slurm-1.out", LOG * 9))[:-40],
    "zeros.tar.gz, a bomb": lambda: tarred(("a.out", bytes(BOMB))),
    "zeros.gz, a bomb": lambda: member(bytes(BOMB)),
    "twice.gz, a bomb within": lambda: member(member(bytes(BOMB))),
    "up.tar, names that go up": lambda: tarred((f"../../{OUTSIDE}", LOG), mode="w"),
    "root.tar, a name from the root": lambda: tarred((f"{ROOT}/{OUTSIDE}", LOG), mode="w"),
    "link.tar, a link to a file": lambda: tarred(("l.out", "/etc/passwd"), mode="w"),
    "loop.tar, links in a circle": lambda: tarred(("a", "b"), ("b", "a"), mode="w"),
    "dir.tar, a link to a folder, and a file in it": lambda: tarred(
        ("d", ROOT), (f"d/{OUTSIDE}", LOG), mode="w"
    ),
    "same.tar, a name twice": lambda: tarred(("a.out", LOG), ("a.out", LOG + b"\n"), mode="w"),
    "nested.tar, archives in archives": lambda: tarred(
        ("b.tar.gz", tarred(("c.tar.gz", tarred(("d.out", LOG))))), mode="w"
    ),
    "many.tar, 20,000 files": lambda: tarred(*((f"{i}", b"") for i in range(20_000)), mode="w"),
    "strange.tar, names with escapes": lambda: tarred(("\x1b[2Ja\nb", LOG), ("", LOG), mode="w"),
    "size.tar, sizes that lie": lambda: tarred(("a.out", LOG), mode="w").replace(
        b"%011o" % len(LOG), b"77777777777"
    ),
    "bz.tar.bz2, of another packer": lambda: tarred(("a.out", LOG), mode="w:bz2"),
    "junk.tar.gz, a head alone": lambda: b"\x1f\x8b\x08" + os.urandom(2000),
    # exports of torch
    "cut.pt2": lambda: exported_with()[:-60],
    "bomb.pt2": lambda: zipped(("net/models/model.json", " " * BOMB)),
    "liar.pt2, a bomb that says it is small": lambda: small(
        zipped(("net/models/model.json", " " * BOMB))
    ),
    "up.pt2, names that go up": lambda: exported_with((f"../../{OUTSIDE}", "x")),
    "root.pt2, a name from the root": lambda: exported_with((f"{ROOT}/{OUTSIDE}", "x")),
    "two.pt2, a name twice": lambda: exported_with(("net/models/model.json", "{}")),
    "pickle.pt2, weights that run": lambda: exported_with(
        ("net/data/weights/w.pt", PICKLED), ("net/data.pkl", PICKLED)
    ),
    "whole.pt2, a pickle alone": lambda: PICKLED,
    "locked.pt2, encrypted": lambda: flagged(exported_with()),
    "deep.pt2, nested without end": lambda: zipped(("net/models/model.json", DEEP)),
    "empty.pt2": zipped,
    "text.pt2, another file": lambda: b"%PDF-1.4",
    # of Keras
    "cut.keras": lambda: zipped(("config.json", CONFIG))[:-30],
    "bomb.keras": lambda: zipped(("config.json", " " * BOMB)),
    "up.keras, names that go up": lambda: zipped((f"../{OUTSIDE}", CONFIG)),
    "weights.keras, others that run": lambda: zipped(
        ("config.json", CONFIG), ("model.weights.h5", PICKLED), ("a.py", "open('RAN', 'w')")
    ),
    # ONNX
    "cut.onnx": lambda: RELU[:-5],
    "junk.onnx": lambda: os.urandom(5000),
    "loop.onnx, a node that feeds itself": lambda: model(
        [node("Relu", "y", "y")], [], [value("x", 2, 4)]
    ),
    "huge.onnx, weights of 2^60 numbers": lambda: model(
        [node("MatMul", "x w", "y")], [tensor("w", (2**30, 2**30), b"")], [value("x", 2, 2**30)]
    ),
    "pickle.onnx": lambda: PICKLED,
    "zip.onnx, an archive": lambda: zipped(("model.onnx", RELU)),
    # arrays
    "pickle.npz, objects that run": lambda: zipped(("a.npy", PICKLED)),
    "array.npz, a bomb": lambda: zipped(("a.npy", bytes(BOMB))),
}


def kinds() -> list[str]:
    """Return the endings of archives."""
    return [*dict.fromkeys(map(_kind, ARCHIVES))]


def _kind(title: str) -> str:
    return title.partition(",")[0].partition(".")[2]


def attack(kind: str, scratch: Path) -> Tally:
    """Return what became of all archives of a kind."""
    tally = Tally({"archives": kind})
    for title, made in ARCHIVES.items():
        if _kind(title) == kind:
            (place := scratch / f"{len([*scratch.iterdir()])}/a/b").mkdir(parents=True)
            (place / title.partition(",")[0]).write_bytes(made())
            _tried(kind, title, place, tally)
    return tally


def _tried(kind: str, title: str, place: Path, tally: Tally) -> None:
    """Add to the tally what a command did with an archive in a folder two below an empty one."""
    name = title.partition(",")[0]
    is_result = any(part in kind for part in ("tar", "gz", "npz"))
    words = ["import", name, "--out", "out"] if is_result else ["count", name]
    used = place / "used"

    def act() -> int:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        code = command(words)
        used.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
        return code

    end = (run if tally.counts else warm)(act, place)
    most_bytes = int(used.read_text()) if used.exists() else 0
    outside = [
        *place.parents[1].rglob(OUTSIDE),
        *place.parents[1].rglob("RAN"),
        *Path(ROOT).glob(OUTSIDE),
    ]
    lines = [one for one in end.said.splitlines() if one.startswith("steptime: ")]
    wrong = {
        f"exit code {end.code}": end.code not in (0, 2),
        "a traceback": end.has_traceback,
        f"{len(lines)} lines": end.code == 2 and len(lines) != 1,
        "written outside, or run": bool(outside),
        "left in TMPDIR": bool(end.left),
        f"{most_bytes / 1e6:.0f} MB": most_bytes > MEMORY_BYTES,
        "an escape on the terminal": "\x1b" in end.said,
    }
    texts = [text for text, is_wrong in wrong.items() if is_wrong]
    is_refused = end.code != 0 and not texts
    tally.add({"read": 1, "answered": end.code == 0, "refused in a line": is_refused})
    most = "most memory, MB"
    tally.counts[most] = max(tally.counts[most], round(most_bytes / 1e6))
    if texts:
        tally.wrong.append(f"{title}: {', '.join(texts)}: {end.said[-600:]}")
