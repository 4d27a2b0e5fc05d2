"""Records of whole steps as cases."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median

from steptime import catalog
from steptime.build import build_step
from steptime.calibration.cases import SETTINGS, Case
from steptime.core.errors import InputError
from steptime.core.record import Record
from steptime.core.workload import Workload
from steptime.predict.kernel import Kernel
from steptime.predict.lower import lower
from steptime.stacks import stack_of


def recorded(records: Iterable[Record], warn: Callable[[str], object]) -> list[Case]:
    """Return the measured and published steps of one device as cases.

    What cannot be predicted is told to `warn`, once for each reason: a platform that no device file
    describes, several replicas.
    """
    found, left_out = [], Counter[str]()
    for record in records:
        quantity = record.quantities.get("step_s")
        if record.origin == "predicted" or record.scope or record.status != "ok" or not quantity:
            continue
        of, stack = record.workload, stack_of(record)
        stack = "" if stack == catalog.DEFAULT_STACK else stack
        seconds = median(quantity.samples) if quantity.samples else quantity.value
        alone = of.plan.data == 1 == record.method.options.get("devices", 1)
        try:
            device = catalog.device(catalog.platform_of(record.platform) or record.platform)
            kernels = step_kernels(of, stack) if alone else ()
        except InputError as error:
            left_out[str(error)] += 1
            continue
        if not alone:
            left_out["steps of several replicas are not evaluated"] += 1
        elif seconds:
            at = f"{of.label}, batch {of.batch_per_replica}"
            one = Case(kernels, device, seconds, of.model, "step", of.label, of, stack, place=at)
            found.append(one)
    for reason, count in left_out.items():
        warn(f"{count:,} records left out: {reason}")
    return found


def step_kernels(
    workload: Workload, stack: str = "", channels_last: bool | None = None
) -> tuple[Kernel, ...]:
    """Return the kernels of a workload's step as a stack runs it, in its layout or another one."""
    settings = replace(SETTINGS, stack=stack) if stack else SETTINGS
    kernels = lower(build_step(workload), workload.dtype, settings).kernels
    if channels_last is None:
        return kernels
    return tuple([one._replace(channels_last=channels_last) for one in kernels])
