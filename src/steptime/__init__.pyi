from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from steptime.build import count_step as count_step
from steptime.calibration.one_op import predict_op as predict_op
from steptime.core.table import Answer
from steptime.core.workload import Workload
from steptime.hardware.catalog import device as device
from steptime.hardware.catalog import link as link
from steptime.hardware.catalog import stack_names as stack_names
from steptime.hardware.device import Cluster as Cluster
from steptime.hardware.device import Device as Device
from steptime.hardware.device import Link as Link
from steptime.network.ops import OPS as OPS
from steptime.prediction import METHODS as METHODS
from steptime.prediction.kernel import Interval as Interval
from steptime.prediction.kernel import Kernel as Kernel
from steptime.prediction.method import Method as Method
from steptime.prediction.step_model import StepModel as StepModel
from steptime.questions.analyse import analyse as analyse
from steptime.questions.calibrate import calibrate as calibrate
from steptime.questions.choose import choose as choose
from steptime.questions.compare import compare as compare
from steptime.questions.convert import convert as convert
from steptime.questions.count import count as count
from steptime.questions.data import data as data_
from steptime.questions.doctor import doctor as doctor
from steptime.questions.energy import energy as energy_
from steptime.questions.evaluate import evaluate as evaluate
from steptime.questions.fit import fit as fit
from steptime.questions.import_ import import_ as import_
from steptime.questions.list import list_ as list
from steptime.questions.module_file import from_module as from_module
from steptime.questions.plan.question import plan as plan
from steptime.questions.predict import predict as predict
from steptime.questions.query import query as query
from steptime.questions.report import report as report
from steptime.questions.run import run as run
from steptime.questions.scale import scale as scale
from steptime.questions.split import split as split
from steptime.questions.sweep import sweep as sweep
from steptime.questions.sweep_jobs import cancel as sweep_cancel
from steptime.questions.sweep_jobs import collect as sweep_collect
from steptime.questions.sweep_jobs import status as sweep_status
from steptime.questions.systolic import systolic as systolic
from steptime.questions.whatif.question import whatif as whatif
from steptime.questions.why.question import why as why

__version__: str
__all__ = [
    "METHODS",
    "OPS",
    "Cluster",
    "Device",
    "Interval",
    "Kernel",
    "Link",
    "Method",
    "StepModel",
    "__version__",
    "analyse",
    "calibrate",
    "choose",
    "compare",
    "convert",
    "count",
    "count_step",
    "data_",
    "device",
    "doctor",
    "energy_",
    "evaluate",
    "fit",
    "from_module",
    "import_",
    "link",
    "list",
    "plan",
    "predict",
    "predict_op",
    "query",
    "report",
    "run",
    "scale",
    "serve",
    "split",
    "stack_names",
    "sweep",
    "sweep_cancel",
    "sweep_collect",
    "sweep_status",
    "systolic",
    "whatif",
    "why",
]

def serve(
    model: str | Path | Workload,
    device: str | Path | Device | Sequence[str | Device],
    batch: int = ...,
    input: int | None = ...,
    output: int | None = ...,
    tensor: int = ...,
    pipeline: int = ...,
    data: int = ...,
    expert: int = ...,
    replicas: int = ...,
    dtype: str | None = ...,
    weights: str | None = ...,
    kv: str | None = ...,
    prices: str | Path | None = ...,
    prefix: float | None = ...,
    stack: str | None = ...,
    method: str | Method | Callable[[Kernel, Device], Interval | float] = ...,
    per_node: float | Sequence[int] | str | None = ...,
    inside: str | Sequence[str] | None = ...,
    link: str | Sequence[str] | None = ...,
    links_per_node: float | Sequence[int] | str | None = ...,
    concurrency: float | Sequence[int] | str | None = ...,
    rate: float | Sequence[int] | str | None = ...,
    requests: str | Path | None = ...,
    count: float | Sequence[int] | str | None = ...,
    seed: float | Sequence[int] | str | None = ...,
    ttft_target: float | None = ...,
    tpot_target: float | None = ...,
    max_batch: float | Sequence[int] | str | None = ...,
    prefill_replicas: float | Sequence[int] | str | None = ...,
    prefill_tensor: float | Sequence[int] | str | None = ...,
    prefill_data: float | Sequence[int] | str | None = ...,
    prefill_expert: float | Sequence[int] | str | None = ...,
    draft: str | None = ...,
    speculate: float | Sequence[int] | str | None = ...,
    accept: float | Sequence[int] | str | None = ...,
    ttft: float | None = ...,
    tpot: float | None = ...,
    max_device_count: int | None = ...,
    out: str | Path | None = ...,
    option_: Mapping[str, object] | Sequence[str] | None = ...,
) -> Answer: ...
