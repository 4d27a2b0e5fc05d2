"""The options that several commands share, and how their texts become values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.ranges import MOST_VALUES, expand_range, is_range
from steptime.core.workload import Plan, Workload
from steptime.models.family import whole_number

if TYPE_CHECKING:
    from steptime.measure.contract import Options

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A family with its hyperparameters (fc:layers=4,nodes=1024), a named network "
        "(resnet50), a ParaDnn label, or a .toml, .json or .prototxt file.",
    ),
]
Models = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A family with its hyperparameters (fc:layers=4,nodes=1024), a named network "
        "(resnet50), a ParaDnn label, or a .toml, .json or .prototxt file; with --grid several.",
    ),
]
Batch = Annotated[
    str | None,
    typer.Option(
        "--batch", metavar="N", help="Examples a step. Default: 64, transformers 1, a file's own."
    ),
]
Batches = Annotated[
    str | None,
    typer.Option(
        "--batch",
        metavar="N",
        help="Examples a step. Default: 64, transformers 1, a file's own; with --grid several.",
    ),
]
AllowUnknown = Annotated[
    bool,
    typer.Option(
        "--allow-unknown",
        help="Let layers of unknown type in a network's file pass their input on.",
    ),
]
Device = Annotated[
    str, typer.Option("--device", help="A device (steptime list devices), FILE.toml or local.")
]
Method = Annotated[str, typer.Option("--method", help="The cost model (steptime list methods).")]
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
Replicas = Annotated[
    str | None,
    typer.Option(
        "--replicas",
        metavar="N",
        help="Train data-parallel in N processes, one a device; --batch is of each. Default: what "
        "torchrun or srun started, else 1.",
    ),
]
DEFAULT_STRATEGY = "allreduce"
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="Of replicas: allreduce (default), independent, sharded or parameter-server.",
    ),
]
NoOverlap = Annotated[
    bool, typer.Option("--no-overlap", help="Communicate after the backward pass, not during it.")
]
Folder = Annotated[Path, typer.Option("--in", metavar="DIR", help="Folder of records.")]


def workload_of(
    model: str,
    batch: str | None,
    dtype: str,
    phase: str,
    optimizer: str,
    allow_unknown: bool = False,
) -> Workload:
    """Give the workload that the shared options name; raises `InputError`."""
    from steptime.build import make_workload, read_model

    return make_workload(read_model(model, allow_unknown), batch, dtype, phase, optimizer)


def over_replicas(
    workload: Workload,
    told: Options,
    replicas: str | None,
    strategy: str | None,
    no_overlap: bool,
) -> tuple[Workload, Options]:
    """Give the workload on its replicas, and `told`, what the backend is told, with their strategy.

    Raises `InputError` for an unknown strategy, and a number that is not the launcher's.
    """
    from steptime.measure import ranks
    from steptime.measure.contract import STRATEGIES, meaningful

    if strategy is not None and strategy not in STRATEGIES:
        raise unknown("strategy", strategy, STRATEGIES, "--strategy")
    size = ranks.here().size
    count = size if replicas is None else whole_number(replicas, "--replicas")
    if size not in {1, count}:
        raise InputError(f"--replicas {count}: the launcher started {size} processes; leave it out")
    if count == 1 and (strategy or no_overlap):
        name = "--strategy" if strategy else "--no-overlap"
        raise InputError(f"{name} goes with --replicas of 2 or more")
    told = replace(told, strategy=strategy or DEFAULT_STRATEGY, overlap=not no_overlap)
    return replace(workload, plan=Plan(data=count)), meaningful(told, count)


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


def numbers(text: str, where: str) -> list[int]:
    """Give whole numbers from 1 on, as lists and ranges say them: `1,2,4`, `1..8`, `1..128 x2`.

    `1,2,4,...,128` goes on as it began, by adding or by multiplying. Raises `InputError`, naming
    `where`, for what is none and for a number that is given twice.
    """
    found: list[int] = []
    pieces = [piece.strip() for piece in text.split(",")]
    for i, piece in enumerate(pieces):
        if piece == "...":
            last = whole_number(pieces[i + 1] if i + 1 < len(pieces) else "", where)
            found.extend(_going_on(found, last, where))
        elif is_range(piece):
            found.extend(expand_range(piece, where))
        else:
            found.append(whole_number(piece, where))
        if len(found) > MOST_VALUES:
            raise InputError(f"{where}: more than {MOST_VALUES} values")
    if min(found) < 1:
        raise InputError(f"{where}: must be at least 1, not {min(found)}")
    if len(set(found)) < len(found):
        twice = next(n for i, n in enumerate(found) if n in found[:i])
        raise InputError(f"{where}: {twice} is given twice")
    return found


def _going_on(begun: list[int], last: int, where: str) -> list[int]:
    """Give the numbers between `begun` and `last`: `1, 2, 4` goes on as 8, 16, ..."""
    if len(begun) < 2 or begun[-1] <= begun[-2]:
        raise InputError(f"{where}: '...' needs two growing numbers before it and one after")
    before, latest = begun[-2:]
    factor = latest // before if len(begun) > 2 or latest != 2 * before else 2
    multiplies = latest == before * factor and (len(begun) == 2 or begun[-3] * factor == before)
    step = latest - before
    found = []
    while (latest := latest * factor if multiplies else latest + step) < last:
        found.append(latest)
        if len(found) > MOST_VALUES:
            raise InputError(f"{where}: more than {MOST_VALUES} values")
    if latest != last:
        raise InputError(f"{where}: '...' does not lead to {last}")
    return found
