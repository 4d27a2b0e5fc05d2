"""Attack steptime, and say what came of it: python -m attack [GROUP ...] (--help says more)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs/reliability.md"
INPUTS, AT_ONCE = 100_000, 10_000  # of all, of one seed
ABOUT = """\
Attack steptime: kills, disks, writers, inputs, texts, archives, mutants.

Without a group all of them. What is drawn hangs on --seed alone. The exit code is 1 where anything
went wrong. With --write the results of the groups that ran are kept, and the page is written."""
Row = dict[str, object]


class Result(NamedTuple):
    """A part of an attack: its row of the page, and how much went wrong."""

    row: Row
    faults: int


def _kills(options: Namespace, scratch: Path) -> Iterator[Result]:
    from attack.kill_scenarios import SCENARIOS
    from attack.kills import attack

    for one in SCENARIOS:
        tally = attack(one, max(1, round(options.share * one.kills)), options.seed, scratch)
        yield Result(tally.row(), tally.faults)


def _disks(options: Namespace, scratch: Path) -> Iterator[Result]:
    from attack.disks import DISKS, DRAWS, attack

    for one in DISKS:
        if one.is_mounted and (os.getuid() or not shutil.which("mount")):
            yield Result({"disk": one.name, "runs": 0, "exit codes": "needs root", "wrong": 0}, 0)
            continue
        tally = attack(one, max(1, round(options.share * DRAWS)), options.seed, scratch)
        _tell(tally.wrong)
        yield Result(tally.row(), tally.faults)


def _writers(options: Namespace, scratch: Path) -> Iterator[Result]:
    from attack.disks import WRITERS, writers

    row = writers(max(2, round(options.share * WRITERS)), scratch)
    yield Result(row, sum(int(str(row[name])) for name in ("failed", "lost", "doubled")))


def _texts(options: Namespace, scratch: Path) -> Iterator[Result]:
    from attack.texts import OF_DEVICES, SINKS, attack

    for name in (*SINKS, *OF_DEVICES):
        tally = attack(name, options.share, options.seed, scratch)
        _tell(tally.wrong)
        yield Result(tally.row(), tally.faults)


def _archives(options: Namespace, scratch: Path) -> Iterator[Result]:
    from attack.archives import attack, kinds

    for kind in kinds():
        tally = attack(kind, scratch)
        _tell(tally.wrong)
        yield Result(tally.row(), tally.faults)


def _inputs(options: Namespace, scratch: Path) -> Iterator[Result]:
    """Yield what became of inputs, ten thousand of a seed: what `scripts/attack` does alone."""
    left, seed = max(1, round(options.share * INPUTS)), options.seed
    while left > 0:
        count, seed = min(left, AT_ONCE), seed + 1
        words = ["scripts/attack", "--inputs", str(count), "--seed", str(seed), *options.workers]
        said = _script(words, scratch)
        last = re.search(r"([\d,]+) inputs, ([\d,]+) of them records: (\d+) failed$", said)
        memory = re.search(r"([\d.]+) GB at most", said)
        failed = int(last[3]) if last else count
        yield Result(
            {
                "seed": seed, "inputs": count, "of them records": last[2] if last else "?",
                "most memory, GB": memory[1] if memory else "?", "failed": failed,
            },
            failed,
        )  # fmt: skip
        left -= count


def _mutants(options: Namespace, scratch: Path) -> Iterator[Result]:
    """Yield what became of each mutant, or of every n-th: what `scripts/mutants` does alone."""
    from runpy import run_path

    number = len(run_path(str(ROOT / "scripts/mutants"))["MUTANTS"])
    every = max(1, round(1 / options.share))
    chosen = range(1 + options.seed % every, number + 1, every)
    said = _script(["scripts/mutants", "--only", ",".join(map(str, chosen))], scratch)
    lines = re.findall(r"^ *(\d+) (\w+) +(.*) \((.*)\)$", said, re.MULTILINE)
    survivors = 0
    for one, word, what, test in lines:
        survivors += word != "killed"
        yield Result({"mutant": int(one), "change": what, "became": word, "by": test}, 0)
    least = 1 if options.share >= 1 else 0  # of 29 one may live
    missing = len(chosen) - len(lines)
    yield Result(
        {
            "mutant": "all",
            "change": "",
            "became": f"{len(lines) - survivors} of {len(chosen)} killed",
            "by": "",
        },
        max(0, survivors - least) + missing,
    )


def _script(words: Sequence[str], scratch: Path) -> str:
    """Return what a script of ours printed."""
    path = os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    env = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(scratch)}
    line = [sys.executable, *words]
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
    return done.stdout.rstrip()


def _tell(wrong: Sequence[str]) -> None:
    for text in wrong:
        print(text, file=sys.stderr)


GROUPS: Mapping[str, Callable[[Namespace, Path], Iterator[Result]]] = {
    "kills": _kills, "disks": _disks, "writers": _writers, "inputs": _inputs, "texts": _texts,
    "archives": _archives, "mutants": _mutants,
}  # fmt: skip


def options(arguments: Sequence[str]) -> Namespace:
    """Return the options of a command line."""
    parser = ArgumentParser(
        "python -m attack", description=ABOUT, formatter_class=RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    add("--share", type=float, default=1.0, metavar="F", help="of the full size (default: 1)")
    add("--seed", type=int, default=0, metavar="N", help="what is drawn hangs on it (default: 0)")
    add("--workers", type=int, default=1, metavar="N", help="processes of inputs (default: 1)")
    add("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    read = parser.parse_args(arguments)
    if unknown := {*read.groups} - {*GROUPS}:
        parser.error(f"no group {', '.join(sorted(unknown))}; known: {', '.join(GROUPS)}")
    read.workers = ["--workers", str(read.workers)]
    return read


def _write(name: str, parts: Sequence[Result], read: Namespace, seconds: float) -> None:
    """Keep what came of an attack so far, and write the page of all."""
    from attack.page import page, versions

    about: dict[str, Any] = {
        "share": read.share, "seed": read.seed, "seconds": round(seconds),
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "versions": versions(),
        "faults": sum(one.faults for one in parts), "rows": [one.row for one in parts],
    }  # fmt: skip
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(results | {name: about}, indent=1) + "\n")
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


def main(arguments: Sequence[str]) -> int:
    """Attack, and return 1 where anything went wrong."""
    read = options(arguments)
    faults = 0
    for name in read.groups or GROUPS:
        began, scratch = time.monotonic(), Path(tempfile.mkdtemp(prefix="steptime-attack-"))
        parts = []
        try:
            for part in GROUPS[name](read, scratch):
                print(name, json.dumps(part.row), flush=True)
                parts.append(part)
                if read.write:
                    _write(name, parts, read, time.monotonic() - began)
        finally:  # not by its own finalizer, which forks of this process would have, too
            shutil.rmtree(scratch, ignore_errors=True)
        wrong = sum(one.faults for one in parts)
        print(f"{name}: {wrong} faults in {time.monotonic() - began:.0f} s", flush=True)
        faults += wrong
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
