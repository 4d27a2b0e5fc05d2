"""What people see of a choice of devices: a row a device, and what is in doubt."""

from typing import Any

from steptime.core.table import EXTRAPOLATED, Table, columns, of_steps
from steptime.core.units import counted, first_of, shown
from steptime.hardware.prices import by_offer
from steptime.prediction.assumed import assumed_line, assumed_text

SHOWN = 40  # devices that people see
NAMED = 5  # of those that a note counts


def notes_on(rows: list[dict[str, Any]]) -> list[str]:
    """Return of which date prices are, and which devices and prices are in doubt."""
    notes = []
    dates = sorted({row["price_date"] for row in rows if row["cost"] is not None})
    if dates:
        notes.append(f"prices are of a date and change: {'; '.join(dates)}")
    doubted = sorted({row["offer"] for row in rows if row["price_verified"] is False})
    found = {("price", " not verified"): doubted}
    for status, what in _UNFIT.items():
        found["device", what] = [row["device"] for row in rows if row["status"] == status]
    for (noun, what), some in found.items():
        if some:
            notes.append(f"{counted(len(some), noun)}{what}: {first_of(some, NAMED)}")
    return notes


_UNFIT = {"oom": " that it does not fit", "unsupported": " without a known peak of this type"}
_COLUMNS = columns(
    "device", "batch", "?micro=microbatch", "step_s[low_s,high_s]=step",
    "?examples_per_s=speed", "train_h=training", "cost", "energy", "?paid_by=price of",
    "?needed_bytes=memory",
    "?best_batch=best batch", "?best_examples_per_s=its speed",
)  # fmt: skip


def table(document: dict[str, Any]) -> Table:
    """Return the devices that fit, best first."""
    rows, fitting = [], [row for row in document["rows"] if row["status"] == "ok"]
    is_paid = any(row["cost"] is not None for row in fitting)
    for row in fitting:
        energy, most, said = row["energy_j"], row["energy_max_j"], None
        if energy is not None or most is not None:
            kwh = shown("kwh", (most if energy is None else energy) / 3.6e6)
            said = f"at most {kwh}" if energy is None else kwh
        micro = row["microbatch"] if row["microbatch"] < row["batch"] else None
        by = by_offer(row["offer"], row["price_date"]) if is_paid else None
        more = {"micro": micro, "train_h": row["train_s"] / 3600, "energy": said, "paid_by": by}
        rows.append(row | more)
    steps = of_steps(_COLUMNS, rows)
    heads = [one for one in steps if any(row[one.key] not in (None, "") for row in rows)]
    epochs = counted(document["epochs"], "epoch")
    tuning = f"{document['tuning']}, " if document["tuning"] else ""
    title = (
        f"{document['model']}, {tuning}{document['phase']}, {document['dtype']}, "
        f"{document['optimizer']} ({document['method']}): {epochs} of "
        f"{document['examples']:,} examples, by {document['sort']}"
    )
    below = assumed_line((row["device"], assumed_text(row["assumed"])) for row in fitting)
    below += [EXTRAPOLATED] if any(row["is_extrapolated"] for row in rows) else []
    if is_paid:
        below.append(f"cost in {document['currency']}, paid by the second or as the offer says")
    return Table(heads, rows, title, below, most=SHOWN)
