"""The NVIDIA GPUs and the meters of energy of this machine, as their drivers report them."""

import ctypes.util
from pathlib import Path

from steptime.core.answer import AnswerRow
from steptime.measure import machine
from steptime.measure.contract import is_cuda
from steptime.measure.disturbance import AbsentError
from steptime.measure.meters import list_rapl_meters
from steptime.measure.procfs import ROOT

NVIDIA_FIELDS = ("name", "driver_version", "memory.total", "power.limit", "mig.mode.current")
MIB = 2**20


class NvidiaGpu(AnswerRow, frozen=True, kw_only=True):
    """An NVIDIA GPU of this machine.

    Attributes:
        name: its product name.
        driver: the version of its driver.
        capacity_bytes: size of its memory; null where the driver does not say it.
        power_limit_w: its power limit; null where the driver does not say it.
        mig_mode: whether it is split into instances, as the driver says it.
    """

    name: str
    driver: str
    capacity_bytes: int | None
    power_limit_w: float | None
    mig_mode: str


def read_nvidia_gpus() -> tuple[NvidiaGpu, ...] | None:
    """Return the NVIDIA GPUs as their driver lists them; None where its tool does not answer."""
    query = f"--query-gpu={','.join(NVIDIA_FIELDS)}"
    text = machine.read_command_output("nvidia-smi", query, "--format=csv,noheader")
    if text is None:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return tuple(_gpu_from_cells(row) for row in rows if len(row) == len(NVIDIA_FIELDS))


def _gpu_from_cells(cells: list[str]) -> NvidiaGpu:
    name, driver, memory, power, mig_mode = cells
    memory_mib = _number_before_unit(memory)
    return NvidiaGpu(
        name=name,
        driver=driver,
        capacity_bytes=None if memory_mib is None else int(memory_mib * MIB),
        power_limit_w=_number_before_unit(power),
        mig_mode=mig_mode,
    )


def _number_before_unit(text: str) -> float | None:
    """Return the number of a text such as `15360 MiB`, None for `[N/A]`."""
    try:
        return float(text.partition(" ")[0])
    except ValueError:
        return None


def driver_of(device: str) -> dict[str, str]:
    """Return the version of a GPU's `driver`; {} for a CPU and where no driver answers."""
    gpus = read_nvidia_gpus() if is_cuda(device) else None
    return {"driver": gpus[0].driver} if gpus else {}


def meter_remedies(root: Path = ROOT) -> dict[str, str]:
    """Return the meters of energy: "" where it can be read, else what helps."""
    rapl_remedy = ""  # "" means that the meter can be read
    try:
        list_rapl_meters(root)
    except AbsentError as error:
        rapl_remedy = (
            f"{error}: energy needs a bare machine, and leave to read its counters (chmod a+r)"
        )
    has_nvml = bool(ctypes.util.find_library("nvidia-ml"))
    return {
        "nvml": "" if has_nvml else "power of an NVIDIA GPU needs its driver: nvidia.com/drivers",
        "rapl": rapl_remedy,
    }
