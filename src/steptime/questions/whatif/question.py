"""The question `whatif`: the same networks on changed hardware."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

from steptime.core.errors import InputError
from steptime.core.signatures.kinds import Kind, Settings, setting_texts, text_of
from steptime.core.values import parse_models
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.hardware.defaults import common_dtype
from steptime.hardware.device import Device
from steptime.prediction import DEFAULT
from steptime.questions import kinds, networks
from steptime.questions import options as shared
from steptime.questions.node_options import count_or_none
from steptime.questions.pictures import check_picture, draw_heat_map
from steptime.questions.step_options import ExecutionKeywords, ExecutionOptions
from steptime.questions.whatif.answer import (
    ChangedDevicesAnswer,
    UpgradesAnswer,
    WhatIfAnswer,
)
from steptime.questions.whatif.changes import (
    Change,
    change_device,
    combine_changes,
    describe_idle_changes,
    read_changes,
)
from steptime.questions.whatif.compare import (
    compare_networks,
    describe_best,
    describe_caps,
    describe_fastest,
    describe_summary,
    rank_upgrades,
    try_devices,
)
from steptime.questions.whatif.networks_on_devices import (
    NetworkCase,
    assumed_fields,
    make_cases,
)

LARGEST = "largest"
MAP_AXES = (2, 3)  # numbers of ranges that a map can show


class _QuestionFields(TypedDict):
    """The fields of every answer that say the question."""

    device: str
    method: str
    dtype: str | None


def whatif(
    device: kinds.DeviceArgument,
    set_: Annotated[Settings, Kind("KEY=VALUE", names=("--set",))] | None = None,
    model: kinds.Models | None = None,
    batch: kinds.Counts | None = None,
    dtype: kinds.Dtype | None = None,
    upgrade: Annotated[Settings, Kind("KEY=VALUE,...")] | None = None,
    folder: kinds.RecordsIn | None = None,
    phase: kinds.Phase = "train",
    optimizer: kinds.Optimizer | None = None,
    length: kinds.Length | None = None,
    strict: bool = False,
    batch_axis: kinds.Axis | None = None,
    method: kinds.MethodName = DEFAULT,
    options: kinds.MethodSettings | None = None,
    out: kinds.OutFile | None = None,
    **execution: Unpack[ExecutionKeywords],
) -> WhatIfAnswer | ChangedDevicesAnswer | UpgradesAnswer:
    """Say what changed hardware would do to the same networks.

    Args:
        device: A name of steptime list devices, FILE.toml, or local (this machine, calibrated).
        set_: Change a figure of the device's file: a value, a factor (x1.5) or a range (x1..x4x2 is
            x1, x2, x4); may be repeated. peak means all peaks.
        model: Networks, with ranges (fc:layers=4..128x2). Default: ParaDnn's fully connected ones.
        batch: Examples in a step, or `largest`: the largest batch that fits.
        dtype: `float32`, `float64`, `bfloat16` or `float16`; `bfloat16-mixed` or `float16-mixed`
            with weights in `float32`. Default: `bfloat16-mixed` for sequence models
            (`float16-mixed` on a device without `bfloat16`), `float32` for others and on a CPU.
        upgrade: Try each of these changes alone, and sort them by their gain: the speed-up in
            examples a second, with a batch that grows as memory allows; may be repeated.
        folder: Take the networks of a folder of records.
        phase: `train` or `infer`.
        optimizer: `sgd`, `momentum`, `rmsprop`, `adam`, `adamw`, `lion`, `lamb`, `adafactor` or
            `muon`. `adam`, `adamw` and `lion` also with a state in 8 bits (`adam8bit`), or moved to
            the host if the device is full (`paged_adam`, `paged_adam8bit`). Default: `adam` for
            sequence models, `sgd` for others.
        length: Tokens of a sequence. Default: the model's.
        strict: Refuse a network (.onnx, .pt2, code) with an op whose FLOP are unknown. Without this
            option such an op counts by its bytes alone.
        batch_axis: For code: which axis of its first input is the batch. Default: detected.
        method: The cost model: how kernels are priced (steptime list methods).
        options: A setting of the cost model; may be repeated.
        out: Draw the map of two or three ranges as .png, .svg, .pdf or .html.
        **execution: How the step is executed: `ExecutionOptions`.

    Returns:
        A `WhatIfAnswer`; with ranges a `ChangedDevicesAnswer`, with `upgrade` an `UpgradesAnswer`.

    Raises:
        InputError: for unknown names, and options that do not go together.
    """
    picture = check_picture(out)
    method_options = ExecutionOptions.from_keywords(execution, whatif).method_options(options)
    base = catalog.device(shared.single_device(text_of(device)), method)
    axes = read_changes(setting_texts(set_))
    upgrades = _read_upgrades(upgrade)
    # Exactly one of both has to be given.
    if bool(axes) == bool(upgrades):
        raise InputError("say what changes: --set KEY=VALUE, or what might: --upgrade KEY=VALUE")
    ranges = [axis for axis in axes if len(axis) > 1]
    if picture is not None and len(ranges) not in MAP_AXES:
        raise InputError("--out draws two or three ranges: --set peak=x1..x4x2 --set ...")
    # An axis has the values of one --set; a range has several.
    combinations = combine_changes(axes)
    first_changes = upgrades or [axis[0] for axis in axes]
    change_device(base, first_changes)  # raises before networks are built
    typed_batches = text_of(batch)
    takes_largest = typed_batches == LARGEST
    batches = None if takes_largest else typed_batches
    if folder is not None:
        network_options = {"--model": model, "--batch": batches, "--length": length}
        shared.refuse(network_options, "{} does not go with --in")
        workloads = networks.of_folder(Path(folder))
    else:
        uses_default_plane = not (model or batch)  # networks with batches of their own
        workloads = networks.workloads(
            _list_models(model, strict, batch_axis),
            networks.DEFAULT_BATCHES if uses_default_plane else batches,
            dtype=dtype,
            phase=phase,
            optimizer=optimizer,
            length=count_or_none(length, "--length"),
        )
    cases = make_cases(workloads, base, method, method_options, takes_largest)
    idle_notes = describe_idle_changes(base, first_changes, cases[0].model.method)
    shared_dtype = common_dtype(case.model.workload for case in cases)
    question: _QuestionFields = {"device": base.name, "method": method, "dtype": shared_dtype}
    if upgrades:
        return _answer_upgrades(cases, upgrades, question, idle_notes)
    if not ranges:
        return _answer_change(cases, first_changes, question, idle_notes)
    answer = _answer_ranges(cases, combinations, question, idle_notes)
    if picture is not None:
        _draw_map(answer, [axis[0] for axis in ranges], base, picture)
    return answer


def _read_upgrades(texts: Settings | None) -> list[Change]:
    """Return the single changes of `--upgrade`, whose texts may hold several with commas."""
    change_texts = [change for text in setting_texts(texts) for change in text.split(",")]
    ranges = read_changes(change_texts, "--upgrade")
    return list(chain.from_iterable(ranges))


def _list_models(model: Any, strict: bool, batch_axis: int | str | None) -> list[str | Workload]:
    """Return the networks of `--model`, by default those of ParaDnn; raises `InputError`."""
    texts = parse_models(model or networks.DEFAULT_SET)
    return [shared.set_reading(text, strict, batch_axis) for text in texts]


def _answer_change(
    cases: Sequence[NetworkCase],
    changes: Sequence[Change],
    question: _QuestionFields,
    notes: Sequence[str],
) -> WhatIfAnswer:
    """Compare the networks on the device and on the changed one."""
    compared = compare_networks(cases, changes)
    capped = (row.model for row in compared.rows if row.is_capped)
    return WhatIfAnswer(
        **question,
        network_count=len(cases),
        changes=tuple(map(str, changes)),
        **assumed_fields(cases),
        summary=compared.summary,
        classes=compared.classes,
        ops=compared.ops,
        rows=compared.rows,
        headline=tuple(describe_summary(compared.summary)),
        notes=(*notes, *describe_caps(cases[0].model.device, capped)),
    )


def _answer_ranges(
    cases: Sequence[NetworkCase],
    combinations: Sequence[Sequence[Change]],
    question: _QuestionFields,
    notes: Sequence[str],
) -> ChangedDevicesAnswer:
    """Return the speed-ups of the networks on every changed device."""
    rows, capped = try_devices(cases, combinations)  # capped: the largest batch that is tried fits
    changes = combinations[0]  # all combinations change the same keys, in this order
    return ChangedDevicesAnswer(
        **question,
        network_count=len(cases),
        axes=tuple(change.key for change in changes),
        **assumed_fields(cases),
        rows=rows,
        headline=tuple(describe_fastest(rows)),
        notes=(*notes, *describe_caps(cases[0].model.device, capped)),
        _factors=tuple(change.key for change in changes if change.is_factor),
    )


def _answer_upgrades(
    cases: Sequence[NetworkCase],
    upgrades: Sequence[Change],
    question: _QuestionFields,
    notes: Sequence[str],
) -> UpgradesAnswer:
    """Return the upgrades, the one that pays most first."""
    devices = try_devices(cases, [(change,) for change in upgrades])
    rows = rank_upgrades(upgrades, devices.rows)
    return UpgradesAnswer(
        **question,
        network_count=len(cases),
        **assumed_fields(cases),
        rows=rows,
        headline=(describe_best(rows),),
        notes=(*notes, *describe_caps(cases[0].model.device, devices.capped)),
    )


def _draw_map(
    answer: ChangedDevicesAnswer, changes: Sequence[Change], device: Device, out: Path
) -> None:
    """Draw the speed-ups over two or three ranges."""
    # Two ranges have no panels.
    change_of_axis = dict(zip(("x", "y", "panel"), changes, strict=False))
    axis_titles = {
        axis: f"{change.key}, times" if change.is_factor else change.key
        for axis, change in change_of_axis.items()
    }
    cells = []
    for row in answer.rows:
        cell: dict[str, object] = {"value": row.grown_speedup, "status": "does not fit"}
        for axis, change in change_of_axis.items():
            changed_figure = row.changes[change.key]
            # A panel is a chart of its own, with this text as its title.
            cell[axis] = f"{changed_figure:g}" if axis == "panel" else changed_figure
        cells.append(cell)
    caption = [
        "Geometric mean of examples a second, with the batch that then fits, over before.",
        device.datasheet.source,
    ]
    draw_heat_map(answer.describe_question(), caption, cells, axis_titles, "speed-up", out)
