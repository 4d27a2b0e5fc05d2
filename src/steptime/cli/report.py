"""The command `report`: one offline page on a folder of records."""

from steptime.core.progress import note
from steptime.core.question import File, optional, question
from steptime.core.table import Answer
from steptime.core.units import counted
from steptime.questions import options


@question(long="reading the records and drawing the page")
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
