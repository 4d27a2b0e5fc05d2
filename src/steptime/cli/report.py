"""The command `report`: one offline page on a folder of records."""

from steptime.cli import options
from steptime.cli.command import command, note
from steptime.cli.options import File, optional
from steptime.core.table import Answer
from steptime.core.units import counted


@command(long="reading the records and drawing the page")
def report(
    folder: options.Folder,
    out: File = optional(
        "-o --out FILE", "A .html or .md file. Default: report.html in the folder."
    ),
) -> Answer:
    """Write one offline page, HTML or Markdown, of all results."""
    from steptime.reports import write_report

    path = out or folder / "report.html"
    document = write_report(folder, path, note)
    found = [counted(document["networks"], "network")]
    if document["published"]:
        found.append(counted(document["published"], "published result"))
    return Answer(document, notes=[f"{', '.join(found)}, {document['path']}"])
