"""Time a search for plans: Llama-70B on 512 H100, CPU seconds of one core, imports apart.

Prints one JSON document: the number of plans, CPU seconds of a first search (everything priced) for
ten thousand of them, and plans a second once layers are priced, of another batch and of the same.

    python benchmarks/plan_search.py --repeats 5
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median
from time import process_time

MODEL, LENGTH, DEVICES, BATCH = "llama3_70b", 8192, 512, 2048
HEAVY = ("scipy", "pandas", "torch", "duckdb")


def once() -> dict[str, float]:
    """Return what a search takes in this process, which has made none."""
    from steptime.planning.request import Request, Site
    from steptime.planning.search import search
    from steptime.planning.space import Space

    site = Site("h100-sxm5", link="infiniband-ndr")
    start = process_time()
    request = Request(MODEL, site, BATCH, length=LENGTH, device_counts=(DEVICES,))
    planner = request.planner(request.shape, DEVICES)
    found = search(planner, Space(planner, DEVICES, BATCH, 8, {}).ways(), BATCH)
    cold = process_time() - start
    rates = {}
    for name, batch in (("other_batch", 2 * BATCH), ("same_batch", BATCH)):
        start = process_time()
        again = search(planner, Space(planner, DEVICES, batch, 8, {}).ways(), batch)
        rates[f"{name}_plans_per_s"] = again.considered / (process_time() - start)
    return {
        "plans": found.considered,
        "cold_10000_s": cold * 10_000 / found.considered,
        **rates,
        "heavy_modules": sum(name in sys.modules for name in HEAVY),
    }


def main() -> None:
    """Run fresh processes one after the other, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--once", action="store_true", help="in this process, which prints")
    told = parser.parse_args()
    if told.once:
        print(json.dumps(once()))
        return
    command = [sys.executable, __file__, "--once"]
    found = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(told.repeats)
    ]
    print(json.dumps({name: median(one[name] for one in found) for name in found[0]}, indent=2))


if __name__ == "__main__":
    main()
