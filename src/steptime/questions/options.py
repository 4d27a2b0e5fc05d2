"""The options that several questions share, and how their texts become values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import isfunction
from os import PathLike
from typing import TYPE_CHECKING, Any

from steptime.core import values
from steptime.core.errors import InputError, shorten
from steptime.core.python_file import is_code, run_file
from steptime.core.signatures.kinds import text_of
from steptime.core.signatures.signature import option_name
from steptime.core.units import format_bytes
from steptime.core.values import parse_count
from steptime.core.workload import FULL_TRAINING, Plan, Tuning, Workload
from steptime.hardware import catalog
from steptime.hardware.device import Device as HardwareDevice
from steptime.hardware.software import resolve_stack

if TYPE_CHECKING:
    from steptime.measure.contract import Options


pairs = values.parse_pairs
MISSING_MODEL = "missing argument 'MODEL', such as resnet50; steptime list models names all"
MISSING_DEVICE = "missing option '--device', such as a100; steptime list devices names all"
PLACES = ("cpu", "cuda", "mps", "tpu")


def software(texts: list[str] | None, **values: str | bool | None) -> dict[str, str]:
    """Merge the options of a method: those of `--option` and those with options of their own.

    Args:
        texts: `NAME=VALUE` texts of `--option`.
        **values: values of the options of their own; None is left out, a flag is yes or no.

    Raises:
        InputError: if an option is in both.
    """
    settings = pairs(texts, "--option")
    for name, value in values.items():
        if value is not None:
            is_repeated = name in settings
            refuse({f"--option {name}": is_repeated}, f"{{}} says what {option_name(name)} says")
            if isinstance(value, bool):
                settings[name] = "yes" if value else "no"
            else:
                settings[name] = value
    return settings


def words_of(values: Mapping[str, object]) -> list[str]:
    """Format options as the words of a command line: `["--batch", "8", "--no-overlap"]`.

    Options that are None or False are left out. A list repeats its option; a tuple is joined by
    commas.
    """
    words = []
    for name, option_value in values.items():
        # A list stands for an option that is repeated, a tuple for values joined by commas.
        repeated_values = option_value if isinstance(option_value, list) else [option_value]
        for value in repeated_values:
            if value is None or value is False:
                continue
            words.append(option_name(name))
            is_flag = value is True
            if isinstance(value, tuple):
                words.append(",".join(map(str, value)))
            elif not is_flag:
                words.append(str(value))
    return words


def refuse(typed_values: Mapping[str, object], message: str) -> None:
    """Raise `InputError` for the first option with a value.

    Args:
        typed_values: values by the name of their option; None and False are left out.
        message: the text of the error, with `{}` for the name of the option.
    """
    for name, value in typed_values.items():
        if value is not None and value is not False:
            raise InputError(message.format(name))


def describe_memory(document: Mapping[str, Any]) -> str:
    """Format the peak memory of a document: `24.9 GB (optimizer sgd)`, `3.1 GB` of inference."""
    text = format_bytes(document["peak_bytes"])
    return text if document["phase"] == "infer" else f"{text} (optimizer {document['optimizer']})"


def single_device(name: Any) -> Any:
    """Return the name of a device, or a device; raises `InputError` for a list of several."""
    if isinstance(name, str) and "," in name:
        raise InputError(
            f"--device {shorten(name)}: several devices go with predict --grid, choose"
        )
    return name


def full_stack_name(text: str) -> str:
    """Return the full name of a stack, a path as it is; raises `InputError` for an unknown one."""
    stack = catalog.stack(resolve_stack(text))
    return text if text.lower().endswith(".toml") else stack.name


def find_device(name: Any, option: str, method: str = "") -> HardwareDevice:
    """Return the device of an option's value; raises `InputError` that names the option."""
    try:
        return catalog.device(single_device(name), method)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


def set_reading(
    model: str | PathLike[str] | Workload, strict: bool, batch_axis: int | str | None
) -> str | Workload:
    """Return a model with `--strict` and `--batch-axis` in its text, a workload as it is.

    Raises:
        InputError: if a batch axis is given for a network that is no code.
    """
    from steptime.formats.code import MAX_AXES
    from steptime.questions.model_text import set_model_words

    if isinstance(model, Workload):
        return model
    axis = None
    if batch_axis is not None:
        axis = parse_count(text_of(batch_axis), "--batch-axis", 0, MAX_AXES)
    return set_model_words(str(model), strict, axis)


def workload_of(
    model: str | PathLike[str] | Workload,
    batch: str | int | None,
    dtype: str | None = None,
    phase: str = "train",
    optimizer: str | None = None,
    allow_unknown: bool = False,
    tuning: Tuning = FULL_TRAINING,
    length: int | None = None,
    device: HardwareDevice | None = None,
) -> Workload:
    """Return the workload that the shared options name, or that it is; raises `InputError`."""
    from steptime.build import is_path, make_workload, read_model, set_length

    if isinstance(model, Workload):
        refuse({"--length": length}, "{} goes with the name of a model: a workload has its own")
        return model
    model_text, batch_text = str(model), str(batch)
    # A comma after the colon of a model text separates settings, not models.
    has_several_models = "," in model_text and ":" not in model_text and not is_path(model_text)
    if has_several_models:
        raise InputError(f"{shorten(model_text)}: several models go with predict --grid")
    has_several_batches = "," in batch_text or ".." in batch_text
    if has_several_batches:
        raise InputError(f"--batch {shorten(batch_text)}: several batches go with predict --grid")
    if batch is not None:
        parse_count(text_of(batch), "--batch")
    # Trusted: the user typed the model, so it may be the user's own code.
    choice = read_model(str(model), allow_unknown, trusted=True)
    if length is not None:
        choice = set_length(choice, length)
    return make_workload(choice, batch, dtype, phase, optimizer, tuning=tuning, device=device)


def over_replicas(
    workload: Workload,
    worker: Options,
    replicas: int | None,
    strategy: str | None,
    no_overlap: bool,
) -> tuple[Workload, Options]:
    """Return the workload on its replicas, and the options of the backend with their strategy.

    Args:
        workload: the workload of one replica.
        worker: options of the backend.
        replicas: number of replicas; None for the number of processes of the launcher.
        strategy: how gradients are exchanged; None for all-reduce.
        no_overlap: exchange gradients after the backward pass instead of during it.

    Raises:
        InputError: if the launcher started another number of processes.
    """
    from steptime.measure import ranks
    from steptime.measure.contract import reset_unused_options

    process_count = ranks.find_rank().size
    replica_count = process_count if replicas is None else replicas
    is_launched = process_count > 1  # by torchrun or Slurm, one process for each replica
    if is_launched and process_count != replica_count:
        fault = f"the launcher started {process_count} processes; leave it out"
        raise InputError(f"--replicas {replica_count}: {fault}")
    if replica_count == 1:
        typed_values = {"--strategy": strategy, "--no-overlap": no_overlap}
        refuse(typed_values, "{} goes with --replicas of 2 or more")
    replicated_workload = replace(workload, plan=Plan(data=replica_count))
    replica_options = replace(worker, strategy=strategy or "allreduce", overlap=not no_overlap)
    return replicated_workload, reset_unused_options(replica_options, replica_count)


def options_of(
    device: str = "cpu", threads: int | None = None, compile_: bool = False, tf32: bool = False
) -> Options:
    """Return the options of a backend: its device, threads, compilation and use of TF32."""
    from steptime.measure.contract import Options

    return Options(device=device, threads=threads, compile=compile_, tf32=tf32)


def thread_count(threads: int | str | None) -> int | None:
    """Return the number of `--threads`, None for all cores; raises `InputError`."""
    return None if threads is None else parse_count(text_of(threads), "--threads")


def stack_of(name: str | None, backend: str, compiled: bool) -> tuple[str, bool]:
    """Return the backend of a question, and whether it compiles.

    Args:
        name: name of a software stack, which stands for both; None without `--stack`.
        backend: the value of `--backend`.
        compiled: the value of `--compile`.

    Raises:
        InputError: for unknown names, for `--stack` beside the other options, and for a backend
            that cannot compile on request.
    """
    from steptime.measure import registry

    if name is not None:
        refuse(
            # `torch` is the default, and stands for an option that was not typed.
            {"--backend": backend != "torch", "--compile": compiled},
            "{} says what --stack says; keep one of them",
        )
        stack = registry.stack(name)
        return stack.backend, stack.compile
    registry.backend(backend)  # refuses an unknown one
    if not registry.accepts_compile(backend, compiled):
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
