"""Predictions of many networks, batches and devices, as records of whole steps.

A network is built at three batches where its step lies on lines (`lines.py`), else at each.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from steptime import catalog
from steptime.core.dtypes import dtype_named
from steptime.core.errors import InputError
from steptime.core.graph import PASSES
from steptime.core.hardware import Device
from steptime.core.progress import watched
from steptime.core.record import Quantity, Record, now
from steptime.core.workload import Workload
from steptime.predict.grid import Steps
from steptime.predict.records import record_method, step_record
from steptime.predict.step_model import StepModel

Place = tuple[Device, str | None]  # and the dtype there, None for that of each workload


def place_of(text: str) -> Place:
    """Return the device that a text such as `tpu-v2-8:bfloat16-mixed` names, and its dtype."""
    name, _, dtype = text.rpartition(":") if ":" in text else (text, "", "")
    return catalog.device(name.strip()), dtype.strip() or None


def predicted(
    workloads: Iterable[Workload],
    places: Sequence[Place],
    method: str,
    options: Mapping[str, object],
    refused: dict[str, int],
) -> Iterator[Record]:
    """Yield the record of each step of one replica at each place, network by network.

    Networks that a place cannot run are counted in `refused` under the reason. Raises `InputError`
    for what does not depend on the place.
    """
    networks: dict[str, list[Workload]] = {}
    for one in workloads:
        networks.setdefault(replace(one, batch_per_replica=1).key, []).append(one)
    for some in watched(list(networks.values()), "networks"):
        first, sizes = some[0], list(dict.fromkeys(one.batch_per_replica for one in some))
        for dtype in dict.fromkeys(dtype for _, dtype in places):
            network = replace(first, dtype=dtype_named(dtype or first.dtype))
            model = StepModel(network, places[0][0], None, method, options)
            steps = Steps(model, sizes)
            costs = _costs(model, steps)
            for device in (device for device, wanted in places if wanted == dtype):
                try:
                    yield from _of_device(model.on(device), steps, costs)
                except InputError as error:
                    refused[str(error)] = refused.get(str(error), 0) + len(steps.batches)


def _costs(model: StepModel, steps: Steps) -> list[dict[str, float]]:
    """Return FLOP and traffic at each batch, between the ends of lines where it lies on these."""

    def at(batch: int) -> dict[str, float]:
        counted = model.counted(batch).values()
        return {
            "flop": sum(sum(parts.values()) for parts in counted),
            "forward_flop": sum(parts["forward"] for parts in counted),
            "traffic_bytes": model.lowered(batch).traffic_bytes,
        }

    if steps.lines is None:
        return [at(batch) for batch in steps.batches]
    high, low = at(steps.lines.high), at(steps.lines.low)
    shares = steps.lines.share(steps.batches).tolist()
    return [{k: round(low[k] + (high[k] - low[k]) * share) for k in low} for share in shares]


def _of_device(
    on: StepModel, steps: Steps, costs: Sequence[Mapping[str, float]]
) -> Iterator[Record]:
    """Yield the records of a network on a device; raises `InputError` as a prediction does."""
    rows, named, taken_at = steps.rows(on), record_method(on), now()
    remarks = on.remarks(steps.lines.low if steps.lines else None)
    for (batch, times, low, high, needs), cost in zip(rows, costs, strict=True):
        values = {**dict(zip((f"{one}_s" for one in PASSES), times, strict=True)), **cost}
        quantities = {name: Quantity(value) for name, value in values.items()}
        quantities["step_s"] = Quantity(sum(times), low=low, high=high)
        quantities["peak_memory_bytes"] = Quantity(needs.peak_bytes)
        workload = replace(on.workload, batch_per_replica=batch)
        fits = needs.fit(on.device)
        told = remarks if fits else (needs.too_large(on.device), *remarks)
        yield step_record(on, workload, named, quantities, fits, told, taken_at)
