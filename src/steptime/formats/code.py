"""Networks that are code, `model.py:UNet` or `torchvision:resnet50`: exported to a kept file.

The code is run, in a process of its own, which alone imports PyTorch; nothing else here runs it.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, one_of, shorten
from steptime.core.values import parse_count
from steptime.formats import Source, opened, read_content
from steptime.formats.archive import member
from steptime.hardware.catalog import user_folder

LIBRARIES = ("torchvision", "timm")
ABOUT = "steptime.json"
LIMIT_S = 600.0
TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
MOST_AXES = 16
_CODE = re.compile(
    rf"(?P<where>[^:]+\.py|{'|'.join(LIBRARIES)}):(?P<name>[^:=,]+)(?::(?P<inputs>.+))?"
)
_INPUT = re.compile(r"(?:(?P<name>\w+)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")

Inputs = Mapping[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class Code:
    """A network that is code: a Python file or a library, and the name in it."""

    where: str
    name: str
    inputs: Inputs

    @property
    def kept(self) -> Path:
        """The file in the user's own folder that it is exported to on the way."""
        if self.where in LIBRARIES:
            sizes = ["x".join(map(str, shape)) for shape, _ in self.inputs.values()]
            name = "-".join([f"{self.where}.{self.name}", *sizes])
            return user_folder("networks") / f"{name}.pt2"
        place = hashlib.sha256(str(Path(self.where).resolve()).encode()).hexdigest()[:16]
        return user_folder("networks") / place / self.beside.name

    @property
    def beside(self) -> Path:
        """The file that it is converted to where nothing else is asked for."""
        path = Path(self.where)
        return (
            self.kept if self.where in LIBRARIES else path.with_name(f"{path.stem}.{self.name}.pt2")
        )

    @property
    def key(self) -> str:
        """What tells whether the code is as it was; raises `InputError` where it is not there."""
        if self.where not in LIBRARIES:
            return hashlib.sha256(read_content(self.where)).hexdigest()
        from importlib import metadata

        try:
            return f"{self.where} {metadata.version(self.where)}"
        except metadata.PackageNotFoundError:
            lack = f"{self.where} is not installed"
            raise InputError(f"{self.where}:{self.name}: {lack}") from InputError(lack)


def code_of(text: str) -> Code | None:
    """Return what a model text says if it is code, else None; raises `InputError`."""
    found = _CODE.fullmatch(text.strip())
    if not found:
        if text.strip().endswith(".py"):
            raise InputError(f"model {shorten(text)}: name the class in it: {text.strip()}:NAME")
        return None
    given = (found["inputs"] or "").split(",") if found["inputs"] else []
    return Code(found["where"], found["name"].strip(), inputs_of(given, f"model {shorten(text)}"))


def inputs_of(texts: list[str], where: str) -> Inputs:
    """Return inputs from `x=2x3x256x256:float32`, by their places where none has a name."""
    inputs: dict[str, tuple[tuple[int, ...], str]] = {}
    for place, text in enumerate(texts):
        found = _INPUT.fullmatch(text.strip())
        if not found:
            raise InputError(f"{where}: input {shorten(text)} is not NAME=2x3x256x256:float32")
        here = f"{where}: input {shorten(text)}"
        shape = tuple(parse_count(n, here, at_most=2**40) for n in found["shape"].split("x"))
        if len(shape) > MOST_AXES:
            raise InputError(f"{here}: more than {MOST_AXES} axes")
        dtype = found["dtype"] or "float32"
        one_of("type of an input", dtype, TYPES, where)
        name = found["name"] or str(place)
        if name in inputs:
            raise InputError(f"{where}: input {shorten(name)} is given twice")
        inputs[name] = shape, dtype
    if len({name.isdigit() for name in inputs}) > 1:
        raise InputError(f"{where}: give a name to all inputs or to none")
    return inputs


def about_of(source: Source) -> dict[str, Any]:
    """Return what a `.pt2` file says of the code that it was made from; {} for nothing."""
    try:
        found = json.loads(member(source, lambda name: name.endswith(f"extra/{ABOUT}"), ABOUT))
    except (InputError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def file_of(code: Code, path: Path | None = None) -> tuple[Path, str]:
    """Return the `.pt2` file of code, made before or now, and why its batch is fixed, or ""."""
    kept, key = path or code.kept, code.key
    about: Mapping[str, Any] = {}
    for before in (code.kept, code.beside):
        said = about_of(opened(str(before))) if before.exists() else {}
        inputs = {name: [list(shape), dtype] for name, (shape, dtype) in code.inputs.items()}
        fits = said.get("key") == key and (not inputs or said.get("inputs") == inputs)
        if fits and path in (None, before):
            return before, str(said.get("static", ""))
        about = about or said
    if path is None:
        kept.parent.mkdir(parents=True, exist_ok=True)
    where = code.where if code.where in LIBRARIES else str(Path(code.where).resolve())
    request = {
        "where": where,
        "name": code.name,
        "key": key,
        "inputs": code.inputs,
        "before": about.get("inputs"),
        "path": str(kept.resolve()),
    }
    answer = _asked(request, f"{code.where}:{code.name}")
    if "refused" in answer:
        raise InputError(answer["refused"])
    return kept, answer["static"]


def _asked(request: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the answer of a process that runs the code; it ends with this one's patience."""
    import subprocess

    try:
        done = subprocess.run(  # the code is what the user named
            [sys.executable, "-P", "-m", "steptime.measure.backends.native.export"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{what}: was not exported within {LIMIT_S:g} s") from None
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        lines = done.stderr.strip().splitlines()
        said = lines[-1][:300] if lines else f"it ended with exit code {done.returncode}"
        raise InputError(f"{what}: was not exported: {said}") from None
    return dict(found)
