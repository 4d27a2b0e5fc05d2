#!/usr/bin/env python3
"""How long questions take over very many records: seconds, CPU seconds and memory of each command.

Makes a folder of records as sweeps over several machines leave them (measured with samples,
predicted, failed), asks each command in a fresh process, first without a cache, and takes the
folder away again. 10^6 records need 2 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLATFORMS = ("cpu-a", "cpu-b", "gpu-c", "gpu-d")
FILES = 4
SAMPLES = 20
COMMANDS = {
    "count": "query 'SELECT count(*) AS n FROM records'",
    "count again": "query 'SELECT count(*) AS n FROM records'",
    "group": "query 'SELECT platform, status, count(*) AS n, median(step_s) AS step_s "
    "FROM records GROUP BY ALL'",
    "rows": "query 'SELECT model, batch, step_s, step_s_low FROM records WHERE nodes = 64 LIMIT 9'",
    "export": "query 'SELECT model, batch, step_s FROM records' -o {out}/all.parquet",
    "errors": "analyse errors",
    "results": "analyse results",
    "table": "analyse table",
    "compare": "compare",
    "by platform": "compare --by platform",
    **{
        kind: f"analyse {kind}"
        for kind in ("speedup", "heatmap", "sensitivity", "breakdown", "roofline", "nodes")
    },
    **{
        f"draw {kind}": f"analyse {kind} -o {{out}}/{kind}.png"
        for kind in (
            "roofline",
            "speedup",
            "throughput",
            "memory",
            "predicted",
            "samples",
            "devices",
        )
    },
    "report": "report -o {out}/report.html",
    "report.md": "report -o {out}/report.md",
    "compare --json": "compare --json",
    "speedup --json": "analyse speedup --json",
    "watch": "compare {at} --fail-on slower",
}


def lines(number: int, seed: int) -> list[str]:
    """Return records as text: of each network on each platform, a prediction, then runs."""
    draw = random.Random(seed)  # noqa: S311  # data, no secret
    found: list[str] = []
    while len(found) < number:
        params = {
            "layers": draw.randrange(2, 65),
            "nodes": 32 * draw.randrange(1, 257),
            "inputs": 2000,
            "outputs": draw.choice((10, 200, 1000)),
        }
        batch, family = 2 ** draw.randrange(4, 13), draw.choice(("fc", "cnn", "rnn"))
        flop = 6.0 * batch * params["layers"] * params["nodes"] ** 2
        workload = {
            "model": family,
            "params": params,
            "batch_per_replica": batch,
            "dtype": "float32",
            "phase": "train",
            "optimizer": "sgd",
            "plan": {"data": 1, "tensor": 1, "pipeline": 1},
        }
        key = f"{draw.getrandbits(64):016x}"
        for platform, peak in zip(PLATFORMS, (2e11, 5e11, 1e13, 2e13), strict=True):
            step_s = 1e-5 + flop / peak / draw.uniform(0.3, 0.9)
            common = {"schema": 2, "platform": platform, "scope": "", "cause": "", "note": ""}
            taken = f"2026-11-{draw.randrange(1, 29):02}T12:00:00+00:00"
            options = {
                "device": platform,
                "device_hash": "0123456789abcdef",
                "peak_flop_per_s": peak,
                "memory_bytes_per_s": peak / 20,
                "launch_s": 1e-6,
            }
            numbers = {
                "step_s": 1e-5 + flop / peak / 0.6,
                "forward_s": flop / peak / 1.8,
                "backward_s": flop / peak / 0.9,
                "flop": flop,
                "forward_flop": flop / 3,
                "traffic_bytes": flop / 20,
                "peak_bytes": 4e6 + flop / 100,
            }
            told = {
                **common,
                "origin": "predicted",
                "status": "ok",
                "taken_at": taken,
                "method": {"name": "analytic", "version": "2", "options": options},
                "workload": workload,
                "workload_key": key,
                "quantities": {n: {"value": v} for n, v in numbers.items()},
                "env": {"steptime": "0.8.0"},
            }
            found.append(json.dumps(told, separators=(",", ":")))
            method = {
                "name": "torch",
                "version": "2.13.0",
                "options": {"compile": False, "threads": 2, "budget_s": 3.0, "runs": 1},
            }
            env = {
                "host": f"node-{draw.randrange(64)}",
                "steptime": "0.8.0",
                "framework": "torch 2.13.0",
                "steady": True,
                "few_samples": False,
                "round": 0,
                "memory_meter": "resident high-water mark",
            }
            told |= {"origin": "measured", "method": method, "env": env, "quantities": {}}
            if draw.random() < 0.05:
                told |= {"status": "oom", "cause": "killed", "note": "needs more than there is"}
            else:
                samples = [step_s * draw.lognormvariate(0, 0.03) for _ in range(SAMPLES)]
                columns = {"run": [0] * SAMPLES, "disturbed": [False] * SAMPLES}
                told["quantities"] = {
                    "step_s": {"samples": samples, "columns": columns},
                    "peak_bytes": {"samples": [5e6 + flop / 90]},
                }
            found.append(json.dumps(told, separators=(",", ":")))
    return found[:number]


def make(folder: Path, number: int) -> int:
    """Write `number` records into a folder in files as writers leave them; return their bytes."""
    folder.mkdir(parents=True)
    template = lines(min(number, 40_000), 1)
    each = -(-number // FILES)
    for index in range(FILES):
        path = folder / f"records-20261101T00000{index}.000000Z-1-00000000.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for start in range(0, each, len(template)):
                mark = f"{index * 1000 + start // len(template):08x}"
                part = template[: each - start]
                # other networks: a key of their own, and other outputs
                file.writelines(
                    line.replace('"workload_key":"', f'"workload_key":"{mark}').replace(
                        '"outputs":', f'"outputs":{int(mark, 16) + 1}'
                    )
                    + "\n"
                    for line in part
                )
    return sum(path.stat().st_size for path in folder.iterdir())


def asked(said: str, folder: Path, out: Path) -> tuple[float, float, float, int]:
    """Return seconds, CPU seconds, peak resident GB and exit code of a command."""
    import shlex

    name, *options = shlex.split(said.format(out=out, at=folder))
    place = ["--in", str(folder)] if name == "query" else [str(folder)]
    start = time.perf_counter()
    with (out / "answer").open("w") as answer:
        process = subprocess.Popen(
            [sys.executable, "-m", "steptime", name, *options, *place], stdout=answer, stderr=answer
        )
        _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    return (
        wall,
        used.ru_utime + used.ru_stime,
        used.ru_maxrss / 1e6,
        os.waitstatus_to_exitcode(status),
    )


def main() -> None:
    """Print a line a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=float, nargs="?", default=1e5)
    parser.add_argument("--only", nargs="*", help="names of commands")
    parser.add_argument("--at", type=Path, help="keep the folder here, and use it again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steptime-million-") as scratch:
        out, folder = Path(scratch), given.at or Path(scratch) / "records"
        if not folder.exists():
            size = make(folder, int(given.records))
            print(f"{int(given.records):,} records, {size / 1e6:,.0f} MB")
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")
        print(f"{'command':14}{'wall (s)':>10}{'CPU (s)':>10}{'peak (GB)':>11}")
        for name, said in COMMANDS.items():
            if not given.only or name in given.only:
                wall, cpu, peak, code = asked(said, folder, out)
                failed = "" if code == 0 else f"  exit {code}"
                print(f"{name:14}{wall:10.1f}{cpu:10.1f}{peak:11.2f}{failed}", flush=True)


if __name__ == "__main__":
    main()
