"""The command `whatif`: the same networks on changed hardware."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from steptime.cli import grid, options
from steptime.cli.command import command, note
from steptime.cli.options import Text, argument, option
from steptime.core.errors import InputError, shorten
from steptime.core.ranges import numbers
from steptime.core.table import Answer, Table, columns
from steptime.core.units import counted

METHOD = "The cost model. Default: calibrated, analytic on kinds of device that nobody measured."
DTYPE = "As predict. Default: float32, or what a device without its peak is fastest in."
LARGEST = "largest"


@command(tabular=True, long="predicting every network")
def whatif(
    device: Annotated[str, argument("DEVICE", f"{options.DEVICE}.")],
    set_: list[str] | None = option(
        "--set KEY=VALUE",
        "Change a figure of its file: a value, a factor (x1.5) or a range (x1..x4x2); repeatable. "
        "peak means all peaks.",
        None,
    ),
    upgrade: list[str] | None = option(
        "--upgrade KEY=VALUE,...", "Say which of these changes pays most; repeatable.", None
    ),
    cost: list[str] | None = option(
        "--cost KEY=PRICE", "With --upgrade: what a change costs; repeatable.", None
    ),
    watts: list[str] | None = option(
        "--watts KEY=W", "With --upgrade: what a change draws; repeatable.", None
    ),
    model: Text = option(
        "--model --grid MODEL",
        "Networks, with ranges (fc:layers=4..128x2). Default: ParaDnn's fully connected ones.",
        None,
    ),
    folder: Path | None = option("--in DIR", "The networks of a folder of records.", None),
    batch: Text = option("--batch N,...", "Examples a step, or largest: all that fit.", None),
    phase: options.Phase = "train",
    dtype: Text = option("--dtype", DTYPE, None),
    optimizer: options.Optimizer = "sgd",
    method: Text = option("--method", METHOD, None),
    option_: options.Settings = None,
) -> Answer:
    """Say what changed hardware would do to the same networks."""
    from steptime import catalog
    from steptime.diagnosis import changes, networks
    from steptime.diagnosis.bound import method_for
    from steptime.diagnosis.whatif import cases, what_if

    found = catalog.device(options.one_device(device))
    told = {"method": method or method_for(found), "dtype": dtype or networks.dtype_for(found)}
    axes = changes.read_changes(set_ or ())
    single = changes.read_changes(
        (one for text in upgrade or () for one in text.split(",")), "--upgrade"
    )
    if bool(axes) == bool(single):
        raise InputError("say what changes: --set KEY=VALUE, or what might: --upgrade KEY=VALUE")
    if not single:
        options.refuse({"--cost": cost, "--watts": watts}, "{} goes with --upgrade")
    of_range = [axis for axis in axes if len(axis) > 1]
    combinations = changes.combined(axes)
    said = {"cost": _numbers(cost, "--cost", single), "watts": _numbers(watts, "--watts", single)}
    largest = batch == LARGEST
    if folder is not None:
        options.refuse({"--model": model}, "{} does not go with --in")
        asked = _of_folder(folder)
    else:
        batches = None if batch is None or largest else numbers(batch, "--batch")
        if model is None and batch is None:
            batches = list(networks.DEFAULT_BATCHES)
        texts = [one for text in grid.split_models(model or networks.DEFAULT_SET)
                 for one in networks.networks(text)]  # fmt: skip
        asked = networks.workloads(texts, batches, told["dtype"], phase, optimizer)
    every = cases(asked, found, told["method"], options.pairs(option_, "option"), largest)
    price = every[0].model.method
    notes = [line for axis in (*axes, *single) for line in changes.remarks(found, axis[:1], price)]
    document: dict[str, Any] = {"device": found.name, **told, "networks": len(every)}
    title = f"{found.name}, {counted(len(every), 'network')}, {told['dtype']} ({told['method']})"
    if single:
        return _upgrades(every, single, said, document, title, notes)
    if of_range:
        return _swept(every, axes, combinations, document, title, notes)
    made = what_if(every, [axis[0] for axis in axes])
    return Answer({**document, **asdict(made), "notes": notes}, made.tables(), (*made.says, *notes))


def _of_folder(folder: Path) -> list[Any]:
    from steptime import store
    from steptime.diagnosis.networks import of_folder

    return of_folder(store.load(folder, note))


def _numbers(texts: list[str] | None, where: str, changes: list[Any]) -> dict[str, float]:
    """Return numbers by the key of a change; raises `InputError` for a key that is not changed."""
    from steptime.core.errors import unknown

    known = [axis[0].key for axis in changes]
    found = {}
    for key, text in options.pairs(texts, where).items():
        if key not in known:
            raise unknown("upgrade", key, known, where)
        try:
            found[key] = float(text)
        except ValueError:
            found[key] = 0.0
        if not 0 < found[key] < float("inf"):
            raise InputError(f"{where} {key}: must be a number above 0, not {shorten(text)}")
    return found


def _upgrades(
    every: Any, single: Any, said: Any, document: dict[str, Any], title: str, notes: list[str]
) -> Answer:
    from steptime.diagnosis.upgrade import best_of, upgrades

    changes = [change for axis in single for change in axis]
    rows = upgrades(every, changes, **said)
    spent = [f"{name}, gain_per_{name}".split(", ") for name, given in said.items() if given]
    heads = columns(
        "upgrade", "speedup=speed-up", "grown_speedup=with the batch that fits",
        "newly_possible=newly possible", *(f"{key}:.4g={name}" for one in spent
        for key, name in zip(one, (one[0], f"gain for each of {one[0]}"), strict=True)),
    )  # fmt: skip
    says = best_of(rows)
    table = Table(heads, rows, f"{title}: upgrades, what pays most first")
    return Answer({**document, "says": [says], "rows": rows, "notes": notes}, [table],
                  (says, *notes))  # fmt: skip


def _swept(
    every: Any, axes: Any, combinations: Any, document: dict[str, Any], title: str, notes: list[str]
) -> Answer:
    from steptime.diagnosis.upgrade import sweep

    rows = sweep(every, combinations)
    keys = [axis[0].key for axis in axes]
    heads = columns(
        *(f"{key}:g={key}{' x' if axis[0].times else ''}"
          for key, axis in zip(keys, axes, strict=True)),
        "speedup=speed-up", "grown_speedup=with the batch that fits",
        "newly_possible=newly possible",
    )  # fmt: skip
    table = Table(heads, rows, f"{title}: steps on changed devices", most=40)
    return Answer({**document, "axes": keys, "rows": rows, "notes": notes}, [table], notes)
