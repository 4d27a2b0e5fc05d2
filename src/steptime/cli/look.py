"""Commands that read records and show them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli import options, output
from steptime.core.errors import InputError, shorten
from steptime.core.units import QUANTITIES, counted, seconds, si

if TYPE_CHECKING:
    from steptime.core.record import Record

SHOWN_UNPAIRED = 8

Sql = Annotated[
    str,
    typer.Argument(metavar="SQL", help="A statement over the table 'records', as DuckDB reads it."),
]


def _load(folder: Path) -> list[Record]:
    from steptime import store

    return store.load(folder, output.note)


def query(sql: Sql, in_dir: options.Folder, json: options.Json = False) -> None:
    """Answer an SQL statement over the table 'records'.

    One row is one record; times are in seconds.
    """
    from steptime.analysis import query as sql_query
    from steptime.analysis.row import rows

    answer = sql_query.query(rows(_load(in_dir)), sql)
    if json:
        output.emit_json(answer)
        return
    columns = list(answer[0]) if answer else []
    output.table("", columns, [[_cell(row[name]) for name in columns] for row in answer])
    output.note(counted(len(answer), "row"))


def _cell(value: Any) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def export(
    in_dir: options.Folder,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="A .csv, .parquet or .jsonl file.")
    ],
    sql: Annotated[
        str, typer.Option("--sql", metavar="SQL", help="What to export. Default: all records.")
    ] = "FROM records",
    json: options.Json = False,
) -> None:
    """Write records as a table: CSV, Parquet or JSON lines."""
    from steptime.analysis import query as sql_query
    from steptime.analysis.row import rows

    if out.suffix.lower() == ".jsonl" and out.parent.resolve() == in_dir.resolve():
        raise InputError(f"{out}: rows of a table cannot lie among the records of {in_dir}")
    count = sql_query.export(rows(_load(in_dir)), out, sql)
    if json:
        output.emit_json({"path": str(out), "rows": count})
    else:
        output.note(f"{counted(count, 'row')} written to {out}")


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR [DIR]",
            help="One folder: predicted beside measured. Two: the second against the first.",
        ),
    ],
    platforms: Annotated[
        str | None,
        typer.Option("--platforms", metavar="A,B", help="Platform B against A, in one folder."),
    ] = None,
    any_dtype: Annotated[
        bool, typer.Option("--any-dtype", help="With --platforms: pair types with other types.")
    ] = False,
    quantity: Annotated[
        str, typer.Option("--quantity", metavar="NAME", help="step_s, peak_memory_bytes, ...")
    ] = "step_s",
    json: options.Json = False,
) -> None:
    """Compare measured with predicted, two folders or two platforms.

    Ratios of medians with intervals, verdicts, and what has no partner. The
    exit code is 0 whatever the verdict.
    """
    from steptime.analysis import pairs

    if len(folders) > 2 or (platforms and len(folders) > 1):
        raise InputError("compare takes one folder, two folders, or one with --platforms A,B")
    if any_dtype and not platforms:
        raise InputError("--any-dtype goes with --platforms A,B")
    records = _load(folders[0])
    if len(folders) == 2:
        found = pairs.two_folders(records, _load(folders[1]), quantity)
        sides = [str(folder) for folder in folders]
    elif platforms:
        sides = [name.strip() for name in platforms.split(",")]
        if len(sides) != 2:
            raise InputError(f"--platforms is two names, A,B, not {shorten(platforms)}")
        found = pairs.two_platforms(records, sides[0], sides[1], quantity, any_dtype=any_dtype)
    else:
        found = pairs.predicted_and_measured(records, quantity)
        sides = ["predicted", "measured"]
    document = {
        "a": sides[0],
        "b": sides[1],
        "quantity": quantity,
        "pairs": found.pairs,
        "unpaired": found.unpaired,
        "errors": pairs.errors(found.pairs),
    }
    if json:
        output.emit_json(document)
    else:
        _show_pairs(document)


def _show_pairs(document: dict[str, Any]) -> None:
    quantity, rows, summary = document["quantity"], document["pairs"], document["errors"]
    judged = any(row["verdict"] for row in rows)
    if rows:
        _show_table(document, judged)
    else:
        output.note(f"nothing to compare: no network has its {quantity} on both sides")
    if rows and document["a"] != "predicted" and not judged:
        mean = summary["geometric_mean_ratio"]
        output.note(f"b / a is {mean:.3g} in the geometric mean ({summary['pairs']} pairs)")
    elif rows and not judged:
        output.note(
            f"median error of a against b {summary['median_error']:.0%} "
            f"({summary['pairs']} pairs); b / a is {summary['geometric_mean_ratio']:.3g} in the "
            f"geometric mean; {summary['within_factor_2']:.0%} lie within a factor of 2"
        )
    if any(row["steady"] is False for row in rows):
        output.note("no steady state on a side of some pairs: their intervals are wide")
    if judged and any(row["interval"] == "within-run" for row in rows):
        output.note("one run on a side: its interval leaves out how processes differ; use --runs")
    unpaired = document["unpaired"]
    for row in unpaired[:SHOWN_UNPAIRED]:
        output.note(f"unpaired: {row['name']} ({row['platform']}): {row['reason']}")
    if len(unpaired) > SHOWN_UNPAIRED:
        output.note(f"unpaired: and {len(unpaired) - SHOWN_UNPAIRED:,} more; --json has all")


def _show_table(document: dict[str, Any], judged: bool) -> None:
    quantity = document["quantity"]
    columns = ["network", "replicas", "platform", "type", "method", "a", "b", "b / a", "95 %"]
    output.table(
        f"{quantity}: b = {document['b']} against a = {document['a']}",
        [*columns, "verdict on b"] if judged else columns,
        [_pair_cells(row, quantity, judged) for row in document["pairs"]],
    )


def _pair_cells(row: dict[str, Any], quantity: str, judged: bool) -> list[object]:
    interval = None
    if row["ratio_low"] is not None:
        interval = f"{row['ratio_low']:.3g} .. {row['ratio_high']:.3g}"
    cells = [
        row["name"] + (f" {row['scope']}" if row["scope"] else ""),
        row["replicas"],
        row["platform"],
        _either(row, "dtype"),
        _either(row, "method"),
        _said(row["a"]["value"], quantity),
        _said(row["b"]["value"], quantity),
        f"{row['ratio']:.3g}",
        interval,
    ]
    return [*cells, row["verdict"]] if judged else cells


def _either(row: dict[str, Any], name: str) -> str:
    return " | ".join(dict.fromkeys((row["a"][name], row["b"][name])))


def _said(value: float, quantity: str) -> str:
    unit = QUANTITIES[quantity][0] if quantity in QUANTITIES else ""
    return seconds(value) if unit == "s" else si(value, unit)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of records.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Default: report.html in the folder."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Write one offline HTML page of results, plots and failures."""
    from steptime.report import write_report

    path = out or folder / "report.html"
    if path.suffix.lower() != ".html":
        raise InputError(f"{path}: a report is one .html file, not {shorten(path.suffix)}")
    document = write_report(folder, path, output.note)
    if json:
        output.emit_json(document)
    else:
        found = [counted(document["networks"], "network")]
        if document["published"]:
            found.append(counted(document["published"], "published record"))
        output.note(f"{', '.join(found)}, {document['path']}")


def plot(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="roofline, ops, predicted, throughput, memory, samples or devices."
        ),
    ],
    in_dir: options.Folder,
    out: Annotated[
        Path,
        typer.Option("-o", "--out", metavar="FILE", help="A .png, .svg, .pdf or .html file."),
    ],
    model: Annotated[
        str, typer.Option("--model", metavar="TEXT", help="Only models that begin with this.")
    ] = "",
    json: options.Json = False,
) -> None:
    """Draw one plot of the records as a file."""
    from steptime.core.errors import unknown
    from steptime.plots import PLOTS, draw
    from steptime.plots.files import check_path, save

    if kind not in PLOTS:
        raise unknown("plot", kind, PLOTS)
    check_path(out)
    records = _load(in_dir)
    chosen = [record for record in records if record.workload.label.startswith(model)]
    if not chosen:
        raise unknown("model", model, {record.workload.label for record in records}, str(in_dir))
    save(draw(kind, chosen), out)
    if json:
        output.emit_json({"plot": kind, "path": str(out), "records": len(chosen)})
    else:
        output.note(f"{kind}: {out}")
