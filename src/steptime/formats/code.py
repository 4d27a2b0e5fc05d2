"""Networks that are code, `model.py:UNet` or `torchvision:resnet50`: exported to a cached file.

Only a process of its own runs the code and imports PyTorch.
"""

import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.json_types import JsonObject
from steptime.core.values import parse_count, parse_truth
from steptime.formats import Source, open_source, read_content
from steptime.formats.archive import read_member
from steptime.hardware.item_files import user_folder

LIBRARIES = ("torchvision", "timm", "transformers", "diffusers")
CONFIG_ENDING = ".json"  # of a configuration that a library reads
FACTS_FILE = "steptime.json"  # member of a `.pt2` file: the code that the file was exported from
CPU_LIMIT_S = 600  # processor seconds of an export, unless the variable says otherwise
CPU_LIMIT_VARIABLE = "STEPTIME_EXPORT_CPU_S"
NUMBER = "number"  # the type of an input that is a number, not a tensor
SCALAR_SHAPE = "scalar"  # the shape, in a text, of a tensor without axes
DEFAULT_DTYPE = "float32"
BATCH_AXIS = "batch_axis"
STRICT = "strict"
ASSUMED = "assumed"  # the fact that says what sizes of inputs were assumed
TYPES = (
    *("float32", "float64", "float16", "bfloat16"),
    *("int64", "int32", "bool", "complex64", NUMBER),
)
MAX_AXES = 16
MAX_INPUT_SIZE = 2**40
HASH_DIGITS = 16  # hexadecimal digits of a hash in a file name: no two networks share 64 bits
MAX_REASON_LENGTH = 300  # characters of an error of the code in a message
_CODE = re.compile(
    rf"(?P<source>[^:]+\.py|{'|'.join(LIBRARIES)}):(?P<name>[^:=,]+)(?::(?P<inputs>.+))?"
)
_INPUT = re.compile(
    r"(?:(?P<name>\w+(?:\.\w+)*)=)?"
    rf"(?P<shape>\d+(?:x\d+)*|{SCALAR_SHAPE}|-?\d*\.\d+|-\d+)(?::(?P<dtype>\w+))?"
)

_OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL)  # how a process of too much CPU time ends


class InputSpec(NamedTuple):
    """An input of code.

    Attributes:
        value: the shape of a tensor, or the number itself.
        dtype: the data type of a tensor, `NUMBER` for a number.
    """

    value: tuple[int, ...] | float
    dtype: str


Inputs = Mapping[str, InputSpec]


class ExportedCode(NamedTuple):
    """The file of a network that is code.

    Attributes:
        path: the `.pt2` file.
        fixed_batch_reason: why the file is for one batch only; "" for a file whose batch is open.
    """

    path: Path
    fixed_batch_reason: str


@dataclass(frozen=True)
class Code:
    """A network that is code.

    Attributes:
        source: the Python file, or one of `LIBRARIES`.
        name: the name of the network in it, or the path of a library's configuration.
        inputs: its inputs, empty where the code states them itself.
        batch_axis: the axis of its inputs that is the batch, None to find it.
        strict: whether ops of unknown work are refused.
    """

    source: str
    name: str
    inputs: Inputs
    batch_axis: int | None = None
    strict: bool = False

    @property
    def content_key(self) -> str:
        """A hash of the `config.json` that a library reads, "" for a network that has a name."""
        if self.source not in LIBRARIES or not self.name.endswith(CONFIG_ENDING):
            return ""
        return hashlib.sha256(read_content(self.name)).hexdigest()[:HASH_DIGITS]

    @property
    def cache_path(self) -> Path:
        """The file in the user's own folder to which the code is exported by default.

        Example: `networks/torchvision.resnet50-2x3x224x224.pt2`.
        """
        if self.source not in LIBRARIES:
            code_path = str(Path(self.source).resolve())
            path_hash = hashlib.sha256(code_path.encode()).hexdigest()[:HASH_DIGITS]
            return user_folder("networks") / path_hash / self.default_path.name
        is_configuration = self.content_key != ""  # whose content decides, not its path
        stem = Path(self.name).stem if is_configuration else self.name
        name_parts = [f"{self.source}.{stem}"]
        if is_configuration:
            name_parts.append(self.content_key)
        shapes = [spec.value for spec in self.inputs.values() if isinstance(spec.value, tuple)]
        name_parts += ["x".join(map(str, shape)) for shape in shapes]
        return user_folder("networks") / f"{'-'.join(name_parts)}.pt2"

    @property
    def default_path(self) -> Path:
        """The file to which `steptime convert` writes the network unless `-o` names another."""
        if self.source in LIBRARIES:
            return self.cache_path
        path = Path(self.source)
        return path.with_name(f"{path.stem}.{self.name}.pt2")

    @property
    def fingerprint(self) -> str:
        """A hash of the Python file, or the version of the library.

        Raises:
            InputError: for a file that cannot be read or a library that is not installed.
        """
        if self.source not in LIBRARIES:
            return hashlib.sha256(read_content(self.source)).hexdigest()
        from importlib import metadata

        try:
            version = f"{self.source} {metadata.version(self.source)}"
            return " ".join(filter(None, [version, self.content_key]))
        except metadata.PackageNotFoundError:
            # lists of refused rows show the cause alone, as they name the model themselves
            fault = f"{self.source} is not installed"
            raise InputError(f"{self.source}:{self.name}: {fault}") from InputError(fault)


def cpu_limit_s() -> int:
    """Return the processor seconds that an export may take; raises `InputError`."""
    stated_limit = os.environ.get(CPU_LIMIT_VARIABLE, "")
    return parse_count(stated_limit, CPU_LIMIT_VARIABLE) if stated_limit else CPU_LIMIT_S


def parse_code(text: str) -> Code | None:
    """Parse a model text such as `net.py:Net:x=2x3x64x64,batch_axis=0`; None if it is no code.

    Raises:
        InputError: for a Python file without a name in it, and for wrong inputs or options.
    """
    match = _CODE.fullmatch(text.strip())
    if not match:
        if text.strip().endswith(".py"):
            raise InputError(f"model {shorten(text)}: name the class in it: {text.strip()}:NAME")
        return None
    place = f"model {shorten(text)}"
    batch_axis = None
    is_strict = False
    input_texts: list[str] = []
    settings = match["inputs"].split(",") if match["inputs"] else []
    for setting in settings:
        key, equals_sign, value = setting.strip().partition("=")
        if equals_sign and key == STRICT:
            is_strict = parse_truth(value, f"{place}: {STRICT}")
        elif equals_sign and key == BATCH_AXIS:
            batch_axis = parse_count(value, f"{place}: {BATCH_AXIS}", at_least=0, at_most=MAX_AXES)
        else:
            input_texts.append(setting)
    inputs = parse_inputs(input_texts, place)
    return Code(match["source"], match["name"].strip(), inputs, batch_axis, is_strict)


def parse_inputs(texts: list[str], place: str) -> Inputs:
    """Parse the inputs of code, such as `x=2x3x256x256:float32`.

    A tensor without axes is `t=scalar:int64`, a number `scale=0.5` or `count=3:number`, a value in
    a dict or a list `batch.ids=2x16:int64`. Inputs without a name are called by their positions.

    Args:
        texts: one input each.
        place: the option or text that they come from, for messages.

    Raises:
        InputError: for a text of another form, and for names that do not tell inputs apart.
    """
    inputs: dict[str, InputSpec] = {}
    for position, text in enumerate(texts):
        match = _INPUT.fullmatch(text.strip())
        if not match:
            raise InputError(f"{place}: input {shorten(text)} is not NAME=2x3x256x256:float32")
        dtype = match["dtype"] or _default_dtype(match["shape"])
        check_choice("type of an input", dtype, TYPES, place)
        name = match["name"] or str(position)
        if name in inputs:
            raise InputError(f"{place}: input {shorten(name)} is given twice")
        value = _parse_input_value(match["shape"], dtype, f"{place}: input {shorten(text)}")
        inputs[name] = InputSpec(value, dtype)
    inputs_with_name = [name for name in inputs if not name.isdigit()]
    if 0 < len(inputs_with_name) < len(inputs):
        raise InputError(f"{place}: give a name to all inputs or to none")
    return inputs


def _default_dtype(text: str) -> str:
    """Return the type of an input whose text says none: `NUMBER` for `0.5` and `-3`."""
    return NUMBER if _states_number(text) else DEFAULT_DTYPE


def _states_number(text: str) -> bool:
    """Whether the text of an input is a number, not the sizes of a tensor."""
    return "." in text or text.startswith("-")


def _parse_input_value(text: str, dtype: str, place: str) -> tuple[int, ...] | float:
    """Parse the sizes of a tensor (`2x3x64x64`) or, where `dtype` is `NUMBER`, a number."""
    if dtype == NUMBER:
        is_shape = text == SCALAR_SHAPE or "x" in text
        if is_shape:
            raise InputError(f"{place}: is not a number")
        return float(text) if "." in text else int(text)
    if _states_number(text):  # `-3` or `0.5`; `3` is the shape of three elements
        raise InputError(f"{place}: a number has no type but {NUMBER}")
    sizes = [] if text == SCALAR_SHAPE else text.split("x")
    shape = tuple(parse_count(size, place, at_most=MAX_INPUT_SIZE) for size in sizes)
    if len(shape) > MAX_AXES:
        raise InputError(f"{place}: more than {MAX_AXES} axes")
    return shape


def read_export_facts(source: Source) -> JsonObject:
    """Read from a `.pt2` file the facts of the code that it was exported from; {} if it has none.

    They are written by `steptime.measure.backends.native.export`.
    """
    try:
        content = read_member(source, lambda name: name.endswith(f"extra/{FACTS_FILE}"), FACTS_FILE)
        facts = json.loads(content)
    except (InputError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def export_code(code: Code, path: Path | None = None) -> ExportedCode:
    """Export code to a `.pt2` file, unless an earlier export of the same code exists.

    Args:
        code: the network.
        path: the file to write, None for any file that holds the network.

    Raises:
        InputError: for code that cannot be read or exported.
    """
    export_path = path or code.cache_path
    fingerprint = code.fingerprint
    earlier_facts: JsonObject = {}
    # `steptime convert` writes to the default path, exports without a path go to the cache
    for earlier_path in (code.cache_path, code.default_path):
        if not earlier_path.exists():
            continue
        facts = read_export_facts(open_source(str(earlier_path)))
        # without a stated path any file of the same code serves, else the one at that path alone
        may_serve = path in (None, earlier_path)
        if may_serve and _is_export_of(facts, code, fingerprint):
            fixed_batch_reason = str(facts.get("static", ""))
            return ExportedCode(earlier_path, fixed_batch_reason)
        earlier_facts = earlier_facts or facts  # of the first file that exists
    if path is None:
        export_path.parent.mkdir(parents=True, exist_ok=True)
    is_library = code.source in LIBRARIES
    request = {
        "where": code.source if is_library else str(Path(code.source).resolve()),
        "name": code.name,
        "key": fingerprint,
        "inputs": code.inputs,
        BATCH_AXIS: code.batch_axis,
        # used where neither text nor code states the inputs
        "before": earlier_facts.get("inputs"),
        "path": str(export_path.resolve()),
    }
    answer = _run_export(request, f"{code.source}:{code.name}")
    if "refused" in answer:
        raise InputError(answer["refused"])
    return ExportedCode(export_path, answer["static"])


def _is_export_of(facts: JsonObject, code: Code, fingerprint: str) -> bool:
    """Whether the facts of an exported file are those of this code, its inputs and its batch axis.

    Code that states no inputs or batch axis matches a file with any.
    """
    inputs_as_json: JsonObject = {}
    for name, spec in code.inputs.items():
        value = list(spec.value) if isinstance(spec.value, tuple) else spec.value
        inputs_as_json[name] = [value, spec.dtype]
    # code that states no inputs or batch axis is served by a file with any
    matches_code = facts.get("key") == fingerprint
    matches_inputs = not inputs_as_json or facts.get("inputs") == inputs_as_json
    matches_batch_axis = code.batch_axis in {None, facts.get(BATCH_AXIS)}
    return matches_code and matches_inputs and matches_batch_axis


def _run_export(request: JsonObject, code_text: str) -> JsonObject:
    """Run the export in a process of its own, with a limit of CPU time, and return its answer.

    Args:
        request: the question that the process reads, as JSON.
        code_text: the code, for messages.

    Raises:
        InputError: if the process ends without an answer.
    """
    import subprocess

    limit_s = cpu_limit_s()
    process = subprocess.run(  # the code is what the user named
        [sys.executable, "-P", "-m", "steptime.measure.backends.native.export"],
        input=json.dumps({**request, "cpu_limit_s": limit_s}),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        check=False,
    )
    if process.returncode in _OUT_OF_TIME:
        hint = f"{CPU_LIMIT_VARIABLE} sets another limit"
        raise InputError(f"{code_text}: was not exported within {limit_s} s of CPU time; {hint}")
    try:
        last_line = process.stdout.strip().splitlines()[-1]
        answer = json.loads(last_line)
    except (ValueError, IndexError):
        error_lines = process.stderr.strip().splitlines()
        reason = f"it ended with exit code {process.returncode}"
        if error_lines:
            reason = error_lines[-1][:MAX_REASON_LENGTH]
        raise InputError(f"{code_text}: was not exported: {reason}") from None
    return dict(answer)
