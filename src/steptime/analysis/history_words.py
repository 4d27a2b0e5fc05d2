"""The history of steps in sentences."""

from collections.abc import Mapping
from typing import Any

from steptime.analysis.change_points import MIN_VALUES
from steptime.core.tables.table import Table
from steptime.core.units import first_of, format_count, format_percent

MAX_NAMES = 4  # of networks in a sentence


def describe_history(table: Table) -> list[str]:
    """Return each change with how many networks share it and what else changed there."""
    summary: Any = table.summary
    folders = summary["folders"]
    lines = [_describe_event(event) for event in summary["events"]]
    if summary["slower"]:
        slower = first_of(summary["slower"], MAX_NAMES, "; ")
        lines.append(f"slower now than before: {slower}")
    if summary["vanished"]:
        vanished = first_of(summary["vanished"], MAX_NAMES, "; ")
        lines.append(f"not in the newest folder, {folders[-1]}: {vanished}")
    networks = format_count(summary["networks"], "network")
    extent = f"{networks} over {format_count(len(folders), 'folder')} by date"
    if len(folders) < 2:
        return [f"nothing to say of changes: {extent}, and a history takes two or more"]
    power = _describe_power(summary)
    if lines:
        return [*lines, power, f"{extent}: {folders[0]} to {folders[-1]}"]
    margin = format_percent(summary["margin_fraction"])
    return [f"no change beyond noise and {margin}; {extent}", power]


def _describe_event(event: Mapping[str, Any]) -> str:
    """Return a common change: "3 of 4 networks became 12 % slower between a and b: torch 2 | 3"."""
    causes = f": {', '.join(event['differ'])}" if event["differ"] else ""
    return (
        f"{event['changed']} of {format_count(event['networks'], 'network')} became "
        f"{format_percent(abs(event['changed_fraction']))} {event['verdict']} "
        f"between {event['before']} and {event['after']}{causes}"
    )


def _describe_power(summary: Mapping[str, Any]) -> str:
    """Return the smallest slowdown that would have been found, or why nothing can be judged."""
    count = len(summary["folders"])
    smallest = summary["smallest_slowdown"]
    if smallest is None:  # neither repeats nor folders enough to estimate the noise
        return (
            f"nothing can be judged: {format_count(count, 'folder')} of single runs cannot show "
            f"10 %; rounds = 5, or {MIN_VALUES} folders"
        )
    slowdown = format_percent(smallest)
    line = f"a slowdown of {slowdown} in the newest folders would be found 90 times in 100"
    if count < MIN_VALUES:
        line += f"; {MIN_VALUES} folders would show how much folders differ"
    return line
