"""The breakdown of a step in sentences."""

from collections.abc import Sequence

from steptime.analysis.breakdown_cells import SIDES
from steptime.core.tables.table import Row, Table
from steptime.core.units import format_count

MAX_PARTS = 3  # of a sentence


def describe_breakdown(table: Table) -> list[str]:
    """Return the answer in sentences: "Of the measured step: linear 70.00 %, ..."."""
    summary = table.summary
    if not table.rows:
        return [
            "no op is measured, predicted or published here",
            "'steptime run MODEL --profile --out DIR' measures them",
            "'steptime predict --in DIR --by-op' predicts them",
        ]
    lines = [_describe_side(table, side) for side in SIDES if summary[f"{side}_networks"]]
    overhead = summary["profiling_overhead_share"]
    if overhead is not None:
        lines.append(f"A step under the profiler took {1 + overhead:.3g} times as long as without.")
    profiled_count = summary["of_profiled_step"]
    if profiled_count:
        lines.append(
            f"{format_count(profiled_count, 'network')} whose steps without profiler took longer "
            "than with it or less than the ops alone: shares are of the profiled step."
        )
    omitted_count = summary["omitted_networks"]
    if omitted_count:
        lines.append(
            f"{format_count(omitted_count, 'network')} with ops measured or predicted alone left "
            "out: --by-network shows them."
        )
    if not summary["predicted_networks"]:
        lines.append(
            "No prediction has its ops here: 'steptime predict --in DIR --by-op' adds them."
        )
    return lines


def _describe_side(table: Table, side: str) -> str:
    """Return the groups of the largest shares: "Of the measured step: linear 70.00 %, ..."."""
    share_key = f"{side}_share"
    network_count = table.summary[f"{side}_networks"]
    rows = [row for row in table.rows if row[share_key] is not None]
    rows.sort(key=lambda row: -row[share_key])
    # Network and platform are said only where rows differ in them.
    place_keys = [key for key in ("network", "platform") if len({row.get(key) for row in rows}) > 1]
    parts = [_describe_share(row, share_key, place_keys) for row in rows[:MAX_PARTS]]
    is_mean = network_count > 1 and "network" not in place_keys
    mean_text = f" in the mean of {format_count(network_count, 'network')}" if is_mean else ""
    # Published shares have no times.
    is_published = side == "measured" and all(row["measured_s"] is None for row in table.rows)
    side_name = "published" if is_published else side
    return f"Of the {side_name} step{mean_text}: {', '.join(parts)}."


def _describe_share(row: Row, share_key: str, place_keys: Sequence[str]) -> str:
    """Return the name of a group with its share, such as "linear (v100) 70.00 %"."""
    places = ", ".join(row[key] for key in place_keys)
    place_text = f" ({places})" if places else ""
    return f"{row['name']}{place_text} {100 * row[share_key]:.2f} %"
