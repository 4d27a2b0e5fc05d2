"""Records of whole steps as cases."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from types import MappingProxyType

from steptime.build import build_step
from steptime.calibration.cases import PRICED, Case, Unasked
from steptime.core.errors import InputError
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.prediction.kernel import Kernel
from steptime.prediction.lower import lower
from steptime.prediction.method import stack_option
from steptime.records.record import Record
from steptime.records.stacks import stack_of


def recorded(
    records: Iterable[Record], warn: Callable[[str], object], unasked: Unasked | None = None
) -> list[Case]:
    """Return the measured and published steps of one device as cases.

    What cannot be predicted (a platform that no device file describes, several replicas) goes to
    the list `unasked`; without one it is told to `warn`, once for each reason.
    """
    found: list[Case] = []
    left_out: Unasked = [] if unasked is None else unasked
    for record in records:
        quantity = record.quantities.get("step_s")
        if record.origin == "predicted" or record.scope or record.status != "ok" or not quantity:
            continue
        of, stack = record.workload, stack_of(record)
        stack = "" if stack == catalog.DEFAULT_STACK else stack
        seconds = median(quantity.samples) if quantity.samples else quantity.value
        at = f"{of.label}, batch {of.batch_per_replica}"
        alone = of.plan.data == 1 == record.method.options.get("devices", 1)
        try:
            device = catalog.device(catalog.platform_of(record.platform) or record.platform)
            if not alone:
                left_out.append((at, "steps of several replicas are not evaluated"))
            elif seconds:
                kernels, more = step_kernels(of, stack_option(stack)), (of.label, of, stack)
                found.append(Case(kernels, device, seconds, of.model, "step", *more, place=at))
        except InputError as error:
            left_out.append((at, str(error)))
    for reason, count in Counter(cause for _, cause in left_out if unasked is None).items():
        warn(f"{count:,} records left out: {reason}")
    return found


def step_kernels(
    workload: Workload, options: Mapping[str, str] = MappingProxyType({})
) -> tuple[Kernel, ...]:
    """Return the kernels of a workload's step under options of a method: a stack, a layout, ..."""
    settings = PRICED.under(options).settings
    return lower(build_step(workload), workload.dtype, settings).kernels
