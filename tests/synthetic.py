"""Records as a sweep of 24 networks of four families would leave them, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from steptime.core.copying import replace
from steptime.core.workload import Value, Workload
from steptime.records.record import Quantity, Record, RecordMethod

PLATFORM = "cpu-amd-epyc-9r14-2t"
PEAK, BANDWIDTH, LAUNCH = 204e9, 39e9, 1e-6
TORCH = RecordMethod(
    "torch", "2.13.0", {"compile": False, "threads": 2, "budget_s": 3.0, "runs": 1}
)
ROOFLINE = RecordMethod(
    "roofline",
    "1",
    {
        "device": PLATFORM,
        "device_hash": "0123456789abcdef",
        "peak_flop_per_s": PEAK,
        "memory_bytes_per_s": BANDWIDTH,
        "launch_s": LAUNCH,
    },
)
ENV = {
    "host": "test-host",
    "steptime": "0.1.0",
    "framework": "torch 2.13.0",
    "memory_meter": "resident high-water mark",
    "steady": True,
    "few_samples": False,
    "round": 0,
}


def workloads() -> list[Workload]:
    found = []
    for layers in (4, 16):
        for nodes in (256, 1024):
            for batch in (64, 256):
                params = {"layers": layers, "nodes": nodes, "inputs": 2000, "outputs": 200}
                found.append(Workload("fc", params, batch))
    for block, filters in (("residual", 16), ("residual", 32), ("bottleneck", 16)):
        for batch in (4, 16):
            cnn: dict[str, Value] = {
                "block": block,
                "blocks": "3-4-6-3" if block == "bottleneck" else 1,
                "filters": filters,
                "image": 100,
                "classes": 500,
            }
            found.append(Workload("cnn", cnn, batch))
    for cell in ("rnn", "lstm", "gru"):
        for batch in (16, 64):
            rnn: dict[str, Value] = {
                "cell": cell,
                "layers": 1,
                "embedding": 100,
                "length": 50,
                "vocabulary": 1024,
            }
            found.append(Workload("rnn", rnn, batch))
    for width in (128, 256):
        for batch in (1, 4):
            transformer: dict[str, Value] = {
                "style": "encoder",
                "layers": 2,
                "width": width,
                "heads": 4,
                "ffn": 4 * width,
                "length": 128,
                "vocabulary": 1000,
            }
            found.append(Workload("transformer", transformer, batch))
    return found


FLOP = {"fc": 6e6, "cnn": 8e8, "rnn": 6e7, "transformer": 4e8}
INTENSITY = {"fc": 14.0, "cnn": 5.5, "rnn": 2.2, "transformer": 9.0}
EFFICIENCY = {"fc": 0.55, "cnn": 0.35, "rnn": 0.12, "transformer": 0.45}


def _costs(workload: Workload) -> tuple[float, float]:
    size = 1.0
    for name in ("layers", "nodes", "filters", "width"):
        value = workload.params.get(name)
        if isinstance(value, int):
            size *= value / {"layers": 4, "nodes": 256, "filters": 16, "width": 128}[name]
    size *= 4.0 if workload.params.get("block") == "bottleneck" else 1.0
    flop = FLOP[workload.model] * size * workload.batch_per_replica
    intensity = INTENSITY[workload.model] * workload.batch_per_replica**0.35
    return flop, flop / intensity


def _op_records(workload: Workload, flop: float, traffic: float) -> Iterator[Record]:
    rng = random.Random(workload.key + "ops")  # noqa: S311 - no secret
    weights = [rng.lognormvariate(0, 1.2) for _ in range(40)]
    for index, weight in enumerate(weights):
        share = weight / sum(weights)
        op_flop = 0.0 if index % 10 == 9 else flop * share
        op_traffic = traffic / len(weights) * rng.lognormvariate(0, 0.7)
        step = max(op_flop / PEAK, op_traffic / BANDWIDTH) + LAUNCH
        yield Record(
            "predicted",
            ROOFLINE,
            workload,
            PLATFORM,
            {
                "step_s": Quantity(value=step),
                "flop": Quantity(value=op_flop),
                "traffic_bytes": Quantity(value=op_traffic),
            },
            scope=f"block{index // 4}/dense{index}",
            env=ENV,
            taken_at="2026-11-21T03:50:00Z",
        )


def predicted(workload: Workload, *, ops: bool = False) -> list[Record]:
    flop, traffic = _costs(workload)
    step = max(flop / PEAK, traffic / BANDWIDTH) * 1.15 + 60 * LAUNCH
    whole = Record(
        "predicted",
        ROOFLINE,
        workload,
        PLATFORM,
        {
            "step_s": Quantity(value=step),
            "forward_s": Quantity(value=step * 0.33),
            "backward_s": Quantity(value=step * 0.6),
            "update_s": Quantity(value=step * 0.07),
            "flop": Quantity(value=flop),
            "traffic_bytes": Quantity(value=traffic),
            "peak_bytes": Quantity(value=3e7 + traffic / 2),
        },
        env=ENV,
        taken_at="2026-11-21T03:50:00Z",
    )
    return [whole, *(_op_records(workload, flop, traffic) if ops else ())]


def measured(workload: Workload, *, runs: int = 1, slower: float = 1.0, seed: str = "") -> Record:
    rng = random.Random(workload.key + seed)  # noqa: S311 - no secret
    flop, traffic = _costs(workload)
    least = max(flop / PEAK, traffic / BANDWIDTH)
    step = slower * (least / EFFICIENCY[workload.model] * rng.uniform(0.8, 1.3) + 4e-4)
    samples, of_run, disturbed = [], [], []
    for run in range(runs):
        pace = rng.gauss(1, 0.01)
        for _ in range(20):
            spike = rng.random() < 0.06
            late = rng.uniform(0.2, 0.6) if spike else abs(rng.gauss(0, 0.015))
            samples.append(step * pace * (1 + late))
            of_run.append(run)
            disturbed.append(spike)
    columns = {
        "run": tuple(of_run),
        "involuntary_switches": tuple(int(d) * 3 for d in disturbed),
        "disturbed": tuple(disturbed),
    }
    return Record(
        "measured",
        TORCH,
        workload,
        PLATFORM,
        {
            "step_s": Quantity(samples=tuple(samples), columns=columns),
            "first_step_s": Quantity(value=step * 8),
            "peak_bytes": Quantity(value=(3e7 + traffic / 2) * rng.uniform(0.95, 1.3)),
        },
        env=ENV,
        taken_at="2026-11-21T03:52:10Z",
    )


def failed(workload: Workload, status: str, cause: str, note: str) -> Record:
    return replace(measured(workload), quantities={}, status=status, cause=cause, note=note)


def sweep(*, ops: bool = False, failures: bool = False) -> list[Record]:
    """Return measured and predicted records of 24 networks; two fail where asked."""
    networks = workloads()
    found = [record for workload in networks for record in predicted(workload, ops=ops)]
    found += [measured(workload) for workload in networks]
    if failures:
        found[-24] = failed(
            networks[0], "oom", "killed", "the worker was killed: <b>out of memory</b> & more"
        )
        found[-1] = failed(networks[-1], "timeout", "time-limit", "no step within 60 s")
    return found
