"""Parse what a user types into a workload, and build the graph of a workload."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from steptime.core.dtypes import find_dtype, precision
from steptime.core.errors import InputError, check_choice, shorten, unknown
from steptime.core.files import path_exists
from steptime.core.graph import Graph
from steptime.core.tuning import state_weights
from steptime.core.values import MAX_COUNT, parse_count, parse_pairs
from steptime.core.workload import (
    BASE_OPTIMIZERS,
    FULL_TRAINING,
    NO_OPTIMIZER,
    OPTIMIZERS,
    PHASES,
    Plan,
    StateMode,
    Tuning,
    Workload,
    tuning_to_json,
)
from steptime.formats import (
    ENDINGS,
    file_in_folder,
    find_format,
    is_network_file,
    open_source,
    read_network,
    read_table,
    remember_source,
)
from steptime.formats.code import LIBRARIES, STRICT, Code, export_code, parse_code
from steptime.formats.library_types import find_library
from steptime.hardware.defaults import (
    OTHER_MODEL,
    SEQUENCE_MODEL,
    STORED_MODEL,
    StepDefaults,
    default_dtype,
)
from steptime.hardware.device import Device
from steptime.network.families import family, find_network_name, list_names
from steptime.network.families.family import Family, drop_defaults, resolve
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.ops.training import training_graph
from steptime.network.recompute import move_updates_early, recompute_checkpoints, recompute_layers
from steptime.network.tuning import apply_tuning

IMAGE_STEM = "patches"  # of a transformer that reads images
_PARADNN = re.compile(
    r"layer_(?P<layers>\d+)-node_(?P<nodes>\d+)-input_(?P<inputs>\d+)"
    r"-output_(?P<outputs>\d+)(?:-bs_(?P<batch>\d+))?"
)
SETTINGS_OF_FILE = re.compile(rf"(.+(?:{'|'.join(map(re.escape, ENDINGS))})):(.+)", re.IGNORECASE)


@dataclass(frozen=True)
class Choice:
    """A network that a user named.

    Attributes:
        model: the family or the named network, of a network file its name.
        settings: the hyperparameters that the user set.
        batch: the batch that the user set; None without one.
        source: the text, file or table that names the network, for messages.
        file: the path of a network file.
        sha256: the hash of the file's content.
        allow_unknown: let layers of unknown type in the file pass their input on.
        code: the Python file and the name in it that a person asked for.
    """

    model: str
    settings: Mapping[str, object]
    batch: object | None = None
    source: str = ""
    file: str = ""
    sha256: str = ""
    allow_unknown: bool = False
    code: str = ""


def read_model(
    text: str, allow_unknown: bool = False, trusted: bool = False, source: str = ""
) -> Choice:
    """Read model text: `resnet50`, `fc:layers=4,nodes=1024`, a ParaDnn label, a path, or code.

    Args:
        text: the model text.
        allow_unknown: let layers of unknown type in a network's file pass their input on.
        trusted: whether code may be run, in its own process: a person typed the text, or asked for
            the experiment that holds it. Text from data never runs code.
        source: the place of the text, which begins the message on code.

    Raises:
        InputError: for a text that is none of these.
    """
    text = text.strip()
    # a network of a library runs no code of the user, so that untrusted text may name it
    if (code := parse_code(text)) and code.source in LIBRARIES:
        return _read_code(code, allow_unknown, text)
    if code and not trusted:
        place = f"{source}: model" if source else "model"
        asks = "name it on the command line, in Python or in an experiment"
        raise InputError(f"{place} {shorten(text)}: is code, which data does not run; {asks}")
    if code:
        code_text = f"{Path(code.source).resolve()}:{code.name}"
        return replace(_read_code(code, allow_unknown, text), code=code_text)
    paradnn = _PARADNN.fullmatch(text)  # a label of ParaDnn's fully connected networks
    if paradnn:
        sizes = {key: value for key, value in paradnn.groupdict().items() if value is not None}
        return Choice("fc", sizes, batch=sizes.pop("batch", None), source=text)
    file_match = SETTINGS_OF_FILE.fullmatch(text)
    if file_match:  # `network.toml:batch=32`
        path, settings_text = file_match.groups()
        choice = _read_file(path, allow_unknown)
        settings = {**choice.settings, **_read_settings(settings_text, text)}
        return replace(choice, settings=settings, batch=settings.pop("batch", choice.batch))
    _check_words(text)
    # names on Hugging Face hold "/" too; a file of that name wins
    if is_path(text) and (find_network_name(text) not in list_names() or Path(text).exists()):
        return _read_file(find_network_name(text), allow_unknown)
    name, colon, settings_text = text.partition(":")
    if colon and not settings_text.strip():
        raise InputError(f"model {shorten(text)}: nothing after ':'")
    settings = _read_settings(settings_text, text)
    if not name.strip():
        raise InputError(f"model {shorten(text)}: a name such as fc or resnet50 is missing")
    return Choice(find_network_name(name.strip()), settings, batch=settings.pop("batch", None))


def _check_words(text: str) -> None:
    """Raise `InputError` for several words, such as a launch line, of which one names a model.

    Blanks within a name, `ResNet 50`, and within the path of a file stay allowed.
    """
    name = text.partition(":")[0].strip()
    words = name.split()  # of `my resnet50`, the second may be what is meant
    is_file = path_exists(text) or text.endswith(".toml") or is_network_file(text)
    if len(words) < 2 or is_file or find_network_name(name) in list_names():
        return
    model_names = set(list_names())
    for word in words:
        if find_network_name(word) in model_names:
            reason = f"several words, and MODEL is one; nearest: {word}"
            raise InputError(f"model {shorten(text)}: is {reason}")


def _read_code(code: Code, allow_unknown: bool, text: str) -> Choice:
    """Return the choice of a network of code; its file is the text that a person typed."""
    choice = _read_file(str(export_code(code)[0]), allow_unknown)
    return replace(choice, settings={STRICT: True} if code.strict else {}, source=text, file=text)


def _read_settings(settings: str, text: str) -> dict[str, object]:
    """Read the hyperparameters behind the colon of a model text."""
    return {**parse_pairs(settings.split(",") if settings else (), f"model {shorten(text)}:")}


def is_path(text: str) -> bool:
    """Whether a model text names a file."""
    return text.endswith(".toml") or is_network_file(text) or "/" in text


def _read_file(path: str, allow_unknown: bool) -> Choice:
    """Return the choice that a file says: a table with `family`, or a network of another tool.

    A folder stands for the `config.json` or `adapter_config.json` in it, as Hugging Face has them.
    """
    path = file_in_folder(path)
    if not is_network_file(path):
        return choice_of(read_table(path, "model"), path)
    source = open_source(path)
    row = find_format(source)
    if row is None:
        return choice_of(source.table, path)
    if library := find_library(source):
        return _read_code(Code(library, path, {}), allow_unknown, f"{library}:{path}")
    sha256 = remember_source(source, row)
    return Choice(source.name, {}, None, path, path, sha256, allow_unknown)


def family_of(choice: Choice) -> Family:
    """Return the family, the named network or the network of a file that a user named.

    Raises `InputError` for an unknown name and for a file that holds no network.
    """
    if choice.file:
        return read_network(choice.file, choice.sha256, choice.allow_unknown)
    return family(choice.model, choice.source if choice.source != choice.model else "")


def set_length(choice: Choice, length: int) -> Choice:
    """Return the network with sequences of `length` tokens.

    Raises:
        InputError: if the network has no length, or its text gives another one.
    """
    if "length" not in family_of(choice).parameters:
        graph = build(make_workload(choice, dtype="float32", phase="infer"))
        shapes = {name: "x".join(map(str, graph.tensors[name].shape)) for name in graph.inputs}
        inputs = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        model_name = choice.source or choice.model
        raise InputError(f"--length: {model_name} has no length; its inputs are {inputs}")
    model_length = choice.settings.get("length", length)
    if str(model_length) != str(length):
        raise InputError(f"--length {length} contradicts length={model_length} of the model")
    return replace(choice, settings={**choice.settings, "length": length})


def choice_of(table: object, source: str, trusted: bool = False) -> Choice:
    """Read a network from a table: `family` or `model`, and hyperparameters beside it.

    Args:
        table: the table.
        source: its place, for messages.
        trusted: whether `model` may be code, as in an experiment.

    Raises:
        InputError: for a table that names no network, or several.
    """
    if not isinstance(table, dict):
        raise InputError(f"{source}: must be a table with 'family' or 'model'")
    settings: dict[str, object] = dict(table)
    model_names = [settings.pop(key) for key in ("family", "model") if key in settings]
    if len(model_names) != 1:
        raise InputError(f"{source}: give one of 'family' and 'model'")
    text = model_names[0]
    if not isinstance(text, str):
        raise InputError(f"{source}: the name of a family is a text, not {shorten(text)}")
    if is_path(text) and not (is_network_file(text) or parse_code(text)):
        raise InputError(f"{source}: {shorten(text)} is a file, not the name of a family")
    choice = read_model(text, trusted=trusted, source=source)
    if is_path(text) and not choice.file:
        raise InputError(f"{source}: {shorten(text)} holds a family; write it here")
    batch_of_text = {} if choice.batch is None else {"batch": choice.batch}  # of "fc:batch=4"
    for key in {**choice.settings, **batch_of_text}:
        if key in settings:
            raise InputError(f"{source}: '{key}' is given twice")
    batch = settings.pop("batch", choice.batch)
    return replace(choice, settings={**choice.settings, **settings}, batch=batch, source=source)


def make_workload(
    choice: Choice,
    batch: object | None = None,
    dtype: str | None = None,
    phase: str = "train",
    optimizer: str | None = None,
    replicas: object = 1,
    tuning: Tuning = FULL_TRAINING,
    device: Device | None = None,
) -> Workload:
    """Return the checked workload of a chosen network; raises `InputError` for what does not fit.

    `batch` is of one of the `replicas`, which run data-parallel. A `dtype` and an `optimizer` of
    None are those of the kind of network (`hardware.defaults`), on a `device` if it is known.
    """
    model_family = family_of(choice)
    values = resolve(model_family, choice.settings, choice.source or choice.model)
    params = drop_defaults(model_family, values)
    batches = [parse_count(size, "batch") for size in (batch, choice.batch) if size is not None]
    if len(set(batches)) > 1:
        raise InputError(f"batch {batches[0]} contradicts {batches[1]} of the model")
    default_dtypes: tuple[str, ...] = ()  # none where the user or the file states a data type
    stated_dtype = dtype or model_family.dtype or None
    check_choice("phase", phase, PHASES)
    place = choice.source or choice.model
    stored_tuning = state_weights(tuning, model_family.weights, model_family.stored, phase, place)
    if stated_dtype is None or optimizer is None:
        defaults = default_step(choice, batch, phase, stored_tuning)
        default_dtypes = defaults.dtypes if stated_dtype is None else ()
        optimizer_name = defaults.optimizer if optimizer is None else optimizer.lower()
    else:
        optimizer_name = optimizer.lower()
    dtype_name = find_dtype(stated_dtype) if stated_dtype else default_dtype(default_dtypes, device)
    if tuning.states:  # says "paged" and "8-bit": the workload has the optimizer's plain name
        optimizer_name = BASE_OPTIMIZERS.get(optimizer_name, optimizer_name)
    if optimizer_name not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS)
    return Workload(
        model=choice.model,
        params=params,
        batch_per_replica=batches[0] if batches else model_family.batch,
        dtype=dtype_name,
        phase=phase,
        optimizer=optimizer_name if phase == "train" else NO_OPTIMIZER,
        plan=Plan(data=parse_count(replicas, "replicas")),
        file=choice.file,
        sha256=choice.sha256,
        allow_unknown=choice.allow_unknown,
        tuning=stored_tuning,
        code=choice.code,
        default_dtypes=default_dtypes,
        has_default_optimizer=optimizer is None,
        has_stated_weights=stored_tuning.weights != tuning.weights,
    )


def default_step(
    choice: Choice, batch: object | None, phase: str, tuning: Tuning = FULL_TRAINING
) -> StepDefaults:
    """Return the data types and the optimizer of a network where nobody says them.

    A sequence model has a `length` and no images, or is of a file whose first input is tokens.
    Inference on quantised weights computes in 16 bits.
    """
    model_family = family_of(choice)
    if phase == "infer" and tuning.weights:
        return STORED_MODEL
    if "length" in model_family.parameters:
        return OTHER_MODEL if choice.settings.get("stem") == IMAGE_STEM else SEQUENCE_MODEL
    if not choice.file or not choice.sha256:
        return OTHER_MODEL
    # only the input is asked for, which no data type or optimizer changes
    step = make_workload(choice, batch, model_family.dtype or "float32", phase, "sgd")
    try:
        tokens = build(step).tokens
    except InputError:  # it is raised again for the step that was asked for
        return OTHER_MODEL
    return OTHER_MODEL if tokens is None else SEQUENCE_MODEL


@lru_cache(maxsize=64)
def _build_graph(table_text: str) -> Graph:
    table = json.loads(table_text)
    if table["file"]:
        network_family = read_network(table["file"], table["sha256"], table["allow_unknown"])
    else:
        network_family = family(table["model"])
    values = resolve(network_family, table["params"])
    builder = Builder(table["model"], precision(table["dtype"]), training=table["phase"] == "train")
    try:
        output = network_family.build(builder, values, table["batch"])
    except ShapeError as error:
        raise InputError(f"{table['model']}: {error}") from None
    for name, spec in builder.tensors.items():
        if spec.size_bytes > MAX_COUNT:
            raise InputError(f"{table['model']}: tensor '{name}' has more than 2^53 bytes")
    return apply_tuning(builder.graph(output), Tuning(**table["tuning"]))


def build(workload: Workload) -> Graph:
    """Return the forward graph of a workload, every shape known.

    In training its output is the loss. Raises `InputError` where the sizes do not fit together.
    """
    table = {
        "model": workload.model,
        "params": dict(workload.params),
        "dtype": workload.dtype,
        "phase": workload.phase,
        "file": workload.file,
        "sha256": workload.sha256,
        "allow_unknown": workload.allow_unknown,
        "batch": workload.batch_per_replica,
        "tuning": tuning_to_json(workload.tuning),
    }
    # equal steps have equal texts, by which the cache finds their graph
    return _build_graph(json.dumps(table))


def build_step(workload: Workload) -> Graph:
    """Return the graph of a whole step: forward, and in training gradients and updates."""
    graph = build(workload)
    if workload.phase == "infer":
        return graph
    try:
        return differentiate(graph, workload.optimizer, workload.tuning)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{workload.model}: {error}") from None


def tokens_per_example(workload: Workload) -> int | None:
    """Return the tokens of an example that are text, None of a network that reads none."""
    tokens = build(workload).tokens
    if tokens is None:
        return None
    length = tokens // workload.batch_per_replica
    text_tokens = workload.tuning.padded  # of a padded sequence; 0: nothing is padded
    # Padding takes time, but its tokens are no text and do not count in tokens/s.
    return min(length, text_tokens) if text_tokens else length


def differentiate(graph: Graph, optimizer: str, tuning: Tuning) -> Graph:
    """Return the graph of a step, its gradients and updates in the order of a fine-tuning."""
    step = training_graph(graph, optimizer, tuning.methods, StateMode.EIGHT_BIT in tuning.states)
    if step.checkpoints:
        step = recompute_checkpoints(step)
    if tuning.recompute == "full":
        step = recompute_layers(step, to_end="repeats" in tuning.methods)
    return move_updates_early(step) if StateMode.EARLY in tuning.states else step
