"""The command `plot`: one picture of the records."""

from pathlib import Path
from typing import Annotated

from steptime.analysis.analyses import PLOTS
from steptime.cli import options
from steptime.cli.command import command, note
from steptime.cli.options import argument, option
from steptime.core.errors import unknown
from steptime.core.table import Answer


@command(long="reading the records and drawing")
def plot(
    kind: Annotated[
        str,
        argument("KIND", f"{', '.join(PLOTS)}, or an analysis that has a picture."),
    ],
    in_dir: options.In,
    out: Annotated[Path, option("-o --out FILE", "A .png, .svg, .pdf or .html file.")],
    model: str = option("--model TEXT", "Only models that begin with this.", ""),
) -> Answer:
    """Draw one plot of the records as a file."""
    from steptime import store
    from steptime.plots import chart_of, draw
    from steptime.plots.files import check_path, save

    chart_of(kind)
    check_path(out)
    records = store.load(in_dir, note)
    chosen = [record for record in records if record.workload.label.startswith(model)]
    if not chosen:
        raise unknown(
            "model", model, dict.fromkeys(record.workload.label for record in records), str(in_dir)
        )
    save(draw(kind, chosen), out)
    document = {"plot": kind, "path": str(out), "records": len(chosen)}
    return Answer(document, notes=[f"{kind}: {out}"])
