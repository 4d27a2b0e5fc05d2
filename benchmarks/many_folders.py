#!/usr/bin/env python3
"""How long very many folders of records take to read, and the memory that it needs.

    python benchmarks/many_folders.py [10000]

Makes folders of two measured steps each, as a nightly job leaves them, and reads all of them as one
frame and as one history, each in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from million_records import lines

RECORDS_OF_FOLDER = 2
TEMPLATES = 200  # records, from which folders take theirs in turn
READ = """
import sys
from pathlib import Path
from steptime.records.data import Data
paths = sorted(Path(sys.argv[1]).iterdir())
print(Data.load(paths, print).count_records(), "records of", len(paths), "folders")
"""
HISTORY = """
import sys
from pathlib import Path
import steptime
answer = steptime.analyse("history", *sorted(Path(sys.argv[1]).iterdir()))
print(len(answer.rows), "rows of a history")
"""


def make_folders(root: Path, count: int) -> None:
    """Write folders with one file of `RECORDS_OF_FOLDER` measured steps each."""
    steps = [line for line in lines(4 * TEMPLATES, seed=1) if '"origin":"measured"' in line]
    for number in range(count):
        folder = root / f"night-{number:06d}"
        folder.mkdir()
        first = RECORDS_OF_FOLDER * number % (TEMPLATES // 2)
        content = "\n".join(steps[first : first + RECORDS_OF_FOLDER])
        file = folder / f"records-20261101T000000.000000Z-1-{number:08x}.jsonl"
        file.write_text(f"{content}\n", encoding="utf-8")


def run(program: str, root: Path) -> None:
    """Run a program on the folders, and print its seconds, CPU seconds and peak memory."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", program, str(root)])
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    cpu_s = usage.ru_utime + usage.ru_stime
    code = os.waitstatus_to_exitcode(status)
    print(f"{wall_s:.1f} s, {cpu_s:.1f} CPU s, {usage.ru_maxrss / 1e6:.2f} GB, exit code {code}")


def main() -> None:
    """Make the folders, read them, and take them away again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=int, nargs="?", default=10_000)
    count = parser.parse_args().folders
    with tempfile.TemporaryDirectory(prefix="steptime-folders-") as scratch:
        root = Path(scratch)
        make_folders(root, count)
        for program in (READ, HISTORY):
            run(program, root)


if __name__ == "__main__":
    main()
