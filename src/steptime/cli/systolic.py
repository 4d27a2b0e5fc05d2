"""The command `systolic`: a network on systolic arrays of several sizes."""

from dataclasses import replace
from itertools import product
from typing import Any, cast

from steptime.build import build
from steptime.cli.picture import drawn, picture
from steptime.core.errors import InputError
from steptime.core.progress import note
from steptime.core.question import File, Text, choice, option, optional, question
from steptime.core.table import Answer, Table, columns
from steptime.core.units import counted
from steptime.core.values import parse_counts
from steptime.energy.systolic import DATAFLOWS, Dataflow, network
from steptime.energy.systolic_arrays import array as array_of
from steptime.energy.systolic_arrays import array_names
from steptime.questions import options
from steptime.reports.charts.heatmap import grid

VALUES = {"utilisation": "utilisation", "time": "time_s"}
MOST = 10_000  # arrays of one answer


@question()
def systolic(
    model: options.Model,
    array: str = option("NAME", f"{', '.join(array_names())}, or FILE.toml.", "tpu-v1"),
    rows: Text = optional("N,...", "Rows of PEs: numbers or a range (16..256x2)."),
    columns_: Text = optional("--columns N,...", "Columns of PEs, as --rows."),
    dataflow: str = choice(
        DATAFLOWS, "What stays in the PEs: weight, input or output.", default="weight"
    ),
    batch: options.Batch = None,
    value: str = choice(VALUES, "What is drawn: utilisation or time.", default="utilisation"),
    out: File = picture("Draw the map of rows and columns"),
) -> Answer:
    """Predict the time and utilisation of systolic arrays on a network."""
    basis = array_of(array)
    sizes = [
        [count] if text is None else parse_counts(text, where)
        for count, text, where in (
            (basis.rows, rows, "--rows"),
            (basis.columns, columns_, "--columns"),
        )
    ]
    if len(sizes[0]) * len(sizes[1]) > MOST:
        raise InputError(f"{len(sizes[0]) * len(sizes[1])} arrays; at most {MOST}")
    workload = options.workload_of(model, batch, phase="infer")
    graph = build(workload)
    found = []
    for high, wide in product(*sizes):
        one = replace(basis, rows=high, columns=wide)
        run = network(one, graph, cast(Dataflow, dataflow))
        macs = sum(op.run.macs for op in run.ops)
        found.append(
            {
                "rows": high,
                "columns": wide,
                "cycles": run.cycles,
                "time_s": run.time_s,
                "utilisation": macs / (run.cycles * high * wide) if run.cycles else None,
                "dram_bytes": sum(op.run.dram_bytes for op in run.ops),
            }
        )
    of = f"{workload.label}, batch {workload.batch_per_replica}"
    title = f"{of}, on {basis.name}, {dataflow}-stationary"
    if out is not None:
        _draw(title, basis.source, VALUES[value], found, out)
    left = len(run.not_covered)
    says = [f"{counted(left, 'op')} of {len(graph.ops)} not on the array, counted as nothing"]
    document = {
        "model": workload.label,
        "batch": workload.batch_per_replica,
        "array": basis.name,
        "dataflow": dataflow,
        "rows": found,
        "not_covered": list(run.not_covered),
    }
    heads = columns(
        "rows", "columns", "cycles:,", "time_s=time", "utilisation:.3f", "dram_bytes=DRAM"
    )
    return Answer(document, [Table(heads, found, title)], says if left else ())


def _draw(title: str, source: str, key: str, rows: list[dict[str, Any]], out: Any) -> None:
    cells = [{"x": one["columns"], "y": one["rows"], "value": one[key]} for one in rows]
    note(drawn(grid(title, [source], cells, x="columns", y="rows", value=key), out))
