"""The interface of a backend: a prepared step, and how to wait for it, time it and meter it.

A backend is a module, named in `measure/registry.py` or by an entry point of its package, with

* `prepare(graph, workload, options, feed=None) -> Prepared`, given the forward graph, and where
  steps take their input from if it is a data set; raises `InputError` for a device that is not
  here, `UnsupportedError` for what cannot be run, `OutOfMemoryError` where values do not fit,
* `RUNS`, the table of the op kinds that it can run,
* `PHASES`, those that it runs if these are not both, training and inference,
* `MODULE_BACKEND`, if any: the backend of the same framework that runs a network of code as its
  author wrote it, where the graph holds kinds that `RUNS` lacks,
* `STRATEGIES`, those in which it can run several replicas, empty for none,
* `device_facts(device) -> DeviceFacts`, what is known of `cpu`, `cuda[:n]`, `mps` or `tpu[:n]`,
  `machine.host_facts()` for `cpu`; raises `InputError` for one that is absent,
* `translate_error(error)`, where its framework has errors of its own: the error of this module that
  corresponds to one, or None; `translate_backend_error` calls it for every error of a backend,
* `collectives(options, sizes, budget_s)`, where replicas are processes: the times of all-reduces.
"""

import functools
import hashlib
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.graph import Graph
from steptime.core.python_file import is_code
from steptime.core.workload import Plan, Workload
from steptime.records.record import RecordMethod


@dataclass(frozen=True)
class DeviceFacts:
    """The name of a device as its driver or system reports it, and its memory and caches in bytes.

    None is unknown. `room_bytes` can still be taken of `memory_bytes`, `cache_bytes` are those of
    its last caches together. `has_tf32` says whether products of float32 can be rounded to TF32.
    """

    product: str
    memory_bytes: int | None
    room_bytes: int | None
    cache_bytes: int | None
    is_accelerator: bool = False
    has_tf32: bool = False


class UnsupportedError(Exception):
    """The backend cannot run this workload; the message says which kind, dtype or device."""


class OutOfMemoryError(Exception):
    """The device or the host had not enough memory for this workload."""


class MissingFileError(InputError):
    """A file of the network or the data set is not there; before anything runs, wrong input."""


class BadDataError(InputError):
    """A file of the data set is not what it should be; the message names it and what it lacks."""


class KilledError(Exception):
    """A process that a step needs was ended by signal 9; the message says which."""


class NoSpaceError(Exception):
    """There is no room for a copy of the data set; the message says where, and how much."""


def translate_backend_error(backend: Any, error: Exception) -> Exception:
    """Return the error of this module that corresponds to a backend's, else the error itself."""
    return getattr(backend, "translate_error", lambda _: None)(error) or error


INPUTS = ("device", "host", "dataset")  # resident, copied in each step, read from files meanwhile
# or `file.py:make_loader`, an iterable of batches of a person's own
MIN_TRAIN_STEPS = 10  # steps of a training: fewer leave nothing to time


@dataclass(frozen=True)
class Options:
    """Where and how a backend runs: `device` is one of cpu, cuda[:n], mps, tpu[:n].

    `seed` fixes the values.
    `threads` are CPU cores of one process. `input` is one of `INPUTS`, or `file.py:make_loader`,
    which makes an iterable of batches; for `dataset`, `data` is the folder, `staging` one of
    `STAGINGS`, `stage_to` where copies go, `loaders` how many processes read (0: the one that runs
    the steps), and `prefetch` how many batches each has ready. `train_steps` trains so many steps
    and then takes the accuracy. `strategy` is one of `STRATEGIES` where a step is spread over
    replicas, else "", and `overlap` lets it communicate while it computes. `gpu` is the type of GPU
    that a scheduler was asked for, `allocation` the name of what it was asked for.
    """

    device: str = "cpu"
    threads: int | None = None
    compile: bool = False
    tf32: bool = False
    seed: int = 0
    input: str = "device"
    data: str = ""
    staging: str = "shared"
    stage_to: str = ""
    loaders: int = 0
    prefetch: int = 2
    train_steps: int = 0
    strategy: str = ""
    overlap: bool = True
    gpu: str = ""
    allocation: str = ""

    @property
    def process_options(self) -> Self:
        """What a worker must know when it starts; the rest may differ from cell to cell."""
        return type(self)(self.device, self.threads, self.compile, self.tf32, self.seed)


def pick_device(
    device: str, device_counts: Mapping[str, float], to: str = "here"
) -> tuple[str, int]:
    """Return kind and number of a device.

    Args:
        device: the device, such as `cuda:1`.
        device_counts: the number of devices of each kind, infinite if unknown.
        to: for the message: `here`, or `to` a framework.

    Raises:
        InputError: if there is no such device.
    """
    kind, colon, number = device.partition(":")
    if not colon:
        number = "0"  # `cuda` is the first of its kind
    is_index = re.fullmatch("[0-9]{1,6}", number) is not None
    if is_index and int(number) < device_counts.get(kind, 0):
        return kind, int(number)
    available = ", ".join(_format_devices(name, count) for name, count in device_counts.items())
    raise InputError(f"{shorten(device)} is not available {to}; there is: {available}")


def is_cuda(device: str) -> bool:
    """Whether a device of this machine is a GPU of CUDA: `cuda` or `cuda:1`."""
    return device.partition(":")[0] == "cuda"


def _format_devices(kind: str, count: float) -> str:
    """Format the devices of a kind: "cuda:0..3", "cpu"."""
    return kind if count in (1, math.inf) else f"{kind}:0..{count - 1}"


def refuse(reasons: Mapping[str, object]) -> None:
    """Raise `UnsupportedError` with the first of the reasons that holds."""
    for reason, is_true in reasons.items():
        if is_true:
            raise UnsupportedError(reason)


def check_plan(
    backend: str, strategies: Collection[str], workload: Workload, options: Options
) -> None:
    """Raise `UnsupportedError` for a plan or a strategy that a backend does not run."""
    plan = workload.plan
    strategy = options.strategy
    has_replicas = plan.data > 1
    has_model_parallelism = plan != Plan(data=plan.data)  # it is more than data-parallel
    needs_strategy = has_replicas and strategy not in strategies
    exchanges_in_inference = (
        has_replicas and workload.phase != "train" and strategy != "independent"
    )
    is_parallel = has_replicas or has_model_parallelism
    names = ", ".join(strategies)
    refuse(
        {
            f"{backend} runs on one device, without a parallel plan": is_parallel
            and not strategies,
            f"{backend} runs data-parallel here, and by no other parallel plan": (
                has_model_parallelism
            ),
            f"{backend} has no strategy '{strategy}', but {names}": needs_strategy,
            "inference exchanges nothing: its strategy is independent": exchanges_in_inference,
        }
    )


_RECORDED_OPTIONS = ("compile", "threads", "tf32")  # also where they have their default
_UNRECORDED_OPTIONS = (
    "device",
    "seed",
    "stage_to",
)  # they change no number, or the platform has them
_DEFAULT_OPTIONS = Options()
_FINGERPRINTED_END_BYTES = 1 << 16  # of each file of a data set


@functools.lru_cache(maxsize=256)
def dataset_fingerprint(folder: str) -> str:
    """Return a folder's name and, where it is here, a hash of its files' sizes and both ends."""
    path = Path(folder)
    name = path.absolute().name
    if not path.is_dir():  # on another machine: its content cannot be told
        return name
    digest = hashlib.sha256()  # of names, sizes and both ends: data sets are too large to be read
    for file in sorted(file for file in path.iterdir() if file.is_file()):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as content:
            digest.update(content.read(_FINGERPRINTED_END_BYTES))
            content.seek(max(0, size - _FINGERPRINTED_END_BYTES), os.SEEK_SET)
            digest.update(content.read(_FINGERPRINTED_END_BYTES))
    return f"{name}-{digest.hexdigest()[:8]}"


def check_input(text: Any, option: str) -> Any:
    """Return an input: one of `INPUTS`, or a function in a file; raises `InputError` for others."""
    is_loader_of_user = isinstance(text, str) and is_code(text)  # `file.py:make_loader`
    if not is_loader_of_user:
        check_choice("input", text, INPUTS, "" if option == "--input" else option)
        return text
    file, _, _function = text.rpartition(":")
    if not Path(file).is_file():
        raise MissingFileError(f"{option} {shorten(text)}: there is no file {shorten(file)}")
    return text


def _input_fingerprint(text: str) -> str:
    """Return the name of an input: of code the names of file and function, and the file's hash."""
    if text in INPUTS:
        return text
    path = Path(text.rpartition(":")[0])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8] if path.is_file() else ""
    return f"{Path(text).name}-{digest}".removesuffix("-")


def make_record_method(backend: str, version: str, options: Options, runs: int) -> RecordMethod:
    """Return the method of a measured record: the framework, and the options that change numbers.

    An option that came later than the first records is named where it is not the default.
    """
    data = dataset_fingerprint(options.data) if options.data else ""
    options = replace(options, data=data, input=_input_fingerprint(options.input))
    # An option in neither list is recorded where it differs from its default: adding an option
    # then leaves the methods of all earlier records as they are.
    recorded = {
        name: value
        for name, value in vars(options).items()
        if name in _RECORDED_OPTIONS
        or (name not in _UNRECORDED_OPTIONS and value != getattr(_DEFAULT_OPTIONS, name))
    }
    return RecordMethod(backend, version, {**recorded, "runs": runs})


_DATASET_OPTIONS = ("data", "staging", "stage_to", "loaders", "prefetch", "train_steps")


def reset_unused_options(options: Options, replicas: int) -> Options:
    """Return the options without those that mean nothing beside the others: one cell, one key."""
    # Options without a meaning get their default, so that equal measurements have equal keys.
    if replicas == 1:
        options = replace(options, strategy="", overlap=True)
    elif options.strategy in {"", "independent", "parameter-server"}:
        options = replace(options, overlap=True)  # nothing that could overlap
    if options.input != "dataset":
        return replace(
            options, **{name: getattr(_DEFAULT_OPTIONS, name) for name in _DATASET_OPTIONS}
        )
    if options.staging == "shared":  # files are read where they lie, without a copy
        options = replace(options, stage_to="")
    if options.loaders == 0:
        options = replace(options, prefetch=_DEFAULT_OPTIONS.prefetch)
    return options


HOST_CLOCK = "host's clock, from asking for the batch to the end of its copy"
Arrays = Mapping[str, Any]  # numpy arrays by the name of the graph's input
Peak = Callable[[], tuple[int | None, str]]  # bytes and the meter's name, or None and why not


@dataclass(frozen=True)
class Feed:
    """Batches of a data set for a graph: `next` waits for one, valid until the next call."""

    next: Callable[[], Arrays]
    close: Callable[[], None]


@dataclass(frozen=True)
class ProcessGroup:
    """What joins the processes that run one step together; all of them make the same calls.

    `broadcast` gives every process the number of rank 0, and so waits for rank 0; `gather` gives
    every process what all of them have, in the order of ranks, and so waits for all.
    `communication_s` gives the seconds that this process has spent exchanging since the last call,
    or is None where the exchange runs beside the computation: then `make_step_without_exchange`
    gives a step without it.
    `comm_meter` says how communication is timed, `backend` by what (gloo, nccl).
    """

    rank: int
    size: int
    backend: str
    broadcast: Callable[[int], int]
    gather: Callable[[object], list[Any]]
    comm_meter: str = ""
    communication_s: Callable[[], float] | None = None
    make_step_without_exchange: Callable[[], Callable[[], None]] | None = None

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process decides and reports: it is rank 0."""
        return self.rank == 0


@dataclass(frozen=True)
class Prepared:
    """A step that is ready to be run again and again.

    It takes its input first, unless that is resident on the device. `parts` run one after the
    other make the rest of it, on the input that is there (`forward`, `backward`, `update`; in
    inference `forward` alone). `memory` gives the peak bytes since `reset_memory` and the meter's
    name, or None and the reason. `timer(step, n)` gives the seconds of n steps by the device's own
    clock; without it the host's clock and `sync` are used.

    `waited` gives the seconds that steps have waited for their input since it was last asked, once
    the device has finished, by `input_clock`; None where input is resident. `loss` is that of the
    last training step.
    `inference(graph)` takes the inference graph of the same network and gives its function: inputs
    by name to the output as a numpy array, by the weights as they are when it is called.

    `facts` are known at once, those of `afterwards` once steps have run: what a compiler did in the
    first. `group` joins the processes of a step of several replicas; None for one. `trace` runs
    some steps under the framework's profiler, and gives its trace (`records/traces`), or is None.
    `planned_bytes` is the memory that a compiler has planned for the step, which is no measurement.
    """

    step: Callable[[], None]
    sync: Callable[[], None]
    parts: Mapping[str, Callable[[], None]]
    memory: Peak = lambda: (None, "resident set, by the worker")
    reset_memory: Callable[[], None] = lambda: None
    timer: Callable[[Callable[[], None], int], float] | None = None
    waited: Callable[[], float] | None = None
    input_clock: str = HOST_CLOCK
    loss: Callable[[], float] | None = None
    inference: Callable[[Graph], Callable[[Arrays], Any]] | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    afterwards: Callable[[], Mapping[str, object]] = dict
    group: ProcessGroup | None = None
    trace: Callable[[int], str] | None = None
    planned_bytes: int | None = None
