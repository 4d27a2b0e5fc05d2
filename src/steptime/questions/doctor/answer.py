"""The answer of `doctor`: what this machine is, and what it lacks for measuring."""

from collections.abc import Iterator

from steptime.core.answer import Answer, AnswerRow
from steptime.core.tables.table import Table, make_facts_table
from steptime.core.units import format_bytes, format_count, format_percent
from steptime.measure.drivers import NvidiaGpu

KIB = 1024


class Cpu(AnswerRow, frozen=True, kw_only=True):
    """The CPUs of this machine and those that this process may use.

    Attributes:
        model: the name that the CPU reports.
        is_virtual: whether this is a virtual machine; null where unknown.
        logical: logical CPUs of the machine.
        allowed: numbers of the logical CPUs that this process may use.
        physical: cores behind the allowed CPUs; null where unknown.
        quota: time limit of the control group in CPUs; null for none.
        reason: why `physical` is unknown.
        default_threads: threads of a measurement without `--threads`.
    """

    model: str
    is_virtual: bool | None
    logical: int
    allowed: tuple[int, ...]
    physical: int | None
    quota: float | None
    reason: str
    default_threads: int


class CpuCache(AnswerRow, frozen=True, kw_only=True):
    """A cache as an allowed CPU sees it.

    Attributes:
        level: 1 is the nearest to the core.
        type: data, instruction or unified.
        size_bytes: its size.
        shared_by: logical CPUs that share it.
    """

    level: int
    type: str
    size_bytes: int
    shared_by: int


class HostMemory(AnswerRow, frozen=True, kw_only=True):
    """The main memory; null is unknown.

    Attributes:
        capacity_bytes: size of the main memory.
        available_bytes: memory that the system can give now.
        limit_bytes: limit of the control group; null for none.
        usable_bytes: the smaller of available memory and what the control group leaves.
        reason: why a size is unknown.
    """

    capacity_bytes: int | None
    available_bytes: int | None
    limit_bytes: int | None
    usable_bytes: int | None
    reason: str


class Package(AnswerRow, frozen=True, kw_only=True):
    """A package that measures or reads networks.

    Attributes:
        name: its name.
        version: its version; null where it is not installed.
    """

    name: str
    version: str | None


class Tool(AnswerRow, frozen=True, kw_only=True):
    """A program of the system that some features need.

    Attributes:
        name: the name of the program.
        path: its path; null where it is not installed.
    """

    name: str
    path: str | None


class MissingPart(AnswerRow, frozen=True, kw_only=True):
    """A package, program, meter or calibration that some feature needs and this machine lacks.

    Attributes:
        name: its name.
        remedy: how to get it.
    """

    name: str
    remedy: str


class MeterState(AnswerRow, frozen=True, kw_only=True):
    """A meter of energy.

    Attributes:
        name: `nvml` (GPUs) or `rapl` (CPUs).
        remedy: how to make it readable; "" where it can be read.
    """

    name: str
    remedy: str


class CalibrationState(AnswerRow, frozen=True, kw_only=True):
    """The calibration of the device `local`; null where its file does not say it.

    Attributes:
        date: its date.
        backend: the backend that was measured.
        version: the version of the backend.
        threads: CPU threads.
        driver: the driver of the GPU.
    """

    date: str | None
    backend: str | None
    version: str | None
    threads: int | None
    driver: str | None


class Probe(AnswerRow, frozen=True, kw_only=True):
    """The device that `local` stands for.

    Attributes:
        name: its name.
        source: where its numbers come from.
        calibration: the calibration; null where only the ceilings were measured (`steptime
            calibrate --only ceilings`).
    """

    name: str
    source: str
    calibration: CalibrationState | None


class UserDevices(AnswerRow, frozen=True, kw_only=True):
    """The folder of the user's own devices.

    Attributes:
        folder: its path.
        is_writable: whether it can be written to.
        probe: the device `local`, which `steptime calibrate` writes; null where there is none.
        reason: why there is no device `local`.
    """

    folder: str
    is_writable: bool
    probe: Probe | None
    reason: str


class DoctorAnswer(Answer, frozen=True, kw_only=True):
    """What this machine is, and what it lacks for measuring.

    Attributes:
        steptime: the version of steptime.
        python: the version of Python.
        platform: the name of this machine's CPU in records.
        cpu: the CPUs of the machine.
        caches: the caches of the CPUs; null where unknown.
        memory: the main memory of the machine.
        gpus: the NVIDIA GPUs; null where `nvidia-smi` does not answer.
        frameworks: packages that measure or read networks.
        meters: meters of energy.
        tools: programs of the system.
        user_devices: the folder of your own devices.
        load: load of the last minute as a share of the CPUs; null where unknown.
        missing: what this machine lacks that some feature of steptime needs.
        problems: what makes measurements doubtful or impossible, with the remedy.
    """

    steptime: str
    python: str
    platform: str
    cpu: Cpu
    caches: tuple[CpuCache, ...] | None
    memory: HostMemory
    gpus: tuple[NvidiaGpu, ...] | None
    frameworks: tuple[Package, ...]
    meters: tuple[MeterState, ...]
    tools: tuple[Tool, ...]
    user_devices: UserDevices
    load: float | None
    missing: tuple[MissingPart, ...]
    problems: tuple[str, ...]

    @property
    def headline(self) -> tuple[str, ...]:
        """The problems, each marked as such."""
        return tuple(f"! {problem}" for problem in self.problems)

    def tables(self) -> list[Table]:
        """Return the facts of this machine down the side."""
        version = f"{self.steptime}, Python {self.python}"
        rows: list[tuple[str, str]] = [("steptime", version), *self._hardware_rows()]
        rows += [*self._software_rows(), *self._measurement_rows()]
        return [make_facts_table("this machine", "", rows)]

    def _hardware_rows(self) -> Iterator[tuple[str, str]]:
        cpu = self.cpu
        virtual_text = " (virtual machine)" if cpu.is_virtual else ""
        yield "CPU", f"{cpu.model}{virtual_text}"
        physical_text = "unknown" if cpu.physical is None else str(cpu.physical)
        quota_text = "" if cpu.quota is None else f", quota {cpu.quota:g}"
        allowed_text = f"{len(cpu.allowed)} allowed{quota_text}"
        yield "cores", f"{physical_text} physical, {cpu.logical} CPUs, {allowed_text}"
        threads_text = format_count(cpu.default_threads, "thread")
        yield "platform", f"{self.platform} ({threads_text} by default)"
        cache_texts = [_describe_cache(cache) for cache in self.caches or ()]
        yield "caches", ", ".join(cache_texts) or "unknown"
        yield "memory", _describe_memory(self.memory)
        yield "GPUs", _describe_gpus(self.gpus)

    def _software_rows(self) -> Iterator[tuple[str, str]]:
        for package in self.frameworks:
            if package.version:
                yield package.name, package.version
        for tool in self.tools:
            if tool.path:
                yield tool.name, tool.path

    def _measurement_rows(self) -> Iterator[tuple[str, str]]:
        devices = self.user_devices
        probe = devices.probe
        calibration = None if probe is None else probe.calibration
        date = None if calibration is None else calibration.date
        load = "unknown"
        if self.load is not None:
            load = f"{format_percent(self.load)} of the CPUs in the last minute"
        readable_meters = [meter.name for meter in self.meters if not meter.remedy]
        yield "meters", ", ".join(readable_meters) or "none"
        yield "devices", devices.folder + ("" if devices.is_writable else " (cannot be written to)")
        yield "last probe", "none" if probe is None else f"{probe.name}, {probe.source}"
        yield "calibrated", date or "never: steptime calibrate"
        yield "load", load
        for missing in self.missing:
            yield f"missing: {missing.name}", missing.remedy


def _describe_cache(cache: CpuCache) -> str:
    """Return a cache as text: `L3 unified 32768 KiB for 2 CPUs`."""
    sharing_text = f" for {cache.shared_by} CPUs" if cache.shared_by > 1 else ""
    return f"L{cache.level} {cache.type} {cache.size_bytes // KIB} KiB{sharing_text}"


def _describe_memory(memory: HostMemory) -> str:
    """Return the sizes of the main memory that are known: `25 GB, 22 GB usable now`."""
    texts = []
    if memory.capacity_bytes is not None:
        texts.append(format_bytes(memory.capacity_bytes))
    if memory.limit_bytes is not None:
        texts.append(f"limit {format_bytes(memory.limit_bytes)}")
    if memory.usable_bytes is not None:
        texts.append(f"{format_bytes(memory.usable_bytes)} usable now")
    return ", ".join(texts) or "unknown"


def _describe_gpus(gpus: tuple[NvidiaGpu, ...] | None) -> str:
    """Return the GPUs as text: `Tesla T4, 16.11 GB, driver 550.54`."""
    if gpus is None:
        return "no nvidia-smi here"
    texts = []
    for gpu in gpus:
        capacity = (
            "memory unknown" if gpu.capacity_bytes is None else format_bytes(gpu.capacity_bytes)
        )
        texts.append(f"{gpu.name}, {capacity}, driver {gpu.driver}")
    return "; ".join(texts) or "none that nvidia-smi shows"
