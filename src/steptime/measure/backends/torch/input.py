"""How a step gets its input in PyTorch, and how long it waits for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from steptime.core.graph import Graph
from steptime.measure.contract import Feed, Options
from steptime.measure.infeed import clocked

Take = Callable[[], None]
Waited = Callable[[], float]

EVENTS = "CUDA events: from the end of the work before to the end of the copy"


def input_of(
    graph: Graph,
    values: Mapping[str, Tensor],
    device: torch.device,
    options: Options,
    feed: Feed | None,
) -> tuple[Take, Waited] | None:
    """Return what copies a step's input to where the step reads it, and how long steps waited.

    None where the input is resident. Synthetic input lies on the host, in pages that the device
    can read by itself if it is a CUDA one; batches of a data set are put into such pages first.
    """
    if options.input == "device":
        return None
    pinned = device.type == "cuda"
    made = {n: _pinned(values[n].to("cpu", copy=True), pinned) for n in graph.inputs if not feed}

    def take() -> None:
        given = {n: torch.from_numpy(array) for n, array in feed.next().items()} if feed else {}
        for name, tensor in (made or given).items():
            values[name].copy_(_pinned(tensor, pinned and bool(feed)), non_blocking=pinned)

    return _by_events(take, device) if pinned else clocked(take)


def _pinned(tensor: Tensor, pinned: bool) -> Tensor:
    return tensor.pin_memory() if pinned else tensor


def _by_events(take: Take, device: torch.device) -> tuple[Take, Waited]:
    """Return `take` between two events on the device, and the seconds between them so far.

    The first event comes when the work before is done, so time in which the host reads while the
    device still computes is not waited for.
    """
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    taken = 0

    def timed() -> None:
        nonlocal taken
        if taken == len(events):  # they are used again in the next sample
            events.append(
                (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            )
        before, after = events[taken]
        taken += 1
        stream = torch.cuda.current_stream(device)
        before.record(stream)
        take()
        after.record(stream)

    def waited() -> float:
        nonlocal taken
        torch.cuda.synchronize(device)
        total_ms = sum(float(before.elapsed_time(after)) for before, after in events[:taken])
        taken = 0
        return total_ms / 1e3

    return timed, waited
