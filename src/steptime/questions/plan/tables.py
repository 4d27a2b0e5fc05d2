"""The tables of plans: the step, the memory and the communication, and the plans of a search."""

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.core.tables.table import Column, Table, make_facts_table
from steptime.core.units import (
    HOURS_OF_DAY,
    format_bytes,
    format_interval,
    format_money,
    format_percent,
    format_rate,
    format_seconds,
    format_value,
)
from steptime.hardware.prices import NO_PRICE, format_offer
from steptime.questions.plan.answer import PlanAnswer
from steptime.questions.plan.search_answer import PlanRow, PlanSearchAnswer
from steptime.questions.plan.wording import (
    PART_WORDS,
    describe_assumed,
    describe_memory,
    describe_split,
    describe_split_and_size,
)

FactRow = tuple[str, str]
PLAN_COLUMNS = (
    Column("split"),
    Column("step_s", "step", ends=("any_stack_low_s", "any_stack_high_s")),
    Column("same", ""),
)
STEP_COST_COLUMNS = (Column("cost_per_step", "cost a step", form=".3g"),)
TRAINING_COST_COLUMNS = (
    Column("train_h", "training"),
    Column("cost_total", "cost", form=",.0f"),
)
COMMUNICATION_COLUMNS = (
    Column("group", "communication"),
    Column("collective", ""),
    Column("link"),
    Column("communication_s", "time"),
    Column("exposed_communication_s", "exposed"),
)
SHARE_WORDS = {"full": "attention in full", "half": "half of it", "6N": "as 6N"}
AMOUNT_WORDS = {
    "step_s": "time",
    "cost_per_step": "cost",
    "energy_j": "energy",
    "needed_bytes": "memory",
    "device_count": "devices",
}
"""The amounts of which the unbeaten plans need least, in words."""
MAX_COLLECTIVES = 8  # rows that people see
MAX_UNBEATEN = 6  # rows that people see


def plan_tables(answer: PlanAnswer, headline: Sequence[str]) -> list[Table]:
    """Return the step of a plan under a headline, and the communication of a device."""
    software = f"({answer.method}, {answer.stack})"
    split = f"{answer.model}: {describe_split_and_size(answer)} {software}"
    rows = [
        *_step_rows(answer),
        *_throughput_rows(answer),
        *_memory_rows(answer),
        *_cost_rows(answer),
        *_assumed_rows(answer),
    ]
    tables = [make_facts_table("\n".join([*headline, split]), "one step", rows)]
    if answer.exposed_communication:
        tables.append(_make_communication_table(answer))
    return tables


def _make_communication_table(answer: PlanAnswer) -> Table:
    """Return the collectives of a device, first those that it waits for longest."""
    longest_first = sorted(
        answer.exposed_communication, key=lambda row: -row.exposed_communication_s
    )
    return Table(
        COMMUNICATION_COLUMNS,
        [row.to_dict() for row in longest_first],
        "Communication of a device",
        max_rows=MAX_COLLECTIVES,
        is_detail=True,
    )


def _step_rows(answer: PlanAnswer) -> list[FactRow]:
    low_s, high_s = answer.any_stack_low_s, answer.any_stack_high_s
    parts = answer.parts.to_dict()
    rows = [
        ("step", format_interval("step_s", answer.step_s, low_s, high_s)),
        ("  computing", format_seconds(answer.parts.compute_s)),
    ]
    for name, words in PART_WORDS.items():
        is_listed = name == "compute_s"  # computing is the first row
        if is_listed or parts[name] <= 0:
            continue
        is_bubble = name == "bubble_s"
        share = f" ({format_percent(answer.bubble_share)} of the pipeline)" if is_bubble else ""
        rows.append((f"  {words}", format_seconds(parts[name]) + share))
    return rows


def _throughput_rows(answer: PlanAnswer) -> list[FactRow]:
    rows = []
    if answer.tokens_per_s is not None and answer.tokens_per_s_per_device is not None:
        tokens_per_device = f"{answer.tokens_per_s_per_device:,.0f}/s per device"
        rows.append(("tokens", f"{answer.tokens_per_s:,.0f}/s, {tokens_per_device}"))
    examples_per_device = f"{format_rate(answer.examples_per_s_per_device)}/s per device"
    rows.append(("examples", f"{format_rate(answer.examples_per_s)}/s, {examples_per_device}"))
    rows.append(("MFU", _describe_mfu(answer)))
    return rows


def _describe_mfu(answer: PlanAnswer) -> str:
    """Describe the MFU by each way of counting; of a single way its name says nothing."""
    shares = {row.name: row.share for row in answer.mfu if row.share is not None}
    # The conventions "half" and "6N" are of language models alone.
    if len(shares) == 1:
        return f"{format_percent(shares['full'])} of all that is counted"
    return ", ".join(
        f"{SHARE_WORDS[name]} {format_percent(share)}" for name, share in shares.items()
    )


def _memory_rows(answer: PlanAnswer) -> list[FactRow]:
    memory = answer.memory
    nearest = answer.nearest_fitting
    stage_count = len(memory.by_stage)
    stage = f"stage {memory.fullest_stage} of {stage_count}: " if stage_count > 1 else ""
    rows = [("memory", stage + describe_memory(memory))]
    if nearest is not None:
        memory_and_time = f"{format_bytes(nearest.needed_bytes)}, {format_seconds(nearest.step_s)}"
        rows.append(("", f"nearest that fits: {nearest.change} ({memory_and_time})"))
    elif not answer.fits:
        rows.append(("", "no single or double change of this plan fits"))
    return rows


def _cost_rows(answer: PlanAnswer) -> list[FactRow]:
    cost = NO_PRICE
    if answer.cost_per_hour is not None:
        offer = format_offer(answer.price_offer, answer.price_date)
        cost = f"{format_money(answer.cost_per_hour, answer.currency)} per hour ({offer})"
    rows = [("cost", cost)]
    if answer.device_power_w is not None:
        energy_kwh = None if answer.training is None else answer.training.energy_kwh
        total_energy = f", {format_value('kwh', energy_kwh)} in all" if energy_kwh else ""
        power = f"about {answer.device_power_w:,.0f} W per device"
        rows.append(("energy", f"{power}{total_energy}; {answer.energy_scope}"))
    return rows


def _assumed_rows(answer: PlanAnswer) -> list[FactRow]:
    return [("assumed", describe_assumed(answer.assumed))] if answer.assumed else []


def search_tables(answer: PlanSearchAnswer) -> list[Table]:
    """Return the fastest plan of each number of devices, and the plans that none beats."""
    unbeaten = _unbeaten_table(answer)
    if len(answer.by_device_count) == 1:
        return [unbeaten]
    heads = (
        Column("device"),
        Column("device_count"),
        *PLAN_COLUMNS,
        *(TRAINING_COST_COLUMNS if answer.best.training else STEP_COST_COLUMNS),
        Column("efficiency", form=".0%"),
        Column("energy_j", "energy a step"),
        Column("bound_by", "bottleneck", is_spare=True),
    )
    rows = [_plan_cells(row) for row in answer.by_device_count]
    title = "The fastest of each number of devices"
    return [Table(heads, rows, title, _describe_space(answer)), unbeaten]


def _unbeaten_table(answer: PlanSearchAnswer) -> Table:
    """Return the plans that no other beats in every amount."""
    clusters = {(row.device, row.device_count) for row in answer.rows}
    is_single_cluster = len(clusters) == 1  # the title has the only device
    heads = (
        Column("device", is_spare=is_single_cluster),
        Column("device_count", is_spare=is_single_cluster),
        *PLAN_COLUMNS,
        Column("needed_bytes", "memory"),
        Column("best_in", "lowest in"),
    )
    counts = f"{answer.considered_count:,} splits, {answer.fitting_count:,} fit"
    title = f"Pareto front in {', '.join(AMOUNT_WORDS.values())}: {counts}"
    has_table_of_counts = len(answer.by_device_count) > 1
    return Table(
        heads,
        _make_unbeaten_rows(answer),
        title,
        _describe_space(answer),
        max_rows=MAX_UNBEATEN,
        is_detail=has_table_of_counts,
    )


def _make_unbeaten_rows(answer: PlanSearchAnswer) -> list[Mapping[str, Any]]:
    """Return the unbeaten plans, first those with the lowest cost, time or another amount."""
    rows: list[Mapping[str, Any]] = []
    for row in answer.rows:
        lowest_amounts = [AMOUNT_WORDS[best.name] for best in answer.best_by if best.row == row]
        rows.append({**_plan_cells(row), "best_in": ", ".join(lowest_amounts)})
    return sorted(rows, key=lambda cells: cells["best_in"] == "")


def _describe_space(answer: PlanSearchAnswer) -> list[str]:
    """Describe the mark of equally fast plans, and the plans that were searched."""
    error = "plans are as fast within the error of this prediction"
    return [f"= {answer.as_fast_count:,} {error}", answer.space]


def _plan_cells(row: PlanRow) -> Mapping[str, Any]:
    fields = row.to_dict()
    split_fields = {name: value for name, value in fields.items() if name != "microbatch"}
    days = row.training_days
    return {
        **fields,
        "train_h": None if days is None else HOURS_OF_DAY * days,
        "split": describe_split(split_fields, row.microbatch),
        "same": "=" if row.is_as_fast else "",
    }
