"""Blind tables: files of reference data, the campaign and the date of each, and who reads them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from steptime.calibration.plan_errors import ReadRow
from steptime.core.tables.table_files import table_rows
from validation.blind import servings, trainings
from validation.blind.cells import Cells, Reader, read_rows

ADDED = "2026-12"  # when these rows came to the reference data


@dataclass(frozen=True)
class BlindTable:
    """A table of rows that told no constant.

    Attributes:
        path: its file, in the folder of reference data.
        campaign: repository and who measured; a column in braces gives one campaign each.
        reader: makes a row of cells.
        step: of how many rows one is asked, evenly; the others tell nothing new.
        added: the month in which the rows came.
        fitted_quantities: quantities of it that a constant was fitted on, which are not blind.
        fitted_devices: the devices of these rows; () for all.
    """

    path: str
    campaign: str
    reader: Reader
    step: int = 1
    added: str = ADDED
    fitted_quantities: tuple[str, ...] = ()
    fitted_devices: tuple[str, ...] = ()

    def is_fitted(self, quantity: str, device: str) -> bool:
        """Whether a constant was fitted on a quantity of the rows of a device."""
        is_of_device = not self.fitted_devices or device in self.fitted_devices
        return quantity in self.fitted_quantities and is_of_device

    def read(self, data: Path) -> Iterator[ReadRow]:
        """Yield campaign and place of each row, and its question or why it is not asked."""
        path = data / self.path
        for i, (line, cells) in enumerate(table_rows(path, {})):
            if i % self.step == 0:
                label = self.campaign_of(cells)
                yield from read_rows(iter([(line, cells)]), path.name, label, self.reader)

    def campaign_of(self, cells: Cells) -> str:
        """Return the campaign of a row."""
        submitter = str(cells.get("software", "")).split(", ")
        return self.campaign.format(submitter=submitter[1] if submitter[1:] else "")


TABLES = (
    BlindTable("blind4/bigscience_bloom.csv", "bigscience x BLOOM", trainings.read_bloom),
    BlindTable("blind4/nemo_automodel.csv", "NeMo Automodel x NVIDIA", trainings.read_automodel),
    BlindTable("blind4/tpu_recipes.csv", "tpu-recipes x Google", trainings.read_ironwood),
    BlindTable(
        "blind4/mlperf_single_node.csv", "MLPerf training x {submitter}", trainings.read_mlperf
    ),
    BlindTable("blind4/qwen_finetune.csv", "Qwen x Alibaba", trainings.read_qwen),
    BlindTable("blind4/peft_methods.csv", "peft x Hugging Face", trainings.read_peft),
    BlindTable("blind4/peft_methods.csv", "peft x Hugging Face", trainings.read_peft_peak),
    BlindTable("blind4/lambda_bench.csv", "deeplearning-benchmark x Lambda", trainings.read_lambda),
    BlindTable("llm/simumax_b200_dev.csv", "SimuMax x Moore Threads", trainings.read_simumax),
    BlindTable("blind4/gpustack_serving.csv", "gpustack x GPUStack", servings.read_gpustack, 4),
    BlindTable(
        "llm/blis_serving_dev.csv",
        "BLIS x IBM",
        servings.read_blis,
        fitted_quantities=("ttft_s",),
    ),
    BlindTable("llm/ml_energy_dev.csv", "ML.ENERGY x Michigan", servings.read_ml_energy),
    BlindTable("llm/pipeweave_serving_dev.csv", "PipeWeave x authors", servings.read_pipeweave),
    BlindTable("llm/pipeweave_collectives_dev.csv", "PipeWeave x authors", servings.read_exchange),
    BlindTable(
        "kernels/communication.csv.gz",
        "ai-dynamo/aiconfigurator x NVIDIA",
        servings.read_nccl,
        step=3,
    ),
    BlindTable(
        "llm/inference_bench_dev.csv.gz",
        "LLM-Inference-Bench x Argonne",
        servings.read_inference_bench,
        step=12,
        fitted_quantities=("request_s",),
        fitted_devices=("h100-sxm5", "a100-sxm4-40gb"),
    ),
)
