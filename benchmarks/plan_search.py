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
PER_NODE = 8
HEAVY = ("scipy", "pandas", "torch", "duckdb")


def measure_search() -> dict[str, float]:
    """Return the speed of searches in this process, which has made none before."""
    from steptime.planning.plan_space import PlanSpace
    from steptime.planning.ranks.site import Site
    from steptime.planning.request import Request
    from steptime.planning.search import find_best_plans

    site = Site("h100-sxm5", link="infiniband-ndr")
    start = process_time()
    request = Request(MODEL, site, BATCH, length=LENGTH, device_counts=(DEVICES,))
    problem = request.make_problem(request.shape, DEVICES)
    space = PlanSpace(problem, DEVICES, BATCH, PER_NODE, {})
    first_search = find_best_plans(problem, space.families(), BATCH)
    cold_s = process_time() - start
    rates = {}
    for name, batch in (("other_batch", 2 * BATCH), ("same_batch", BATCH)):
        start = process_time()
        space = PlanSpace(problem, DEVICES, batch, PER_NODE, {})
        search = find_best_plans(problem, space.families(), batch)
        rates[f"{name}_plans_per_s"] = search.considered_count / (process_time() - start)
    return {
        "plans": first_search.considered_count,
        "cold_10000_s": cold_s * 10_000 / first_search.considered_count,
        **rates,
        "heavy_modules": sum(name in sys.modules for name in HEAVY),
    }


def main() -> None:
    """Run fresh processes one after the other, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--once", action="store_true", help="in this process, which prints")
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(measure_search()))
        return
    command = [sys.executable, __file__, "--once"]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(arguments.repeats)
    ]
    print(json.dumps({name: median(run[name] for run in runs) for name in runs[0]}, indent=2))


if __name__ == "__main__":
    main()
