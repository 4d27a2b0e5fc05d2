"""The command `whatif`: the same networks on changed hardware."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from steptime.cli.picture import drawn, picture
from steptime.core.errors import InputError
from steptime.core.progress import note
from steptime.core.question import File, Text, argument, optional, question
from steptime.core.table import Answer, Table, columns
from steptime.core.units import counted
from steptime.core.values import parse_models
from steptime.hardware import catalog
from steptime.prediction import DEFAULT
from steptime.prediction.assumed import assumed_line, assumed_text
from steptime.questions import changes, networks, options
from steptime.questions.step_options import ExecutionOptions
from steptime.questions.whatif import (
    WhatIf,
    assumed_settings,
    best_of,
    cases,
    sweep,
    upgrades,
    what_if,
)
from steptime.reports.charts.heatmap import grid as heatmap

DTYPE = "As predict. Default: float32, or what a device without its peak is fastest in."
LARGEST = "largest"


@question(long="predicting every network")
def whatif(
    device: Annotated[str, argument("DEVICE", f"{options.DEVICE}.")],
    set_: list[str] | None = optional(
        "KEY=VALUE",
        "Change a figure of its file: a value, a factor (x1.5) or a range (x1..x4x2); repeatable. "
        "peak means all peaks.",
    ),
    model: Text = optional(
        "--model --grid MODEL",
        "Networks, with ranges (fc:layers=4..128x2). Default: ParaDnn's fully connected ones.",
    ),
    batch: Text = optional("N,...", "Batch size, or largest: all that fit."),
    dtype: Text = optional("NAME", DTYPE),
    upgrade: list[str] | None = optional(
        "KEY=VALUE,...", "Say which of these changes pays most; repeatable."
    ),
    folder: File = optional("--in DIR", "The networks of a folder of records."),
    phase: options.Phase = "train",
    optimizer: options.Optimizer = "sgd",
    length: options.Length = None,
    method: options.Method = DEFAULT,
    option_: options.Settings = None,
    out: File = picture("Draw the map of two or three ranges"),
    *,
    execution: ExecutionOptions,
) -> WhatIf | Answer:
    """Say what changed hardware would do to the same networks."""
    found = catalog.device(options.one_device(device), method)
    told: dict[str, Any] = {"method": method, "dtype": networks.dtype_for(found, dtype)}
    axes = changes.read_changes(set_ or ())
    texts = (one for text in upgrade or () for one in text.split(","))
    single = [one for axis in changes.read_changes(texts, "--upgrade") for one in axis]
    if bool(axes) == bool(single):
        raise InputError("say what changes: --set KEY=VALUE, or what might: --upgrade KEY=VALUE")
    of_range = sum(len(axis) > 1 for axis in axes)
    if out is not None and of_range not in (2, 3):
        raise InputError("--out draws two or three ranges: --set peak=x1..x4x2 --set ...")
    combinations = changes.combined(axes)
    first = [axis[0] for axis in axes]
    changes.changed(found, first or single)  # raises before networks are built
    size = None if batch == LARGEST else batch
    if folder is not None:
        options.refuse(
            {"--model": model, "--batch": size, "--length": length}, "{} does not go with --in"
        )
        asked = networks.of_folder(folder)
    else:
        named = parse_models(model or networks.DEFAULT_SET)
        asked = networks.workloads(named, size if model or batch else networks.DEFAULT_BATCHES,
                       (told["dtype"], phase, optimizer), length)  # fmt: skip
    every = cases(asked, found, method, execution.method_options(option_), batch == LARGEST)
    notes = changes.remarks(found, first or single, every[0].model.method)
    if not (single or of_range):
        return replace(what_if(every, first), networks=len(every), notes=notes, **told)
    document: dict[str, Any] = {"device": found.name, **told, "networks": len(every)}
    title = f"{found.name}, {counted(len(every), 'network')}, {told['dtype']} ({told['method']})"
    speeds = (
        "speedup=speed-up",
        "grown_speedup=with the batch that fits",
        "newly_possible=newly fit",
    )
    if single:
        rows, heads = upgrades(every, single), ["upgrade", *speeds]
        document |= {"says": [best_of(rows)]}
    else:
        rows = sweep(every, combinations)
        heads = [*(f"{one.key}:g={one.key}{' x' if one.times else ''}" for one in first), *speeds]
        document |= {"axes": [one.key for one in first]}
    if out is not None:
        _draw(rows, [axis[0] for axis in axes if len(axis) > 1], title, found.source, out)
    assumed = assumed_settings(every)
    below = assumed_line([(found.name, assumed_text(assumed))])
    table = Table(columns(*heads), rows, title, below, most=40)
    document |= {"assumed": assumed, "rows": rows, "notes": notes}
    return Answer(document, [table], (*document.get("says", ()), *notes))


def _draw(rows: list[Any], axes: list[Any], title: str, source: str, out: Path) -> None:
    places = dict(zip(("x", "y", "panel"), axes, strict=False))
    names = {at: f"{one.key}{', times' if one.times else ''}" for at, one in places.items()}
    cells = []
    for row in rows:
        cell = {at: row[one.key] for at, one in places.items()}
        cell |= {"panel": f"{cell['panel']:g}"} if "panel" in cell else {}
        cells.append(cell | {"value": row["grown_speedup"], "status": "does not fit"})
    caption = ["Geometric mean of examples a second, with the batch that then fits, over before."]
    note(drawn(heatmap(title, [*caption, source], cells, value="speed-up", **names), out))
