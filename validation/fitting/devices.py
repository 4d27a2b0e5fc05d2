"""The tables of docs/validation.md: devices left out, then calibrated with points of theirs."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from steptime.calibration.cases import Case, priors_of
from steptime.calibration.choice import choose_cases
from steptime.calibration.device import calibrate
from steptime.calibration.evaluate import (
    ErrorFigures,
    Scored,
    errors_of,
    score,
    score_with_constants,
)
from steptime.hardware import catalog
from steptime.hardware.constants import Constant
from steptime.prediction import cost_model
from steptime.prediction.calibrated.interval import interval_constants
from steptime.records.row import group_by
from validation.fitting import (
    aiconfigurator,
    catapult,
    cnn_gpu,
    deepbench,
    intervals,
    neusight,
    neusight_models,
    paradnn,
)
from validation.fitting.intervals import Off
from validation.fitting.stages import STAGES, by_device
from validation.refits import fit_without, stage_columns

POINTS, DRAWS, OF_TARGET = 60, 5, 150
Sets = Mapping[str, Sequence[Case]]
Constants = Mapping[str, float]


class Known(NamedTuple):
    """What was known before a calibration, its table, and which cases it took, by `id`."""

    constants: Constants
    table: Mapping[str, Any]
    taken: set[int]


@dataclass(frozen=True)
class Target:
    """Cases of some sets, what was asked for of them, and how they are read.

    `asked` is the error at least and as a goal, of devices never seen and after calibration; by
    MAPE, or by the median. `told_by` are the cases that calibrate, if not these themselves.
    """

    name: str
    cases: Callable[[Path], Iterable[Case]]
    sets: tuple[str, ...]
    asked: tuple[str, str]
    by: str = "mape"
    stack: str = catalog.DEFAULT_STACK
    told_by: str = ""


def _whole(data: Path) -> Iterable[Case]:
    for case, rival in neusight_models.with_rivals(data):
        told = {"NeuSight": rival.neusight_s, "Habitat": rival.habitat_s}
        yield replace(
            case, published_s_by_method={name: s for name, s in told.items() if s}, calibrates=False
        )


def _ops(data: Path) -> Iterable[Case]:
    yield from neusight.products(data)
    yield from neusight.vectors(data)
    yield from neusight.convolutions(data)


def _layers(data: Path) -> Iterable[Case]:
    yield from catapult.convolutions(data)
    yield from catapult.dense(data)


TARGETS = (
    Target(
        "single ops, float32", _ops, ("neusight_matmul", "neusight_vector", "neusight_conv"),
        ("15 % (10 %)", "10 % (7 %) for products"),
    ),
    Target(
        "whole transformers, float32", _whole, ("neusight_models",), ("15 % (8 %)", "9 % (7 %)"),
        told_by="single ops, float32",
    ),
    Target(
        "products, bfloat16", aiconfigurator.products, ("aiconfigurator_products",),
        ("15 % (10 %)", "-"),
    ),
    Target(
        "fully connected training", paradnn.steps, ("paradnn_pytorch",),
        ("-", "T4 8 % (6 %), A100 14 % (12 %)"),
        stack=paradnn.STACK,
    ),
    Target(
        "image networks of batch 12", cnn_gpu.steps, ("cnn_gpu",), ("22 %", "12 %"), "median",
        stack=cnn_gpu.STACK,
    ),
    Target(
        "layers in TensorFlow 1", _layers, ("catapult_conv", "catapult_dense"),
        ("30 % (20 %)", "20 % (15 %)"), "median",
        stack=catapult.STACK,
    ),
    Target(
        "products of DeepBench", deepbench.products, ("deepbench_gemm",),
        ("20 % (15 %)", "-"), "median",
    ),
    Target(
        "convolutions of DeepBench", deepbench.convolutions, ("deepbench_conv",),
        ("30 % (25 %)", "-"), "median",
    ),
    Target(
        "recurrent layers of DeepBench", deepbench.recurrent, ("deepbench_rnn",),
        ("25 % (20 %)", "-"), "median",
    ),
)  # fmt: skip


def folds(data: Path) -> dict[tuple[str, str], Constants]:
    """Return the constants of each device and stack as if the device had not been measured.

    What is fitted of a host is of the stack of its rows, and of no other.
    """
    devices = sorted({name for stage in STAGES for name in stage_columns(data, stage)})
    found: dict[tuple[str, str], Constants] = {}
    for device in devices:
        own = fit_without(device, data)
        of = catalog.device(device)
        stacks = {*(one.stack for one in STAGES.values()), *(one.stack for one in TARGETS)}
        for stack in stacks:
            shipped = {key: one.value for key, one in priors_of(of, stack).items()}
            told = {**own.get("", {}), **own.get(stack, {})}
            found[device, stack] = shipped | {key: v for key, v in told.items() if key in shipped}
    return found


def scored(
    cases: Sequence[Case], constants: Constants, table: Mapping[str, Any] | None = None
) -> list[Scored]:
    """Return what constants, and a calibration on top of them, say of the cases of one device."""
    found: dict[int, Scored] = {}
    for phase, own in group_by(cases, lambda case: case.phase).items():
        device = own[0].device.with_calibration(table or {}).in_phase(phase)
        told = device.calibration
        ends = interval_constants(told) if told.stack else {}
        at = {**constants, **told.constants, **ends}
        calibrated = [replace(case, device=device) for case in own]
        before = dict(zip(map(id, calibrated), own, strict=True))
        for one in score_with_constants(calibrated, at):
            case = before[id(one.case)]
            found[id(case)] = replace(one, case=case)
    return [found[id(case)] for case in cases]


def calibration(told_by: Sequence[Case], constants: Constants, seed: int, stack: str) -> Known:
    """Return what some of its cases tell of a device."""
    device = told_by[0].device
    priors: dict[str, Constant] = {
        name: one._replace(value=constants[name]) for name, one in priors_of(device, stack).items()
    }
    points = choose_cases(told_by, POINTS, seed)
    table = calibrate(device, points, None, priors=priors)
    return Known(constants, table, {id(case) for case in points})


def line(name: str, scores: Sequence[Scored], more: Sequence[str] = ()) -> str:
    """Return errors as a row of Markdown."""
    one: ErrorFigures = errors_of(scores)
    cells = [
        name, f"{one.cases:,}", f"{one.mape:.1%}", f"{one.median:.1%}", f"{one.p90:.0%}",
        f"{one.bias:+.2f}", f"{one.factor:.2f}",
        "-" if one.coverage is None else f"{one.coverage:.0%}",
        "-" if one.width is None else f"{one.width:.0%}", *more,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def heading(first: str, more: Sequence[str] = ()) -> str:
    """Return the head of a table of errors."""
    cells = (first, "cases", "MAPE", "median", "p90", "bias", "factor", "coverage", "width", *more)
    return f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}"


def say(what: str) -> None:
    """Say on stderr how far it is."""
    print(f"{process_time():6.0f} s  {what}", file=sys.stderr, flush=True)


def fit_intervals(data: Path) -> dict[str, dict[str, Constant]]:
    """Return the widths of intervals on devices never seen, from devices left out.

    They are those of the priors, under "", and of stacks that have their own.
    """
    offs = _offs(*read(data))
    return {name: intervals.constants_of(offs, stack=name) for name in ("", *intervals.UNTOLD)}


def _widths(offs: Sequence[Off], device: str, stack: str) -> Constants:
    """Return the widths that other devices tell."""
    found = intervals.constants_of(offs, device)
    if stack in intervals.UNTOLD:
        found |= intervals.constants_of(offs, device, stack)
    return {name: one.value for name, one in found.items()}


def read(data: Path) -> tuple[dict[str, Sets], dict[tuple[str, str], Constants]]:
    """Return the cases that are checked, and the constants of each device without itself."""
    checked: dict[str, Sets] = {}
    for one in TARGETS:
        found = by_device(one.cases(data), OF_TARGET)
        checked[one.name] = {
            device: [replace(case, stack=one.stack) for case in cases]
            for device, cases in found.items()
        }
        say(f"read {one.name}")
    constants = folds(data)
    say("devices left out")
    return checked, _known(constants, checked)


def page(data: Path) -> str:
    """Return the tables of devices left out, then calibrated."""
    checked, known = read(data)
    offs = _offs(checked, known)
    new: dict[str, dict[str, list[Scored]]] = defaultdict(dict)
    after: dict[str, dict[str, list[list[Scored]]]] = defaultdict(dict)
    known_by: dict[int, list[Known]] = {}
    for one in TARGETS:
        for device, cases in checked[one.name].items():
            at = {**known[device, one.stack], **_widths(offs, device, one.stack)}
            new[one.name][device] = scored(cases, at)
            told = checked[one.told_by or one.name].get(device)
            if told and len(told) >= POINTS * (2 if told is cases else 1):
                made = known_by.setdefault(id(told), [])
                for seed in range(len(made), DRAWS):
                    made.append(calibration(told, at, seed, one.stack))
                after[one.name][device] = [
                    scored([one for one in cases if id(one) not in found.taken], *found[:2])
                    for found in made
                ]
        say(f"predicted {one.name}")
    return "\n".join(tables(new, after, checked))


def _known(
    constants: Mapping[tuple[str, str], Constants], checked: Mapping[str, Sets]
) -> dict[tuple[str, str], Constants]:
    """Return the constants of every device that is checked; those of the file where not fitted."""
    found = dict(constants)
    for one in TARGETS:
        for device in checked[one.name]:
            of = priors_of(catalog.device(device), one.stack)
            file = {key: c.value for key, c in of.items()}
            found.setdefault((device, one.stack), file)
    return found


def _offs(checked: Mapping[str, Sets], known: Mapping[tuple[str, str], Constants]) -> list[Off]:
    return [
        off
        for one in TARGETS
        for device, cases in checked[one.name].items()
        for off in intervals.off_of(cases, known[device, one.stack], one.sets)
    ]


def tables(
    new: Mapping[str, Mapping[str, list[Scored]]],
    after: Mapping[str, Mapping[str, list[list[Scored]]]],
    checked: Mapping[str, Sets],
) -> Iterator[str]:
    """Yield the lines of the tables in Markdown."""
    yield "### Devices outside of the fit\n"
    yield heading("cases", ("accepted (goal)",))
    for one in TARGETS:
        every = [s for some in new[one.name].values() for s in some]
        yield line(one.name, every, (one.asked[0],))
    yield f"\n### With {POINTS} points of the device, mean of {DRAWS} draws\n"
    yield heading("cases", ("range over draws", "accepted (goal)"))
    for one in TARGETS:
        if not after[one.name]:
            continue
        draws = [[s for d in after[one.name].values() for s in d[i]] for i in range(DRAWS)]
        each = [getattr(errors_of(some), one.by) for some in draws]
        spread = f"{min(each):.1%} .. {max(each):.1%}"
        yield line(one.name, [s for some in draws for s in some], (spread, one.asked[1]))
    for one in TARGETS:
        yield f"\n### {one.name}, device by device\n"
        yield heading("device, kind")
        for device, scores in sorted(new[one.name].items()):
            kinds = sorted({s.case.kind for s in scores})
            for kind in kinds:
                some = [s for s in scores if s.case.kind == kind]
                yield line(f"{device}, {kind}", some)
            if device in after[one.name]:
                each = [getattr(errors_of(some), one.by) for some in after[one.name][device]]
                told = f"{device}, calibrated ({min(each):.1%} .. {max(each):.1%})"
                yield line(told, [s for some in after[one.name][device] for s in some])
    yield "\n### Other methods on the same cases\n"
    yield heading("method")
    for one in TARGETS:
        cases = [case for some in checked[one.name].values() for case in some]
        yield line(f"analytic, {one.name}", score(cases, cost_model("analytic")))
        for name in sorted({name for case in cases for name in case.published_s_by_method}):
            shared = [case for case in cases if name in case.published_s_by_method]
            rival = [Scored(case, case.published_s_by_method[name], None, None) for case in shared]
            yield line(f"{name}, {one.name}", rival)
            same = {id(case) for case in shared}
            ours = [s for d in new[one.name].values() for s in d if id(s.case) in same]
            yield line(f"calibrated, never seen, cases of {name}", ours)
    every = [s for some in new.values() for d in some.values() for s in d]
    devices = defaultdict(list)
    for s in every:
        devices[s.case.device.name].append(s)
    yield "\n### Coverage of 80 % intervals on devices left out\n"
    yield heading("device")
    for device, some in sorted(devices.items()):
        yield line(device, some)
    yield line("together", every)
    mean = np.mean([errors_of(some).coverage for some in devices.values()])
    yield f"\nMean coverage of the devices: {mean:.0%}."
