"""Cells of blind tables as questions: names of devices, pairs of a plan, and what is refused."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from steptime.calibration.plan_errors import ReadRow
from steptime.calibration.plan_rows import Question
from steptime.core.errors import InputError
from steptime.hardware import catalog
from validation.answers import KINDS

Cells = Mapping[str, Any]
GIB = 1024**3
DEVICES = {  # words of the sources, by the start of the text: the longest that fits counts
    "A100": "a100-sxm4-80gb",
    "A100-SXM4-80GB": "a100-sxm4-80gb",
    "A100-SXM4-40GB": "a100-sxm4-40gb",
    "A100 80GB SXM4": "a100-sxm4-80gb",
    "A100 80GB PCIe": "a100-pcie-80gb",
    "A100 40GB PCIe": "a100-pcie-40gb",
    "A40": "a40",
    "A10": "a10",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI350X": "mi350x",
    "AMD Instinct MI355X": "mi355x",
    "AMD MI300X": "mi300x",
    "AMD MI250": "mi250",
    "B200": "b200-sxm",
    "B200 192GB": "b200-sxm",
    "GH200 96GB": "gh200-96gb",
    "H100": "h100-sxm5",
    "H100-SXM5-80GB": "h100-sxm5",
    "H100 80GB SXM5": "h100-sxm5",
    "H100 80GB PCIe": "h100-pcie",
    "H20": "h20",
    "H800": "h800-sxm5",
    "H200": "h200-sxm",
    "H200-SXM5-141GB": "h200-sxm",
    "H200 140GB SXM": "h200-sxm",
    "L20": "l20",
    "L40S": "l40s",
    "NVIDIA Blackwell GPU (B200": "b200-sxm",
    "NVIDIA Blackwell GPU (GB200": "gb200",
    "NVIDIA H200": "h200-sxm",
    "NVIDIA L40S": "l40s",
    "Nvidia A100": "a100-sxm4-40gb",
    "Nvidia GH200": "gh200-96gb",
    "Nvidia H100": "h100-sxm5",
    "Quadro RTX 8000": "quadro-rtx-8000",
    "RTX 3090": "rtx-3090",
    "RTX 4090": "rtx-4090",
    "RTX 6000 Ada": "rtx-6000-ada",
    "RTX A6000": "rtx-a6000",
    "RTX6000": "rtx-pro-6000-blackwell-server",
    "RTX PRO 6000": "rtx-pro-6000-blackwell-server",
    "TPU7x": "tpu-v7",
    "V100 16GB": "v100-sxm2-16gb",
}


class BlindRow(NamedTuple):
    """A row before it is asked: the kind of question, its words, and what was measured."""

    kind: str
    texts: Mapping[str, str]
    numbers: Mapping[str, float]
    measured: Mapping[str, float]
    ran: bool = True


Reader = Callable[[Cells], BlindRow]


def read_rows(
    rows: Iterator[tuple[int, Cells]], name: str, label: str, reader: Reader
) -> Iterator[ReadRow]:
    """Yield set and place of each row, and its question or why it is not asked."""
    for line, cells in rows:
        place = f"{name}:{line}"
        try:
            check_kept(cells)
            yield label, place, _question(reader(cells), label, place)
        except InputError as error:
            yield label, place, error


def check_kept(cells: Cells) -> None:
    """Raise `InputError` with the reason for which the reference data leave a row out."""
    if cells.get("exclude"):
        raise InputError(str(cells["exclude"]))


def _question(row: BlindRow, label: str, place: str) -> Question:
    texts = {**row.texts}
    if "device" in texts:
        texts["device"] = catalog.device(find_device(texts["device"])).name
    measured = {name: float(value) for name, value in row.measured.items() if value}
    if not measured and row.ran:
        raise InputError("nothing that is predicted was measured")
    kind = KINDS[row.kind]
    return Question(label, place, kind, texts, row.numbers, measured, row.ran, label)


def find_device(text: str) -> str:
    """Return the catalogue's name of a device as a source calls it; raises `InputError`."""
    if text in catalog.device_names(with_user_files=False):
        return text
    text = text.replace("_", " ")
    starts = [start for start in DEVICES if text.startswith(start)]
    if not starts:
        raise InputError(f"{text}: no device of the catalogue is known to be it")
    return DEVICES[max(starts, key=len)]


def parse_pairs(plan: str) -> dict[str, str]:
    """Return the settings `name=value` of a plan that semicolons separate; `-` says nothing."""
    pairs = (part.split("=", 1) for part in plan.split(";") if "=" in part)
    return {name.strip(): value.strip() for name, value in pairs if value.strip() not in ("", "-")}


def parse_number(text: object, default: float = 0.0) -> float:
    """Return the first number of a text, or of a cell that is one."""
    match = re.search(r"\d+(\.\d+)?(e[+-]?\d+)?", str(text))
    return float(match.group()) if match else default
