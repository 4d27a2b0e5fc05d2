"""The command `list`: what there is."""

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from steptime.core import registry
from steptime.core.errors import one_of, unknown
from steptime.core.progress import note
from steptime.core.question import Text, argument, flag, question
from steptime.core.table import Answer, Table, columns, picked
from steptime.core.units import QUANTITIES, seconds, shown, si
from steptime.hardware import catalog
from steptime.hardware.constants import uses

MOST_PARAMETERS = 8  # of a model in the list
Rows = list[dict[str, Any]]
_OF_DEVICE = (
    "name kind peak_flop_per_s memory_bytes memory_bytes_per_s multiprocessors "
    "cores l2_bytes process_nm clock_hz idle_w peak_w only_by_name details"
)


def _has(row: dict[str, Any], text: str) -> bool:
    """Whether a name of a row has a text in it, however it is spelled: `rtx 4090` for rtx-4090."""
    names = (text, str(next(iter(row.values()))), *row.get("aliases", ()))
    wanted, *plain = (re.sub("[-_ ]", "", name.lower()) for name in names)
    return any(wanted in name for name in plain)


def _models() -> Rows:
    from steptime.network.families import family, names

    return [
        {
            "name": name,
            "parameters": {
                key: "..." if callable(one.default) else one.default
                for key, one in family(name).parameters.items()
            },
            "source": family(name).source,
        }
        for name in names()
    ]


def _model_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a model as a row with its first parameters, which fit a line or two."""
    every = [f"{key}={shown('', value)}" for key, value in row["parameters"].items()]
    if len(every) > MOST_PARAMETERS:
        every[MOST_PARAMETERS:] = [f"... (steptime list {row['name']})"]
    return {**row, "first": ", ".join(every)}


def _devices() -> Rows:
    short: dict[str, list[str]] = {}
    for alias, name in catalog.aliases().items():
        short.setdefault(name, []).append(alias)
    return [
        picked(d, _OF_DEVICE) | {"aliases": short.get(d.name, []), "source": d.source}
        for d in catalog.devices(note)
    ]


def _device_row(row: dict[str, Any]) -> dict[str, Any]:
    peaks = row["peak_flop_per_s"]
    half = peaks.get("bfloat16", peaks.get("float16"))
    return {**row, "float32_flop_per_s": peaks.get("float32"), "half_flop_per_s": half}


def _methods() -> Rows:
    from inspect import getdoc

    from steptime.prediction import METHODS, cost_model

    return [
        {
            "name": name,
            "what": (getdoc(registry.load(target.partition(":")[0])) or "").partition("\n")[0],
            "options": {key: option.meaning for key, option in cost_model(name).options.items()},
        }
        for name, target in {**METHODS, **registry.added("methods")}.items()
    ]


def _accelerators() -> Rows:
    from steptime.energy.accelerators import designs

    return [
        {
            **picked(one, "name process_nm clock_hz area_mm2 power_w"),
            "tables": list(one.networks),
            "published": [asdict(figure) for figure in one.figures],
            "source": one.source,
        }
        for one in designs()
    ]


def _questions() -> Rows:
    from steptime.api import QUESTIONS, schema

    return [
        {
            "name": name,
            "panel": row.panel,
            "what": registry.about(row.answer),
            "takes": schema(name),
        }
        for name, row in QUESTIONS.items()
    ]


_FIGURES: dict[str, Callable[[float], str]] = {  # quantity: how a person reads it
    "op_per_s": lambda value: si(value, "op/s"),
    "op_per_j": lambda value: si(value, "op/J"),
    "op_per_s_per_mm2": lambda value: si(value, "op/s/mm2"),
    "j_per_op": lambda value: f"{value * 1e12:.4g} pJ/op",
    "examples_per_s": lambda value: f"{value:,.6g} examples/s",
    "examples_per_j": lambda value: f"{value:,.6g} examples/J",
    "latency_s": seconds,
}


def _accelerator_row(row: dict[str, Any]) -> dict[str, Any]:
    said = (f"{one['workload']} {_FIGURES[one['quantity']](one['value'])}"
            for one in row["published"])  # fmt: skip
    return {**row, "published": ", ".join(said)}


_SHOWN_OF_DEVICE = (
    "name ?kind memory_bytes=memory memory_bytes_per_s=bandwidth float32_flop_per_s=float32 "
    "half_flop_per_s=16-bit ?aliases"
)

_FULL = {"models": ("parameters",), "stacks": ("fuses", "joins", "source")}  # of CSV alone


def _stack(name: str) -> dict[str, Any]:
    """Return a stack as a row; a constant as value, spread and source, and its tables if known."""
    found = asdict(catalog.stack(name))
    shown_as = {use: {k: v if v.rows else v[:3] for k, v in found[use].items()} for use in uses()}
    return found | shown_as


Shape = Callable[[dict[str, Any]], dict[str, Any]]
TOPICS: dict[str, tuple[Callable[[], Rows], Shape, str]] = {  # rows, for people, their columns
    "models": (
        _models,
        _model_row,
        "name first=parameters",
    ),
    "devices": (_devices, _device_row, _SHOWN_OF_DEVICE),
    "links": (
        lambda: [
            picked(catalog.link(name), "name bytes_per_s latency_s source")
            for name in catalog.link_names()
        ],
        dict,
        "name bytes_per_s=rate latency_s=latency",
    ),
    "stacks": (
        lambda: [_stack(name) for name in catalog.stack_names()],
        lambda row: {**row, "what": re.split(r"[:;(]", row["source"])[0].strip()},
        "name what",
    ),
    "methods": (_methods, lambda row: {**row, "options": [*row["options"]]}, "name what options"),
    "ops": (
        lambda: [
            {"kind": kind, "gradient": row.gradient is not None, "source": row.source}
            for kind, row in registry.load("steptime.network.ops:OPS").items()
        ],
        dict,
        "kind gradient source",
    ),
    "quantities": (
        lambda: [
            {"name": k, "unit": unit, "meaning": what} for k, (unit, what) in QUANTITIES.items()
        ],
        dict,
        "name unit meaning",
    ),
    "accelerators": (
        _accelerators,
        _accelerator_row,
        "name process_nm=nm clock_hz=clock area_mm2=mm2 power_w=power tables ?published",
    ),
    "questions": (_questions, dict, "name ?panel what"),
}


@question()
def list_(
    topic: str = argument(
        "TOPIC|NAME",
        f"{', '.join(TOPICS)}; or the name of one device, link or model, or "
        "a device's FILE.toml, to see each of its numbers and their source.",
        "models",
    ),
    only: Text = argument("TEXT", "Only what has this in its name, or in a short name.", None),
    sources: bool = flag("Show where the numbers come from, too."),
) -> Answer:
    """List models, devices, links and more, or show one of them."""
    if topic not in TOPICS and only is None:
        from steptime.cli.show import show

        return show(topic, TOPICS)
    one_of("topic", topic, TOPICS)
    read, shape, said = TOPICS[topic]
    every = read()
    rows = every if only is None else [row for row in every if _has(row, only)]
    if not rows:
        singular = "quantity" if topic == "quantities" else topic.removesuffix("s")
        raise unknown(singular, only, [str(next(iter(row.values()))) for row in every])
    heads = said.split()
    if sources and "source" in rows[0] and "source" not in heads:
        heads.append("source")
    tables = []
    for title, alone in ((topic, False), ("figures of one paper, taken for no other device", True)):
        if held := [shape(row) for row in rows if row.get("only_by_name", False) == alone]:
            full = columns(*heads, *_FULL.get(topic, ()))
            tables.append(Table(columns(*heads), held, title, full=full))
    return Answer(rows, tables)
