"""Many changes of a device over the same networks: grids, and which upgrade pays."""

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.core.progress import watched
from steptime.core.units import percent
from steptime.diagnosis.changes import Change, changed
from steptime.diagnosis.whatif import Case, geomean, network


def sweep(found: Sequence[Case], combinations: Sequence[Sequence[Change]]) -> list[dict[str, Any]]:
    """Return a row for each combination of changes: its speed-ups over all networks.

    `speedup` is at the same batch, `grown_speedup` that of examples a second with the batch growing
    as the largest that fits does; both are geometric means over networks that fit before and after.
    """
    rows = []
    for changes in watched(list(combinations), "changed devices"):
        every = [network(case, case.model.on(changed(case.model.device, changes)))[0]
                 for case in found]  # fmt: skip
        fit = [row for row in every if row["status"] == "ok"]
        rows.append(
            {
                **{one.key: one.value for one in changes},
                "speedup": geomean(row["speedup"] for row in fit),
                "grown_speedup": geomean(row["grown_speedup"] for row in fit),
                "networks": len(fit),
                "newly_possible": sum(row["status"] == "new" for row in every),
            }
        )
    return rows


def upgrades(
    found: Sequence[Case], changes: Sequence[Change], cost: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each single change, the one that pays most first.

    `gain` is how much faster all networks become (`grown_speedup` - 1). With the `cost` of changes
    by key, in any unit, the order is that of the gain for each of it.
    """
    rows = []
    for change, row in zip(changes, sweep(found, [(one,) for one in changes]), strict=True):
        gain = round((row["grown_speedup"] or 1.0) - 1, 9)
        spent = (cost or {}).get(change.key)
        told = {name: row[name] for name in ("speedup", "grown_speedup", "newly_possible")}
        each = {"gain": gain, "cost": spent, "gain_per_cost": gain / spent if spent else None}
        rows.append({"upgrade": str(change), **told, **each})
    by = "gain_per_cost" if cost else "gain"
    return sorted(rows, key=lambda row: -1.0 if row[by] is None else row[by], reverse=True)


def best_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return which upgrade pays most, in a sentence."""
    one = rows[0]
    if one["gain"] <= 0:
        return "No upgrade makes these networks faster."
    dear = " for its cost" if one["cost"] else ""
    return f"{one['upgrade']} pays most{dear}: {percent(one['gain'])} faster."
