"""The options that several questions share, and how their texts become values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import isfunction
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from steptime.core import values
from steptime.core.errors import InputError, shorten
from steptime.core.kinds import text_of
from steptime.core.python_file import is_code, run_file
from steptime.core.question import Text, argument, named, option
from steptime.core.units import size
from steptime.core.values import parse_count
from steptime.core.workload import WHOLE, Plan, Tuning, Workload
from steptime.hardware import catalog
from steptime.hardware.device import Device as HardwareDevice

if TYPE_CHECKING:
    from steptime.measure.contract import Options


pairs = values.parse_pairs
MODEL = (
    "A family with its hyperparameters (fc:layers=4,nodes=1024), a named network (resnet50), a "
    "ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or code (model.py:NAME)"
)
Model = Annotated[str, argument("MODEL", f"{MODEL}.")]
BATCH = "Batch size. Default: 64, transformers 1, a file's own"
Batch = Annotated[Text, option("--batch N", f"{BATCH}.")]
LENGTH = "Tokens of a sequence. Default: the model's"
Length = Annotated[int | None, option("--length --seq-len N", f"{LENGTH}.", parser=parse_count)]
AllowUnknown = Annotated[
    bool,
    option(
        "--allow-unknown", "Let layers of unknown type in a network's file pass their input on."
    ),
]
DEVICE = "A device (steptime list devices), FILE.toml or local"
Device = Annotated[str, option("--device NAME", f"{DEVICE}.")]
Method = Annotated[str, option("--method NAME", "The cost model (steptime list methods).")]
Phase = Annotated[str, option("--phase NAME", "train or infer.")]
Dtype = Annotated[
    str,
    option(
        "--dtype NAME",
        "float32, float64, bfloat16, float16, or with float32 weights bfloat16-mixed, "
        "float16-mixed.",
    ),
]
LOW_DTYPE = "bfloat16 (default), float16; float8 or float4 for the layers' products."
Optimizer = Annotated[
    str,
    option(
        "--optimizer NAME",
        "sgd, momentum, rmsprop, adam, adamw, or adam with states of 8 bits, or that may be paged "
        "to the host: adam8bit, paged_adam, paged_adam8bit.",
    ),
]
ByOp = Annotated[bool, option("--by-op", "Show every op.")]
Settings = Annotated[list[str] | None, option("NAME=VALUE", "An option of the method; repeatable.")]
Prices = Annotated[
    Path | None,
    option("--prices FILE", "Prices of devices. Default: the shipped ones, of their dates."),
]
Folder = Annotated[Path, argument("DIR", "Folder of records.")]
In = Annotated[Path, option("--in DIR", "Folder of records.")]
Out = Annotated[Path, option("--out DIR", "Folder for the records.")]
Backend = Annotated[str, option("NAME", "torch, jax, onnxruntime, or one that a package adds.")]
PLACES = ("cpu", "cuda", "mps", "tpu")
Place = Annotated[
    str, option("--device NAME", "Where to run: cpu, cuda[:n], mps, tpu[:n].", known=PLACES)
]
Threads = Annotated[int | None, option("K", "CPU threads. Default: all cores.", parser=parse_count)]


def software(texts: list[str] | None, **named_: str | bool | None) -> dict[str, str]:
    """Return the options of a method, of `--option` and of those that have their own names.

    Raises `InputError` for one that is said twice.
    """
    found = pairs(texts, "option")
    for name, value in named_.items():
        if value is not None:
            refuse({f"--option {name}": name in found}, f"{{}} says what {named(name)} says")
            found[name] = ("no", "yes")[value] if isinstance(value, bool) else value
    return found


def given(group: object) -> dict[str, Any]:
    """Return the options of a group that were not left out."""
    return given_of(vars(group))


def given_of(every: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a table that were not left out."""
    return {name: one for name, one in every.items() if one is not None and one is not False}


def words_of(every: Mapping[str, Any]) -> list[str]:
    """Return options as a user writes them; one that is left out says nothing."""
    said = []
    for name, value in every.items():
        for one in value if isinstance(value, list) else [value]:
            said += [] if one is None or one is False else [named(name)]
            text = ",".join(map(str, one)) if isinstance(one, tuple) else str(one)
            said += [] if one is None or isinstance(one, bool) else [text]
    return said


def refuse(given: Mapping[str, object], why: str) -> None:
    """Raise `InputError` for the first option that is given, its name for `{}` in the message."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise InputError(why.format(name))


def memory_shown(document: Mapping[str, Any]) -> str:
    """Return the peak memory of a document as people read it, with what it is for."""
    said = size(document["peak_bytes"])
    return said if document["phase"] == "infer" else f"{said} (optimizer {document['optimizer']})"


def one_device(name: Any) -> Any:
    """Return the name of a device, or a device; raises `InputError` for a list of several."""
    if isinstance(name, str) and "," in name:
        raise InputError(
            f"--device {shorten(name)}: several devices go with predict --grid, choose"
        )
    return name


def find_device(name: Any, option: str, method: str = "") -> HardwareDevice:
    """Return the device of an option's value; raises `InputError` that names the option."""
    try:
        return catalog.device(one_device(name), method)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


def workload_of(
    model: str | PathLike[str] | Workload,
    batch: str | int | None,
    dtype: str = "float32",
    phase: str = "train",
    optimizer: str = "sgd",
    allow_unknown: bool = False,
    tuning: Tuning = WHOLE,
    length: int | None = None,
) -> Workload:
    """Return the workload that the shared options name, or that it is; raises `InputError`."""
    from steptime.build import is_path, make_workload, read_model, set_length

    if isinstance(model, Workload):
        refuse({"--length": length}, "{} goes with the name of a model: a workload has its own")
        return model
    for what, text in (("models", str(model)), ("batches", str(batch))):
        is_list = "," in text and ":" not in text and not is_path(text)
        if is_list or (what == "batches" and ".." in text):
            raise InputError(f"{shorten(text)}: several {what} go with predict --grid")
    choice = read_model(str(model), allow_unknown, trusted=True)
    if length is not None:
        choice = set_length(choice, length)
    return make_workload(choice, batch, dtype, phase, optimizer, tuning=tuning)


def over_replicas(
    workload: Workload, told: Options, replicas: int | None, strategy: str | None, no_overlap: bool
) -> tuple[Workload, Options]:
    """Return the workload on its replicas, and what the backend is told with their strategy.

    Raises `InputError` for a number that is not the launcher's.
    """
    from steptime.measure import ranks
    from steptime.measure.contract import meaningful

    size = ranks.here().size
    count = size if replicas is None else replicas
    if size not in {1, count}:
        raise InputError(f"--replicas {count}: the launcher started {size} processes; leave it out")
    if count == 1:
        given = {"--strategy": strategy, "--no-overlap": no_overlap}
        refuse(given, "{} goes with --replicas of 2 or more")
    told = replace(told, strategy=strategy or "allreduce", overlap=not no_overlap)
    return replace(workload, plan=Plan(data=count)), meaningful(told, count)


def options_of(
    device: str = "cpu", threads: int | None = None, compile_: bool = False, tf32: bool = False
) -> Options:
    """Return where and how to run, as the options of the command line say it."""
    from steptime.measure.contract import Options

    return Options(device=device, threads=threads, compile=compile_, tf32=tf32)


def thread_count(threads: int | str | None) -> int | None:
    """Return the number of `--threads`, None for all cores; raises `InputError`."""
    return None if threads is None else parse_count(text_of(threads), "--threads")


def stack_of(name: str | None, backend: str, compiled: bool) -> tuple[str, bool]:
    """Return the backend that is asked for, and whether it compiles, by a stack's name or apart.

    Raises `InputError` for unknown names, for both ways at once, and for what cannot be compiled.
    """
    from steptime.measure import registry

    if name is not None:
        refuse(
            {"--backend": backend != "torch", "--compile": compiled},
            "{} says what --stack says; keep one of them",
        )
        found = registry.stack(name)
        return found.backend, found.compile
    registry.backend(backend)
    if not registry.compiles(backend, compiled):
        raise InputError(f"--compile is for torch: {backend} decides by itself; leave it out")
    return backend, compiled


def price_of(text: Any) -> Any:
    """Return the price that a method is, or that a `FILE.py:NAME` defines; None for a name."""
    if isinstance(text, str):
        return run_file(text, "--method") if is_code(text) else None
    return text if isfunction(text) else None


def describe_unmodelled(names: Sequence[str]) -> list[str]:
    """Return the note that says which layers of unknown type are not counted, if there are any."""
    return [f"layers of unknown type count nothing: {', '.join(names)}"] if names else []


def unmodelled(names: Sequence[str]) -> list[str]:
    """Return the line that says which layers of unknown type are not counted, where there are."""
    return [f"note: {note}" for note in describe_unmodelled(names)]
