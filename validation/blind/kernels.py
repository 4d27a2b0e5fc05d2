"""Blind kernels: matrix products of serving engines in 16 bit, one GPU at a time."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from steptime.calibration.cases import Case, op_kernels
from steptime.calibration.plan_rows import Question
from steptime.core.errors import InputError
from steptime.core.table_files import table_rows
from steptime.hardware import catalog
from steptime.prediction.method import Method
from validation.blind.cells import Cells
from validation.score import CaseAnswer
from validation.ways import Row

TABLE = "kernels/gemm.csv.gz"
CAMPAIGN = "ai-dynamo/aiconfigurator x NVIDIA"
DRAW = 40  # of so many rows one is asked


def read_products(data: Path, method: str | Method) -> Iterator[Row]:
    """Yield the products of the table in bfloat16, with what is predicted of them."""
    lines = (
        (line, cells)
        for line, cells in table_rows(data / TABLE, {})
        if cells["dtype"] == "bfloat16" and cells["draw"] == "newest"
    )
    for line, cells in islice(lines, 0, None, DRAW):
        try:
            case = _product(cells)
        except InputError:
            continue
        question = Question(
            "AIConfigurator, newest products",
            f"gemm.csv.gz:{line}",
            CaseAnswer(case),
            {"device": case.device.name},
            {},
            {"seconds": case.seconds},
            campaign=CAMPAIGN,
        )
        yield Row("blind", question, question.reply(method))


def _product(cells: Cells) -> Case:
    tokens, outputs, inputs = (int(cells[name]) for name in "mnk")
    kernels = op_kernels("linear", ((tokens, inputs), (outputs, inputs)), {}, "bfloat16")
    device = catalog.device(cells["device"])
    return Case(kernels, device, float(cells["seconds"]), "linear", "repeated")
