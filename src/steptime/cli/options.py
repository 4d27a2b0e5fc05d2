"""The options that several commands share, and how their texts become values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from steptime.core.errors import InputError, shorten
from steptime.core.workload import Workload

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A family with its hyperparameters (fc:layers=4,nodes=1024), a named network "
        "(resnet50), a ParaDnn label, or a .toml or .json file.",
    ),
]
Batch = Annotated[
    str | None,
    typer.Option("--batch", metavar="N", help="Examples a step. Default: 64, transformers 1."),
]
Phase = Annotated[str, typer.Option("--phase", help="train or infer.")]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="float32, float64, bfloat16, float16, or with float32 weights bfloat16-mixed, "
        "float16-mixed.",
    ),
]
Optimizer = Annotated[str, typer.Option("--optimizer", help="sgd, momentum, rmsprop or adam.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
ByOp = Annotated[bool, typer.Option("--by-op", help="Show every op.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the method; repeatable."),
]
Folder = Annotated[Path, typer.Option("--in", metavar="DIR", help="Folder of records.")]


def workload_of(model: str, batch: str | None, dtype: str, phase: str, optimizer: str) -> Workload:
    """Give the workload that the shared options name; raises `InputError`."""
    from steptime.build import make_workload, read_model

    return make_workload(read_model(model), batch, dtype, phase, optimizer)


def pairs(texts: Iterable[str] | None, what: str) -> dict[str, str]:
    """Give `NAME=VALUE` texts as a dict; raises `InputError` for other forms and for repeats."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise InputError(f"{what} {shorten(text)} is not of the form name=value")
        if name in found:
            raise InputError(f"{what} '{name}' is given twice")
        found[name] = value
    return found
