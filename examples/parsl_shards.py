"""Run a sweep in parts as tasks of Parsl: on PBS, LSF, Kubernetes, in a cloud, or here.

    python parsl_shards.py EXPERIMENT.toml RESULTS PARTS CONFIG.py

CONFIG.py is a file of yours that sets `config`, a `parsl.Config` with the provider of your site
(https://parsl.readthedocs.io). Every part is a sweep of its own in a folder in RESULTS, and every
command reads RESULTS with all folders in it. Run the same line again to go on after a failure.
"""

import runpy
import sys
from concurrent.futures import as_completed
from pathlib import Path

import parsl


def run_part(python, experiment, folder, part, parts):
    """Run one part where Parsl puts it, and give its exit code (3: some cells failed)."""
    import subprocess

    words = ["sweep", experiment, "--out", folder, "--shard", f"{part}/{parts}"]
    return subprocess.run([python, "-m", "steptime", *words], check=False).returncode


def main(experiment, results, parts, config):
    """Run all parts, and give the worst exit code."""
    results = Path(results).absolute()
    with parsl.load(runpy.run_path(config)["config"]):
        task = parsl.python_app(run_part)
        futures = {}
        for part in range(1, int(parts) + 1):
            folder = results / f"{part}-of-{parts}"
            one = task(sys.executable, str(Path(experiment).absolute()), str(folder), part, parts)
            futures[one] = folder
        worst = 0
        for future in as_completed(futures):
            folder = futures[future]
            if future.exception():
                print(f"{folder.name}: lost: {future.exception()}; run the same line again")
                worst = max(worst, 3)
                continue
            worst = max(worst, future.result())
            print(f"{folder.name}: exit code {future.result()}")
    return worst


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
