"""Every command line that the documents have ever shown is still understood.

`old_command_lines.txt` has those of README.md and docs at 0.15.0, before commands stood in panels.
"""

import shlex
from pathlib import Path

from every import every
from steptime.cli.main import tree

LINES = Path(__file__).with_name("old_command_lines.txt").read_text("utf-8").splitlines()


@every("line", LINES)
def test_an_old_command_line_is_understood(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = tree().make_context("steptime", shlex.split(line)[1:])
    name, command, words = tree().resolve_command(context, context._protected_args + context.args)
    command.make_context(name, list(words))  # raises for what the command line refuses
