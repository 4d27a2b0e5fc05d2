"""The command `plan`: a training of a language model, split over many devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steptime.cli import options
from steptime.cli.command import command
from steptime.cli.options import Text, option
from steptime.core.errors import InputError, shorten
from steptime.core.ranges import whole_number
from steptime.core.table import Answer, Table, columns, facts
from steptime.core.units import seconds, shown, size
from steptime.predict import DEFAULT

PER_NODE = 8


@command(long="pricing the layers of the network")
def plan(
    model: options.Model,
    device: options.Device,
    per_node: str = option("--per-node N", "Devices of a node.", str(PER_NODE)),
    inside: Text = option("--inside LINK", "What joins the devices of a node.", None),
    link: Text = option("--link LINK", "What joins nodes: the link of a device.", None),
    links_per_node: Text = option(
        "--links-per-node N", "Links of a node. Default: one a device.", None
    ),
    tensor: str = option("--tensor T", "Devices that share each product.", "1"),
    pipeline: str = option("--pipeline P", "Stages of the pipeline.", "1"),
    virtual: str = option("--virtual V", "Stages of a device, interleaved.", "1"),
    data: str = option("--data N", "Replicas.", "1"),
    context: str = option("--context C", "Devices that share a sequence.", "1"),
    expert: str = option("--expert E", "Devices that share the experts.", "1"),
    micro_batch: str = option("--micro-batch B", "Sequences that pass at once.", "1"),
    batch: Text = option(
        "--batch B", "Sequences of a step, of all replicas. Default: a micro-batch each.", None
    ),
    length: Text = option("--length S", "Tokens of a sequence. Default: the model's.", None),
    recompute: str = option("--recompute", "none, selective (attention) or full.", "none"),
    zero: str = option(
        "--zero", "Shared out over the replicas: 1 states, 2 gradients too, 3 weights too.", "0"
    ),
    sequence_parallel: bool = option(
        "--sequence-parallel",
        "Tensor-parallel devices share what lies between products too.",
        False,
    ),
    schedule: str = option("--schedule", "1f1b, gpipe, interleaved or zero-bubble.", "1f1b"),
    offload: str = option("--offload", "none or optimizer: its states lie on the host.", "none"),
    order: Text = option(
        "--order", "Of groups, from the inside out. Default: tensor-context-data-pipeline.", None
    ),
    dtype: str = option(
        "--dtype", "bfloat16, float16, or float8 for the layers' products.", "bfloat16"
    ),
    tokens: Text = option("--tokens N", "Tokens of a training: shows hours and cost.", None),
    prices: Path | None = option(
        "--prices FILE", "Prices of devices. Default: the shipped ones, of their dates.", None
    ),
    stack: Text = option(
        "--stack NAME",
        "The software (steptime list stacks). Default: megatron-2025, with --zero 3 torch-eager.",
        None,
    ),
    method: options.Method = DEFAULT,
    option_: options.Settings = None,
) -> Answer:
    """Predict a language model trained on many devices.

    Time, memory by stage, what waits for which link, and cost.
    """
    from steptime.core.workload import Plan
    from steptime.plans.answer import answered
    from steptime.plans.request import Site, words_of

    def count(text: str | None, name: str) -> Any:
        return None if text is None else whole_number(text, name)

    split = Plan(
        data=count(data, "--data"),
        tensor=count(tensor, "--tensor"),
        pipeline=count(pipeline, "--pipeline"),
        expert=count(expert, "--expert"),
        sequence=sequence_parallel,
        context=count(context, "--context"),
        schedule=words_of("schedule", schedule),
        zero=whole_number(zero, "--zero", 0),
        recompute=words_of("recompute", recompute),
        offload=offload,
        virtual=count(virtual, "--virtual"),
    )
    told = answered(
        model,
        Site(
            options.one_device(device),
            count(per_node, "--per-node"),
            inside,
            link,
            count(links_per_node, "--links-per-node"),
        ),
        split,
        count(micro_batch, "--micro-batch"),
        count(batch, "--batch"),
        count(length, "--length"),
        dtype,
        stack,
        method,
        options.pairs(option_, "option"),
        order,
        prices,
        None if tokens is None else _tokens(tokens),
    )
    return Answer(told, tables(told))


def _tokens(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 1 <= found <= 1e18:
        raise InputError(f"--tokens: a number from 1 to 1e18, not {shorten(text)}")
    return found


def tables(told: dict[str, Any]) -> list[Table]:
    """Return an answer for people: the step, the memory, and what waits."""
    split = told["plan"]
    words = " x ".join(
        f"{name} {split[name]}"
        for name in ("tensor", "context", "data", "pipeline", "expert", "virtual")
        if split.get(name, 1) > 1
    )
    title = (
        f"{told['model']} on {told['devices']} {told['device']}, {words or 'one device'}, "
        f"batch {told['batch']} of {told['length']} tokens, {told['dtype']} ({told['method']})"
    )
    parts, mfu, memory = told["parts"], told["mfu"], told["memory"]
    rows = [
        ("step", f"{seconds(told['step_s'])}, {seconds(told['low'])} to {seconds(told['high'])}"),
        ("  computing", seconds(parts["compute_s"])),
    ]
    for key, word in (
        ("recompute_s", "computing again"), ("exposed_s", "waiting for exchanges"),
        ("host_s", "waiting for the host"), ("bubble_s", "pipeline bubble"), ("update_s", "update"),
        ("rest_s", "outside of the layers"),
    ):  # fmt: skip
        if parts[key] > 0:
            share = f" ({told['bubble']:.1%} of the pipeline)" if key == "bubble_s" else ""
            rows.append((f"  {word}", seconds(parts[key]) + share))
    speed = f"{told['tokens_per_s']:,.0f}/s, {told['tokens_per_s_per_device']:,.0f}/s a device"
    shares = f"attention in full, {mfu['half']:.1%} with half of it, {mfu['6N']:.1%} as 6N"
    rows += [
        ("tokens", speed),
        ("MFU", f"{mfu['full']:.1%} with {shares}"),
        ("memory", _of_memory(memory)),
    ]
    near = told["nearest_that_fits"]
    if not told["fits"]:
        change = "no single or double change of this plan fits"
        if near is not None:
            fits = f"{size(near['total_bytes'])}, {seconds(near['step_s'])}"
            change = f"nearest that fits: {near['change']} ({fits})"
        rows.append(("", change))
    rows += _of_money(told)
    tables_ = [facts(title, "one step", rows)]
    waits = sorted(told["exposed_communication"], key=lambda one: -one["exposed_s"])
    heads = columns(
        "group=exchange", "collective=", "level=over", "total_s=takes", "exposed_s=waited for"
    )
    if waits:
        tables_.append(Table(heads, waits, "Exchanges of a device", most=8))
    return tables_


def _of_memory(memory: dict[str, Any]) -> str:
    parts = sorted(memory["by_part"].items(), key=lambda item: -item[1])[:4]
    most = ", ".join(f"{name.removesuffix('_bytes')} {size(value)}" for name, value in parts)
    stage = f"stage {memory['fullest_stage']} of {len(memory['by_stage'])}: "
    where = stage if len(memory["by_stage"]) > 1 else ""
    over = memory["over_bytes"]
    doubt = f", DOES NOT FIT: {size(over)} too much" if over else ""
    return f"{where}{size(memory['total_bytes'])} ({most}){doubt}"


def _of_money(told: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    cost, energy, training = told["cost"], told["energy"], told["training"]
    if cost is not None:
        rows.append(("cost", f"{cost['hour']:,.2f} {cost['currency']} an hour ({cost['date']})"))
    if energy is not None:
        rows.append(("energy", f"{energy['device_w']:,.0f} W a device; {energy['of']}"))
    if training is not None:
        hours = (
            f"{training['train_h']:,.1f} h ({training['low_h']:,.1f} to {training['high_h']:,.1f})"
        )
        paid = "" if training["cost"] is None else f", {training['cost']:,.0f} {cost['currency']}"
        kwh = training["energy_kwh"]
        used = "" if kwh is None else f", {shown('kwh', kwh)}"
        rows.append((f"{training['tokens']:.3g} tokens", hours + paid + used))
    return rows
