"""Blind kernels: matrix products of serving engines in 16, 8 and 4 bit, one GPU at a time."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from steptime.calibration.cases import Case, op_kernels
from steptime.calibration.plan_rows import Question
from steptime.core.errors import InputError
from steptime.core.tables.table_files import table_rows
from steptime.hardware import catalog
from steptime.prediction.method import Method
from validation.blind.cells import Cells
from validation.score import CaseAnswer
from validation.ways import Row

TABLE = "kernels/gemm.csv.gz"
CAMPAIGN = "ai-dynamo/aiconfigurator x NVIDIA"
DRAW = 40  # of so many rows one is asked
DTYPES = {  # by the words of the source; those of 128 x 128 blocks wait for the host in part
    "bfloat16": "bfloat16",
    "fp8": "float8",
    "fp8_static": "float8",
    "nvfp4": "float4",
}


def read_products(data: Path, method: str | Method) -> Iterator[Row]:
    """Yield the products of the table, with what is predicted of them, type by type."""
    for dtype in dict.fromkeys(DTYPES.values()):
        lines = (
            (line, cells)
            for line, cells in table_rows(data / TABLE, {})
            if DTYPES.get(str(cells["dtype"])) == dtype and cells["draw"] == "newest"
        )
        for line, cells in islice(lines, 0, None, DRAW):
            try:
                case = _product(cells, dtype)
            except InputError:
                continue
            question = Question(
                f"AIConfigurator, newest products in {dtype}",
                f"gemm.csv.gz:{line}",
                CaseAnswer(case),
                {"device": case.device.name},
                {},
                {"seconds": case.seconds},
                campaign=CAMPAIGN,
            )
            yield Row("blind", question, question.reply(method))


def _product(cells: Cells, dtype: str) -> Case:
    tokens, outputs, inputs = (int(cells[name]) for name in "mnk")
    kernels = op_kernels("linear", ((tokens, inputs), (outputs, inputs)), {}, dtype)
    device = catalog.device(cells["device"])
    return Case(kernels, device, float(cells["seconds"]), "linear", "repeated")
