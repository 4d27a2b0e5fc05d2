"""Commands in shell and YAML blocks of pages, which show no output: the command line takes them.

Blocks of docs/recipes.md are run by tests/test_where_to_add.py, and ```console blocks by
tests/docs/test_docs.py. Here each `steptime ...` line of the others is parsed with its options.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from command_lines import command_line_name
from places import ROOT
from steptime.cli.commands import build_app

RECIPES = ROOT / "docs/recipes.md"
PAGES = [page for page in (ROOT / "docs").rglob("*.md") if page != RECIPES]
BLOCK = re.compile(r"^```(?:sh|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|&& |- run: )(steptime (?!\.\.\.)[^\n#]*)", re.MULTILINE)
SHELL_ENDING = re.compile(r'\s*(?:"\s*&|&)\s*$')  # of a command that ssh runs in the background


def shell_commands(text: str) -> list[str]:
    """Return the steptime commands of a page's shell and YAML blocks, each on one line."""
    blocks = [block.replace("\\\n", " ") for block in BLOCK.findall(text)]
    found = [command for block in blocks for command in COMMAND.findall(block)]
    return [SHELL_ENDING.sub("", command).strip() for command in found]


def page_commands() -> Iterator[tuple[str, str]]:
    for page in sorted(PAGES):
        for command in shell_commands(page.read_text("utf-8")):
            yield page.name, command


PAGE = """```sh
steptime run fc \\
  --batch 4
ssh a "cd b && steptime sweep x.toml --shard 1/2" &
```

```yaml
steps:
  - run: steptime doctor
```
"""


def test_commands_of_blocks_are_found():
    assert [" ".join(command.split()) for command in shell_commands(PAGE)] == [
        "steptime run fc --batch 4",
        "steptime sweep x.toml --shard 1/2",
        "steptime doctor",
    ]


@pytest.mark.parametrize(("page", "command"), [*page_commands()])
def test_the_command_line_takes_the_command_of_a_block(page, command):
    words = shlex.split(re.sub(r"\$(\(\(.*?\)\)|\{.*?\})", "1", command))[1:]
    name = command_line_name(words)
    arguments = words[len(name.split()) :]
    build_app().parse_args([*name.split(), *arguments], exit_on_error=False, print_error=False)


def test_commands_of_the_gallery_are_those_that_draw_its_pictures():
    script = (ROOT / "scripts/draw-pictures").read_text("utf-8").replace("\\\n", " ")
    drawn = {" ".join(shlex.split(line)) for line in script.splitlines() if "steptime " in line}
    drawn = {command.replace("$pictures/", "") for command in drawn}
    gallery = shell_commands((ROOT / "docs/gallery.md").read_text("utf-8"))
    assert len(gallery) > 8
    assert {" ".join(shlex.split(command)) for command in gallery} <= drawn
