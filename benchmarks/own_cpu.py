"""How far predictions for this CPU are off after `steptime calibrate`, on networks it has not seen.

Calibrates in a home of its own, measures quickstart's 24 networks and 30 others, and scores both by
`steptime evaluate`: errors, bias, coverage and width of the intervals, by family, and the worst.
Prints one JSON document; takes some twelve minutes. What ran beside it is said: `load` before,
the share of rounds that other work disturbed, and `drift` of the first point. A machine that is not
quiet measures itself, not the predictions.

    python benchmarks/own_cpu.py --threads 1
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

import steptime

OTHERS = {
    "train": (
        *("resnet18:image=128 8", "resnet50:image=64 4", "mobilenet_v2:image=128 4", "nin 4"),
        *("squeezenet1_1 4", "densenet_cifar 8", "alexnet 4", "deep_mnist 128", "alexnet_v2 4"),
        *(
            "fc:layers=2,nodes=128,inputs=784,outputs=10 32",
            "fc:layers=8,nodes=1024,inputs=784,outputs=100 256",
        ),
        *(
            "fc:layers=16,nodes=256,inputs=784,outputs=10 128",
            "fc:layers=3,nodes=3000,inputs=500,outputs=10 64",
        ),
        "cnn:block=residual,blocks=2,filters=32,image=64,classes=100 16",
        "cnn:block=bottleneck,blocks=2,filters=32,image=64,classes=100 8",
        "cnn:block=residual,blocks=1,filters=64,image=32,classes=10 64",
        "rnn:cell=lstm,embedding=256,length=30,layers=2,vocabulary=4000 32",
        "rnn:cell=gru,embedding=64,length=20,layers=1,vocabulary=1000 64",
        "rnn:cell=rnn,embedding=200,length=80,layers=1,vocabulary=500 16",
        "transformer:kind=encoder,layers=4,width=128,length=64,vocabulary=4000 16",
        "transformer:kind=decoder,layers=2,width=512,length=64,vocabulary=8000 4",
        "transformer:kind=decoder,layers=1,width=256,length=256,vocabulary=2000 4",
    ),
    "infer": (
        *("resnet50 1", "resnet18 8", "mobilenet_v2 1", "squeezenet1_1 8", "bert_base 1"),
        "fc:layers=4,nodes=2048,inputs=784,outputs=10 512",
        "rnn:cell=lstm,embedding=128,length=50,layers=1,vocabulary=1000 32",
        "transformer:kind=encoder,layers=6,width=256,length=128,vocabulary=8000 4",
    ),
}


def told(home: Path, *words: str) -> tuple[Any, float]:
    """Return what a command prints as JSON, and its seconds."""
    began = monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "steptime", *words, "--json"],
        env={**os.environ, "STEPTIME_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), monotonic() - began


def experiment(phase: str, threads: int | None) -> str:
    """Return the experiment of other networks of a phase; of none, quickstart's."""
    if not phase:
        own = Path(steptime.__file__).parent / "data/experiments/quickstart.toml"
        text = own.read_text("utf-8").replace('predict = "local"\n', "")
    else:
        rows = (one.rsplit(" ", 1) for one in OTHERS[phase])
        text = f'name = "others"\nphase = "{phase}"\nbudget_s = 2.0\n' + "".join(
            f'\n[[networks]]\nmodel = "{model}"\nbatch = {batch}\n' for model, batch in rows
        )
    return text if threads is None else f"threads = {threads}\n{text}"


def main() -> None:
    """Calibrate, measure, score and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--minutes", default="3")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        own = [] if given.threads is None else ["--threads", str(given.threads)]
        made, calibrate_s = told(home, "calibrate", "--minutes", given.minutes, *own)
        found: dict[str, Any] = {"load": load, "calibrate_s": calibrate_s, **made["calibration"]}
        for drop in ("constants", "intervals"):
            del found[drop]
        for phase in ("", "train", "infer"):
            (home / "own.toml").write_text(experiment(phase, given.threads), "utf-8")
            out = home / ("others" if phase else "quickstart")
            told(home, "sweep", str(home / "own.toml"), "--out", str(out))
        for part in ("quickstart", "others"):
            scored, _ = told(home, "evaluate", str(home / part), "--by", "family")
            found[part] = {key: scored[key] for key in ("rows", "groups", "worst") if key in scored}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
