"""The command `plot`: one picture of the records."""

from pathlib import Path
from typing import Annotated

from steptime.analysis.analyses import PLOTS
from steptime.cli import options
from steptime.cli.analysis import MOST_SHOWN
from steptime.cli.command import command, note
from steptime.cli.options import argument, option, picture_path
from steptime.core.errors import one_of, unknown
from steptime.core.table import Answer


@command(long="reading the records and drawing")
def plot(
    kind: Annotated[
        str, argument("KIND", f"{', '.join(PLOTS)}, or an analysis that has a picture.")
    ],
    in_dir: options.In,
    out: Path = option("-o --out FILE", "A .png, .svg, .pdf or .html file.", parser=picture_path),
    model: str = option("NAME", "Only models that begin with this.", ""),
) -> Answer:
    """Draw one plot of the records as a file."""
    from steptime.records.data import Data
    from steptime.reports.charts import draw, kinds
    from steptime.reports.charts.files import save

    one_of("plot", kind, kinds())
    data = Data.load([in_dir], note, model)
    data.most = MOST_SHOWN  # of a table: its picture asks for what it draws
    ((number,),) = (row.values() for row in data.rows("SELECT count(*) FROM flat"))
    if not number:
        every = Data.load([in_dir], note).rows("SELECT DISTINCT model FROM flat ORDER BY model")
        raise unknown("model", model, [row["model"] for row in every], str(in_dir))
    save(draw(kind, data), out)
    document = {"plot": kind, "path": str(out), "records": number}
    return Answer(document, notes=[f"{kind}: {out}"])
