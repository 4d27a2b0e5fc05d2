"""The resources of the MCP server: devices, links, stacks and pages of the documents."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from steptime.core.errors import InputError, unknown
from steptime.core.toml_files import DATA
from steptime.hardware import catalog, item_files

SCHEME = "steptime://"
JSON_TYPE, TOML_TYPE, MARKDOWN_TYPE = "application/json", "application/toml", "text/markdown"
ITEM_NAMES: Mapping[str, Callable[[], list[str]]] = {
    "devices": catalog.device_names,
    "links": catalog.link_names,
    "stacks": catalog.stack_names,
}
"""The names of what is known, by the folder of its files."""


class ResourceFacts(NamedTuple):
    """A resource as a client sees it.

    Attributes:
        uri: its address.
        name: its name.
        description: what it holds.
        media_type: the type of its text.
    """

    uri: str
    name: str
    description: str
    media_type: str


def list_resources() -> list[ResourceFacts]:
    """Return the lists of names, and the pages of the documents."""
    lists = [
        ResourceFacts(f"{SCHEME}{kind}", kind, f"Names of all {kind}.", JSON_TYPE)
        for kind in ITEM_NAMES
    ]
    return lists + [
        ResourceFacts(f"{SCHEME}docs/{page}", page, _read_title(path), MARKDOWN_TYPE)
        for page, path in doc_pages().items()
    ]


def list_templates() -> list[ResourceFacts]:
    """Return the templates of a device, a link and a stack by its name."""
    return [
        ResourceFacts(
            f"{SCHEME}{kind}/{{name}}",
            kind.removesuffix("s"),
            f"One of the {kind} by its name: its numbers with their sources.",
            TOML_TYPE,
        )
        for kind in ITEM_NAMES
    ]


def read_resource(uri: str) -> tuple[str, str]:
    """Return the text of a resource and its type.

    Raises:
        InputError: for an address that is none, with the nearest names.
    """
    kind, _, name = uri.removeprefix(SCHEME).partition("/")
    if kind == "docs":
        pages = doc_pages()
        if name not in pages:
            raise unknown("page", name, pages)
        return pages[name].read_text(encoding="utf-8"), MARKDOWN_TYPE
    if not uri.startswith(SCHEME) or kind not in ITEM_NAMES:
        raise unknown("resource", uri, [f"{SCHEME}{kind}" for kind in (*ITEM_NAMES, "docs")])
    names = ITEM_NAMES[kind]()
    if not name:
        return json.dumps(names, indent=1), JSON_TYPE
    if name not in names:
        raise unknown(kind.removesuffix("s"), name, names)
    paths = (DATA / kind / f"{name}.toml", item_files.user_folder(kind) / f"{name}.toml")
    for path in paths:
        if path.is_file():
            return path.read_text(encoding="utf-8"), TOML_TYPE
    raise InputError(f"{uri}: its file is gone")


@cache
def doc_pages() -> Mapping[str, Path]:
    """Return the pages of the documents by name, such as `tasks/which-gpu.md`.

    They lie in a checkout, or where the package was installed; there is none elsewhere.
    """
    for folder in (  # a checkout, or an installed package
        Path(__file__).parents[3] / "docs",
        Path(sysconfig.get_path("data")) / "share/steptime/docs",
    ):
        if (folder / "glossary.md").is_file():
            pages = sorted(folder.rglob("*.md"))
            return {page.relative_to(folder).as_posix(): page for page in pages}
    return {}


def _read_title(path: Path) -> str:
    with path.open(encoding="utf-8") as page:
        return next(page, "").strip("# \n")
