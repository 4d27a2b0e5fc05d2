"""The command of an analysis, as its row says it."""

from collections.abc import Callable

from steptime.analysis.analyses import Analysis
from steptime.cli import options
from steptime.cli.command import command, note
from steptime.core.table import Answer


def command_of(analysis: Analysis) -> Callable[..., int]:
    """Return the command that answers what `analysis` asks of a folder of records."""

    def answer(folder: options.Folder) -> Answer:
        from steptime import store

        table = analysis.table(store.load(folder, note))
        return Answer(list(table.rows), [table] if table.rows else [], analysis.says(table))

    answer.__doc__ = analysis.about
    return command(tabular=True, long="reading the records")(answer)
