"""Disks that are full, read-only or gone in the midst, and many writers into one folder.

Each run ends with exit code 0, 1, 2 or 3, at most one line that says why, every earlier record as
it was, and nothing in TMPDIR.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import synthetic
from attack.kill_scenarios import MAPPING, SPACE, SWEEP
from attack.tally import Tally
from attack.victims import Act, run
from steptime.cli.main import run as command
from steptime.core.copying import replace
from steptime.records import store
from steptime.records.record import record_to_line

DRAWS = 6  # of each command on each disk
SMALL_KB = 160  # of a disk that fills
EACH = 25  # records of a writer
WRITERS = 200
ENDINGS = (".jsonl", ".lock", ".csv", ".html")
KNOWN = (0, 1, 2, 3)  # exit codes of ours
COMMANDS: dict[str, str] = {
    "sweep": "sweep ../e.json --out out",
    "sweep of predictions": "sweep ../space.json --out out",
    "import": "import ../rows.csv --mapping ../m.toml --out out",
    "predict --in": "predict --in out --device T4",
    "report": "report out -o r.html",
    "report in Markdown": "report out -o r.md",
    "plot": "analyse roofline out -o p.html",
    "export": "query --in out -o e.csv",
    "export to Parquet": "query --in out -o e.parquet",
    "query": "query SELECT(count(*))FROM(records) --in out",
    "convert": "convert fc -o n.json",
    "calibrate": "calibrate --backend null --threads 1 --minutes 0.05 --points 2",
    "run": "run fc --batch 2 --budget 0.02 --backend null --out out",
}
ELSEWHERE = {"TMPDIR": "tmp", "XDG_CACHE_HOME": "caches", "STEPTIME_HOME": "home"}


def limited(act: Act, rng: random.Random) -> Act:
    """Return the act where no file can grow above a size, as where a quota is used up."""

    def acted() -> int:
        most = int(10 ** rng.uniform(0, 5))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        return act()

    return acted


def filled(act: Act, rng: random.Random) -> Act:
    """Return the act where the disk of the current folder has few bytes left."""

    def acted() -> int:
        left = int(10 ** rng.uniform(1, 5))
        free = shutil.disk_usage(".").free
        Path("ballast").write_bytes(b"x" * max(0, free - left))
        return act()

    return acted


def read_only(act: Act, rng: random.Random) -> Act:
    """Return the act where the disk of the current folder takes nothing."""

    def acted() -> int:
        os.chdir(place := Path.cwd())
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        return act()

    return acted


def vanishing(act: Act, rng: random.Random) -> Act:
    """Return the act where all below the current folder goes in its midst."""

    def acted() -> int:
        at = rng.randint(1, 6)
        opened = itertools.count(1)

        def hook(name: str, words: tuple[object, ...]) -> None:
            is_ours = name == "open" and str(words[0]).endswith(ENDINGS)
            if is_ours and next(opened) == at:
                for one in Path().iterdir():
                    shutil.rmtree(one, ignore_errors=True)

        sys.addaudithook(hook)  # of this process, which is to end soon
        return act()

    return acted


@dataclass(frozen=True)
class Disk:
    """What is wrong with a disk, and whether it is one of its own, which takes root."""

    name: str
    harm: Callable[[Act, random.Random], Act]
    is_mounted: bool = False
    places: Sequence[str] = ()  # variables whose folders lie on it, too


DISKS = (
    Disk("no file may grow above 1 B to 100 kB", limited),
    Disk("full to 10 B to 100 kB", filled, True),
    Disk("full, with TMPDIR, caches and home on it", filled, True, tuple(ELSEWHERE)),
    Disk("read-only", read_only, True),
    Disk("read-only, with TMPDIR, caches and home on it", read_only, True, tuple(ELSEWHERE)),
    Disk("emptied at the n-th file", vanishing),
)


def attack(disk: Disk, draws: int, seed: int, scratch: Path) -> Tally:
    """Return what became of each command on a disk."""
    rng, codes, number = random.Random(f"{seed} {disk.name}"), Counter[int](), 0  # noqa: S311  # draws, no secret
    wrong: list[str] = []
    for name, line in COMMANDS.items():
        for _ in range(draws):
            number += 1
            folder = scratch / f"{DISKS.index(disk)}-{number}"
            texts = _tried(disk, line, rng, folder, codes)
            wrong += [f"{name}: {text}" for text in texts]
    said = ", ".join(f"{count} x {code}" for code, count in sorted(codes.items()))
    first = {"disk": disk.name, "runs": codes.total(), "exit codes": said}
    return Tally(first, wrong=wrong)


def _tried(
    disk: Disk, line: str, rng: random.Random, folder: Path, codes: Counter[int]
) -> list[str]:
    """Return what is wrong with a run of a command on a disk."""
    (place := folder / "disk").mkdir(parents=True)
    for name, table in (("e.json", SWEEP), ("space.json", SPACE)):
        (folder / name).write_text(json.dumps(table))
    rows = "".join(f"{1 + i % 7},{1 + i},{10 + i}\n" for i in range(200))
    (folder / "rows.csv").write_text(f"layers,batch,t\n{rows}")
    (folder / "m.toml").write_text(MAPPING)
    if disk.is_mounted:
        size = f"size={SMALL_KB}k"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], check=True)
    try:
        lines = [record_to_line(one) for one in synthetic.sweep()[:20]]
        (place / "out").mkdir()
        (earlier := place / "out/records-0.jsonl").write_text("\n".join(lines) + "\n")
        more = {
            name: str(place / short if name in disk.places else folder / "elsewhere" / short)
            for name, short in ELSEWHERE.items()
        }
        act = disk.harm(lambda: command(line.split()), rng)
        end = run(act, place, more=more)
        kept = earlier.read_text().splitlines() if earlier.exists() else []
    finally:
        if disk.is_mounted:
            subprocess.run(["umount", "--lazy", place], check=True)
    codes[end.code] += 1
    ends = [one for one in end.said.splitlines() if one.startswith("steptime: ")]
    is_gone = disk.harm is vanishing
    wrong = {
        f"exit code {end.code}": end.code not in KNOWN,
        "a traceback": end.has_traceback,
        "orphans": end.orphans > 0,
        "left in TMPDIR": bool(end.left) and not disk.places,
        f"{len(ends)} lines of what failed": end.code in (1, 2) and len(ends) != 1,
        "earlier records changed": kept != lines and not is_gone,
    }
    texts = [text for text, is_wrong in wrong.items() if is_wrong]
    return [f"{text}: {line}: {end.said[-1200:]}" for text in texts]


def writers(count: int, scratch: Path) -> dict[str, object]:
    """Return what is in a folder into which so many processes wrote at once."""
    some = next(one for one in synthetic.sweep() if one.origin == "measured")
    begin, go = os.pipe()
    pids = []
    for who in range(count):
        if pid := os.fork():
            pids.append(pid)
            continue
        code = 1
        try:
            os.close(go)
            os.read(begin, 1)  # until all are there
            with store.open_writer(scratch / "out") as writer:
                for number in range(EACH):
                    writer.append(replace(some, env={"who": who, "number": number}))
            code = 0
        finally:
            os._exit(code)
    os.close(begin)
    os.close(go)
    failed = sum(bool(os.waitpid(pid, 0)[1]) for pid in pids)
    kept = Counter(
        (one.env["who"], one.env["number"]) for one in store.load(scratch / "out", lambda _: None)
    )
    wanted = {(who, number) for who in range(count) for number in range(EACH)}
    return {
        "writers": count, "records": kept.total(), "failed": failed,
        "lost": len(wanted - kept.keys()), "doubled": kept.total() - len(kept),
    }  # fmt: skip
