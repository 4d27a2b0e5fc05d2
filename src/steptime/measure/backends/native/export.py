"""A module as a `.pt2` file: run as a process of its own, which answers with one line of JSON.

It reads a request from its standard input: the code, and where the file goes. The user's file is
code and is run here. Nothing is computed: weights and inputs lie on the meta device.
"""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steptime.core.errors import InputError
from steptime.core.files import replacing
from steptime.formats.code import ABOUT
from steptime.measure.backends.native.module import module_of, on_meta, specs_of, tensors_of


def export(
    module: nn.Module, inputs: Mapping[str, Any], path: Path, about: Mapping[str, Any]
) -> str:
    """Write a module as a `.pt2` file, its batch left open where that works; return why not, or "".

    `inputs` are shape and type by name (or place, where the name is not one of Python's); their
    first size is the batch.
    """
    if not inputs or not all(shape for shape, _ in inputs.values()):
        raise InputError("an input with a batch as its first size is needed")
    batch = next(iter(inputs.values()))[0][0]
    wide = {  # sizes of 0 and 1 are never left open
        name: ((max(2, batch), *shape[1:]) if shape[0] == batch else tuple(shape), dtype)
        for name, (shape, dtype) in inputs.items()
    }
    network = on_meta(module)
    torch.backends.mha.set_fastpath_enabled(False)  # a fused encoder hides its ops
    why = ""
    try:
        program = _exported(network, wide, max(2, batch))
    except Exception as error:  # noqa: BLE001  # whatever stands in the way of an open batch
        why = " ".join(str(error).split())[:300] or type(error).__name__
        program = _exported(network, inputs, None)
    first: dict[int, str] = {}
    weights = module.named_parameters(remove_duplicate=False)
    names = {name: first.setdefault(id(one), name) for name, one in weights}
    tied = {name: other for name, other in names.items() if other != name}
    said = {ABOUT: json.dumps({**about, "inputs": inputs, "tied": tied, "static": why})}
    with replacing(path) as part:
        new = part.with_name(f"{part.name}.pt2")  # torch asks for this ending
        try:
            torch.export.save(program, new, extra_files=said)
            new.replace(part)
        finally:
            new.unlink(missing_ok=True)
    return why


def _exported(network: nn.Module, inputs: Mapping[str, Any], batch: int | None) -> Any:
    by_place, by_name = tensors_of(inputs)
    dynamic: Any = None
    if batch:
        dim = torch.export.Dim("batch")
        named = {n: {0: dim} if one.shape[0] == batch else None for n, one in by_name.items()}
        placed = tuple({0: dim} if one.shape[0] == batch else None for one in by_place)
        dynamic = named or placed
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(
            network, tuple(by_place), by_name, dynamic_shapes=dynamic, strict=False
        )


def _lacking(module: nn.Module, inputs: Mapping[str, Any]) -> str:
    """Return that shapes lack a batch, where the network takes its inputs with one, else ""."""
    wide = {name: ((2, *shape), dtype) for name, (shape, dtype) in specs_of(inputs).items()}
    try:
        _exported(on_meta(module), wide, None)
    except Exception:  # noqa: BLE001  # then it is something else
        return ""
    sizes = ((name, "x".join(map(str, shape))) for name, (shape, _) in wide.items())
    given = ",".join(size if name.isdigit() else f"{name}={size}" for name, size in sizes)
    return f"its inputs lack a batch, which is their first size: {given}"


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    where, name = request["where"], request["name"]
    module, known = module_of(where, name, inputs=request["inputs"])
    inputs = request["inputs"] or known or request.get("before")
    if not inputs:
        raise InputError(
            f"{where}:{name}: what it is given is unknown; say it after a colon, "
            f"{where}:{name}:NAME=2x3x256x256:float32, or to convert: --input NAME=..."
        )
    about = {key: request[key] for key in ("where", "name", "key")}
    try:
        why = export(module, specs_of(inputs), Path(request["path"]), about)
    except InputError:
        raise
    except Exception as error:
        said = _lacking(module, inputs) or f"{type(error).__name__}: {error}"
        raise InputError(f"{where}:{name}: {' '.join(said.split())[:300]}") from error
    return {"path": request["path"], "static": why}


def main() -> None:
    """Answer the request of the standard input; what the code prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.closing(answers):
        try:
            answer = _answer(json.load(sys.stdin))
        except InputError as error:
            answer = {"refused": str(error)}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
