"""The formats of the small text files under /proc and /sys, control groups of both versions."""

import re
from itertools import product
from pathlib import Path

ROOT = Path("/")
NO_TREE = "this system has no /proc and /sys to read it from"


def read_text(path: Path) -> str | None:
    """Return the stripped text of a small system file, or None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def fields(path: Path) -> dict[str, str]:
    """Return the `key : value` lines of a file; of repeated keys the first."""
    values: dict[str, str] = {}
    for line in (read_text(path) or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip(), value.strip())
    return values


def number_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a list as kernel and Slurm write it: `0-2,5` is `(0, 1, 2, 5)`."""
    numbers: list[int] = []
    for number_range in filter(None, text.strip().split(",")):
        first, _, last = number_range.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def host_list(text: str) -> list[str]:
    """Return the names of a list of nodes as Slurm writes it: `a[08-09],b` is a08, a09 and b."""
    names: list[str] = []
    for entry in re.split(r",(?![^\[]*\])", text):  # at commas that are outside of brackets
        # `gpu[03-05]-a` is split into texts and, at odd indices, lists of numbers.
        pieces = re.split(r"\[([\d,-]+)\]", entry)
        choices_of_pieces = [
            _expand_padded_numbers(piece) if index % 2 else [piece]
            for index, piece in enumerate(pieces)
        ]
        names += map("".join, product(*choices_of_pieces))
    return names


def _expand_padded_numbers(text: str) -> list[str]:
    """Return the numbers of a list with leading zeros: `08-09,1` is 08, 09 and 1."""
    numbers = []
    for number_range in text.split(","):
        width = len(number_range.partition("-")[0])
        numbers += [f"{number:0{width}}" for number in number_list(number_range)]
    return numbers


def group_folders(controller: str, root: Path) -> list[Path]:
    """Return the control group's folders of this process, the innermost first (version 1 and 2)."""
    folders: list[Path] = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)  # `4:cpu,cpuacct:/job`, in version 2 `0::/job`
        is_version_2 = not controllers
        if is_version_2:
            mounts = ["", "unified"]  # alone, or beside the hierarchies of version 1
        elif controller in controllers.split(","):
            mounts = [controller]
        else:  # the line of other controllers
            continue
        names = [name for name in path.split("/") if name]
        for mount in mounts:
            top = root / "sys/fs/cgroup" / mount
            depths = range(len(names), -1, -1)  # from the process's own group up to the top
            folders += [top.joinpath(*names[:depth]) for depth in depths]
    return folders


def cache_bytes(text: str) -> int:
    """Return the bytes of a size such as `32K`; 0 for what is none."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    if not match:
        return 0
    exponent = {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
    return int(match[1]) << exponent


def kilobytes(text: str | None) -> int | None:
    """Return the bytes of a text such as `24105 kB`."""
    return int(text.split()[0]) * 1024 if text else None


def number(*paths: Path) -> int | None:
    """Return the whole number in the first of the files that holds one."""
    for path in paths:
        text = read_text(path)
        if text and text.isdigit():
            return int(text)
    return None
