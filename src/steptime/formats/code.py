"""Networks that are code, `model.py:UNet` or `torchvision:resnet50`: exported to a kept file.

The code is run, in a process of its own, which alone imports PyTorch; nothing else here runs it.
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
from typing import Any

from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.values import parse_count, parse_truth
from steptime.formats import Source, open_source, read_content
from steptime.formats.archive import read_member
from steptime.hardware.item_files import user_folder

LIBRARIES = ("torchvision", "timm", "transformers", "diffusers")
CONFIG_ENDING = ".json"  # of a configuration that a library reads
FACTS_FILE = "steptime.json"
CPU_LIMIT_S = 600  # processor seconds of an export, unless the variable says otherwise
CPU_LIMIT_VARIABLE = "STEPTIME_EXPORT_CPU_S"
NUMBER = "number"  # the type of an input that is a number, not a tensor
BATCH_AXIS = "batch_axis"
STRICT = "strict"
TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool", "complex64", NUMBER)
MAX_AXES = 16
_CODE = re.compile(
    rf"(?P<where>[^:]+\.py|{'|'.join(LIBRARIES)}):(?P<name>[^:=,]+)(?::(?P<inputs>.+))?"
)
_INPUT = re.compile(
    r"(?:(?P<name>\w+(?:\.\w+)*)=)?"
    r"(?P<shape>\d+(?:x\d+)*|scalar|-?\d*\.\d+|-\d+)(?::(?P<dtype>\w+))?"
)

_OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL)  # how a process of too much CPU time ends
Inputs = Mapping[str, tuple[tuple[int, ...] | float, str]]  # a number has the type `NUMBER`


@dataclass(frozen=True)
class Code:
    """A network that is code: a Python file or a library, and the name in it."""

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
        return hashlib.sha256(read_content(self.name)).hexdigest()[:16]

    @property
    def cache_path(self) -> Path:
        """The file in the user's own folder that it is exported to on the way."""
        if self.source in LIBRARIES:
            shapes = [shape for shape, _ in self.inputs.values() if isinstance(shape, tuple)]
            sizes = ["x".join(map(str, shape)) for shape in shapes]
            stem = self.name if self.content_key == "" else Path(self.name).stem
            words = [f"{self.source}.{stem}", *filter(None, [self.content_key]), *sizes]
            name = "-".join(words)
            return user_folder("networks") / f"{name}.pt2"
        place = hashlib.sha256(str(Path(self.source).resolve()).encode()).hexdigest()[:16]
        return user_folder("networks") / place / self.default_path.name

    @property
    def default_path(self) -> Path:
        """The file that it is converted to where nothing else is asked for."""
        path = Path(self.source)
        return (
            self.cache_path
            if self.source in LIBRARIES
            else path.with_name(f"{path.stem}.{self.name}.pt2")
        )

    @property
    def fingerprint(self) -> str:
        """What tells whether the code is as it was; raises `InputError` where it is not there."""
        if self.source not in LIBRARIES:
            return hashlib.sha256(read_content(self.source)).hexdigest()
        from importlib import metadata

        try:
            version = f"{self.source} {metadata.version(self.source)}"
            return " ".join(filter(None, [version, self.content_key]))
        except metadata.PackageNotFoundError:
            lack = f"{self.source} is not installed"
            raise InputError(f"{self.source}:{self.name}: {lack}") from InputError(lack)


def cpu_limit_s() -> int:
    """Return the processor seconds that an export may take; raises `InputError`."""
    said = os.environ.get(CPU_LIMIT_VARIABLE, "")
    return parse_count(said, CPU_LIMIT_VARIABLE) if said else CPU_LIMIT_S


def parse_code(text: str) -> Code | None:
    """Return what a model text says if it is code, else None; raises `InputError`."""
    found = _CODE.fullmatch(text.strip())
    if not found:
        if text.strip().endswith(".py"):
            raise InputError(f"model {shorten(text)}: name the class in it: {text.strip()}:NAME")
        return None
    given = (found["inputs"] or "").split(",") if found["inputs"] else []
    place = f"model {shorten(text)}"
    axes = [word.strip() for word in given if word.strip().startswith(f"{BATCH_AXIS}=")]
    strict_words = [word.strip() for word in given if word.strip().startswith(f"{STRICT}=")]
    words = [word for word in given if word.strip() not in (*axes, *strict_words)]
    inputs = parse_inputs(words, place)
    is_strict = False
    for word in strict_words:
        is_strict = parse_truth(word.partition("=")[2], f"{place}: {STRICT}")
    axis = None
    for word in axes:
        axis = parse_count(word.partition("=")[2], f"{place}: {BATCH_AXIS}", 0, MAX_AXES)
    return Code(found["where"], found["name"].strip(), inputs, axis, is_strict)


def parse_inputs(texts: list[str], where: str) -> Inputs:
    """Return inputs from `x=2x3x256x256:float32`, by their places where none has a name.

    A tensor without axes is `t=scalar:int64`, a number `scale=0.5` or `count=3:number`, a place in
    a dict or a list `batch.ids=2x16:int64`.
    """
    inputs: dict[str, tuple[tuple[int, ...] | float, str]] = {}
    for place, text in enumerate(texts):
        found = _INPUT.fullmatch(text.strip())
        if not found:
            raise InputError(f"{where}: input {shorten(text)} is not NAME=2x3x256x256:float32")
        here = f"{where}: input {shorten(text)}"
        said = found["shape"]
        dtype = found["dtype"] or (NUMBER if _is_number(said) else "float32")
        check_choice("type of an input", dtype, TYPES, where)
        name = found["name"] or str(place)
        if name in inputs:
            raise InputError(f"{where}: input {shorten(name)} is given twice")
        inputs[name] = _shape_of(said, dtype, here), dtype
    if len({name.isdigit() for name in inputs}) > 1:
        raise InputError(f"{where}: give a name to all inputs or to none")
    return inputs


def _is_number(text: str) -> bool:
    """Whether the text of an input is a number, not the sizes of a tensor."""
    return "." in text or text.startswith("-")


def _shape_of(text: str, dtype: str, here: str) -> tuple[int, ...] | float:
    """Return the sizes that a text says, or the number of an input that is one."""
    if dtype == NUMBER:
        if text == "scalar" or "x" in text:
            raise InputError(f"{here}: is not a number")
        return float(text) if "." in text else int(text)
    if _is_number(text):
        raise InputError(f"{here}: a number has no type but {NUMBER}")
    sizes = [] if text == "scalar" else text.split("x")
    shape = tuple(parse_count(n, here, at_most=2**40) for n in sizes)
    if len(shape) > MAX_AXES:
        raise InputError(f"{here}: more than {MAX_AXES} axes")
    return shape


def read_export_facts(source: Source) -> dict[str, Any]:
    """Return what a `.pt2` file says of the code that it was made from; {} for nothing."""
    try:
        found = json.loads(
            read_member(source, lambda name: name.endswith(f"extra/{FACTS_FILE}"), FACTS_FILE)
        )
    except (InputError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def export_code(code: Code, path: Path | None = None) -> tuple[Path, str]:
    """Return the `.pt2` file of code, made before or now, and why its batch is fixed, or ""."""
    kept, key = path or code.cache_path, code.fingerprint
    about: Mapping[str, Any] = {}
    for before in (code.cache_path, code.default_path):
        said = read_export_facts(open_source(str(before))) if before.exists() else {}
        inputs = {
            name: [list(shape) if isinstance(shape, tuple) else shape, dtype]
            for name, (shape, dtype) in code.inputs.items()
        }
        fits = said.get("key") == key and (not inputs or said.get("inputs") == inputs)
        fits = fits and code.batch_axis in {None, said.get(BATCH_AXIS)}
        if fits and path in (None, before):
            return before, str(said.get("static", ""))
        about = about or said
    if path is None:
        kept.parent.mkdir(parents=True, exist_ok=True)
    where = code.source if code.source in LIBRARIES else str(Path(code.source).resolve())
    request = {
        "where": where,
        "name": code.name,
        "key": key,
        "inputs": code.inputs,
        BATCH_AXIS: code.batch_axis,
        "before": about.get("inputs"),
        "path": str(kept.resolve()),
    }
    answer = _run_export(request, f"{code.source}:{code.name}")
    if "refused" in answer:
        raise InputError(answer["refused"])
    return kept, answer["static"]


def _run_export(request: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the answer of a process that runs the code, for a limited time of a processor."""
    import subprocess

    limit_s = cpu_limit_s()
    done = subprocess.run(  # the code is what the user named
        [sys.executable, "-P", "-m", "steptime.measure.backends.native.export"],
        input=json.dumps({**request, "cpu_limit_s": limit_s}),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        check=False,
    )
    if done.returncode in _OUT_OF_TIME:
        hint = f"{CPU_LIMIT_VARIABLE} sets another limit"
        raise InputError(f"{what}: was not exported within {limit_s} s of CPU time; {hint}")
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        lines = done.stderr.strip().splitlines()
        said = lines[-1][:300] if lines else f"it ended with exit code {done.returncode}"
        raise InputError(f"{what}: was not exported: {said}") from None
    return dict(found)
