"""Communication of gradients that the backward pass of a step does not hide."""

from collections.abc import Callable, Container

from steptime.prediction.collectives import ReadyGradient, exposed_all_reduce_s
from steptime.prediction.steps.step_model import StepModel


def exposed_exchange_s(
    model: StepModel,
    batch: int,
    exchange_s: Callable[[float], float],
    compression: float = 1.0,
    row_names: Container[str] | None = None,
) -> float:
    """Return the seconds of a bucketed gradient exchange that outlast the backward pass.

    Gradients are ready in the order of the backward pass, row after row. Where the host issues
    kernels more slowly than the device runs them, each gradient is ready later in proportion.

    Args:
        model: the step of one replica.
        batch: the batch of that replica.
        exchange_s: the seconds of one collective of so many bytes.
        compression: what the bytes of a gradient are divided by.
        row_names: the rows whose gradients are exchanged; None means all.
    """
    times = model.timeline(batch)
    gradient_bytes = model.gradients  # by row
    # A host that issues kernels more slowly than they run delays all of a pass in proportion.
    _forward, host_slowdown, _update = times.host_slowdowns  # of the backward pass
    gradients: list[ReadyGradient] = []
    elapsed_s = 0.0
    for row_time in reversed(times.rows):  # as the backward pass runs
        name = row_time.row.name
        is_of_device = row_names is None or name in row_names
        if is_of_device:
            elapsed_s += row_time.backward.value * host_slowdown
            size_bytes = gradient_bytes.get(name, 0) / compression
            gradients.append(ReadyGradient(elapsed_s, size_bytes))
    return exposed_all_reduce_s(gradients, exchange_s, elapsed_s)
