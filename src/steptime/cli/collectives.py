"""The option `--collectives` of `probe`: the link between replicas, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steptime.cli import output
from steptime.core.errors import InputError
from steptime.core.hardware import GB
from steptime.core.units import seconds, si

PROCESSES = 2


def probe_collectives(
    backend: str, chosen: Any, processes: str | None, budget: float
) -> tuple[dict[str, Any], Path] | None:
    """Measure all-reduces among processes, write the link `local`, and give it with its path.

    None for all but rank 0 of what a launcher started. Raises `InputError`.
    """
    from steptime import catalog
    from steptime.launch.local import WorkerDiedError
    from steptime.measure import ranks
    from steptime.measure.probe.link_file import SIZES_BYTES, link_table
    from steptime.models.family import whole_number
    from steptime.sweep.workers import Workers

    if backend != "torch":
        raise InputError(f"--collectives: {backend} runs on one device; torch has several")
    size = ranks.here().size
    usual = size if size > 1 else PROCESSES
    count = usual if processes is None else whole_number(processes, "--processes", 2)
    workers = Workers()
    try:
        arguments = {"sizes": SIZES_BYTES, "budget_s": budget}
        worker = workers.get(backend, chosen, count)
        answer = worker.ask({"do": "collectives", "arguments": arguments}, 60 + 4 * budget)
    except WorkerDiedError as died:
        raise InputError(f"probe: {died}") from None
    finally:
        workers.close()
    if not workers.leads:
        return None
    table = link_table(answer)
    return table, catalog.write_user_link(table)


def show_link(table: dict[str, Any], path: Path, json: bool) -> None:
    """Print the link and the times that it was fitted to."""
    from steptime.measure.probe.link_file import link_rows

    if json:
        output.emit_json({"link": table["name"], "path": str(path), **table})
        return
    title = f"all-reduce, {table['source']}"
    output.table(title, ("bytes", "median", "ring formula is off"), link_rows(table))
    latency = table.get("latency_us")
    output.note(
        f"latency {'none shows' if latency is None else seconds(latency * 1e-6)}, bandwidth "
        f"{si(table['GB_per_s'] * GB, 'B/s')}: {table['note']}"
    )
    output.note(f"written to {path}; use it as --network local")
