from collections.abc import Mapping, Sequence
from pathlib import Path

from steptime.build import count_step as count_step
from steptime.calibration.by_rows import calibrate as calibrate
from steptime.calibration.by_rows import evaluate as evaluate
from steptime.calibration.by_rows import predict_op as predict_op
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
from steptime.questions.fit import Fitting
from steptime.questions.from_python import predict as predict
from steptime.questions.from_python import whatif as whatif
from steptime.questions.module_file import from_module as from_module
from steptime.questions.plan.best import plan as plan
from steptime.questions.serve.targets import serve as serve
from steptime.questions.why import Diagnosis
from steptime.reports.answered import analyse as analyse

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
    "count",
    "count_step",
    "device",
    "doctor",
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
    "stack_names",
    "sweep",
    "whatif",
    "why",
]

def fit(
    model: str | Path | Workload,
    device: str | Path | Device,
    batch: int | Sequence[int] | str | None = ...,
    *,
    phase: str = ...,
    dtype: str = ...,
    optimizer: str = ...,
    method: str = ...,
    option_: Mapping[str, object] | Sequence[str] | None = ...,
    allow_unknown: bool = ...,
    lora: str | None = ...,
    weights: str | None = ...,
    train: str | None = ...,
    recompute: str | None = ...,
    offload: str | None = ...,
    host_link: str | None = ...,
    update_early: bool = ...,
    packed: str | None = ...,
    padded: str | None = ...,
) -> Fitting: ...
def choose(
    model: str | Path | Workload,
    devices: str = ...,
    batch: int | Sequence[int] | str | None = ...,
    samples: int = ...,
    epochs: float = ...,
    prices: str | Path | None = ...,
    page: str | Path | None = ...,
    link: str | None = ...,
    replicas: int | Sequence[int] | str | None = ...,
    sort: str = ...,
    top: int = ...,
    *,
    phase: str = ...,
    dtype: str = ...,
    optimizer: str = ...,
    method: str = ...,
    option_: Mapping[str, object] | Sequence[str] | None = ...,
    allow_unknown: bool = ...,
    lora: str | None = ...,
    weights: str | None = ...,
    train: str | None = ...,
    recompute: str | None = ...,
    offload: str | None = ...,
    host_link: str | None = ...,
    update_early: bool = ...,
    packed: str | None = ...,
    padded: str | None = ...,
) -> Answer: ...
def scale(
    model: str | Path | Workload,
    device: str | Path | Device,
    link: str | None = ...,
    batch: int | Sequence[int] | str | None = ...,
    replicas: int | Sequence[int] | str | None = ...,
    scaling: str = ...,
    parallel: str = ...,
    collective: str | None = ...,
    overlap: bool = ...,
    compression: float = ...,
    latency_us: float | None = ...,
    samples: int | None = ...,
    epochs: float | None = ...,
    price: float | None = ...,
    billing: str | None = ...,
    dtype: str = ...,
    optimizer: str = ...,
    method: str = ...,
    option_: Mapping[str, object] | Sequence[str] | None = ...,
    allow_unknown: bool = ...,
    *,
    per_node: int | None = ...,
    inside: str | None = ...,
    links_per_node: int | None = ...,
    servers: int | None = ...,
) -> Answer: ...
def count(
    model: str | Path | Workload,
    batch: int | Sequence[int] | str | None = ...,
    phase: str = ...,
    dtype: str = ...,
    optimizer: str = ...,
    allow_unknown: bool = ...,
    by_op: bool = ...,
    stack: str = ...,
) -> Answer: ...
def why(
    model: str | Path | Workload | None = ...,
    device: str | Path | Device | None = ...,
    batch: int | Sequence[int] | str | None = ...,
    dtype: str | None = ...,
    phase: str = ...,
    optimizer: str = ...,
    replicas: int | None = ...,
    link: str | None = ...,
    method: str = ...,
    option_: Mapping[str, object] | Sequence[str] | None = ...,
    input_per_s: float | None = ...,
    folder: str | Path | None = ...,
    start: str | None = ...,
    allow_unknown: bool = ...,
    out: str | Path | None = ...,
) -> Diagnosis | Answer: ...
def doctor() -> Answer: ...
def run(
    model: str | Path | Workload | None = ...,
    batch: int | Sequence[int] | str | None = ...,
    stack: str | None = ...,
    backend: str = ...,
    device: str | Path | Device = ...,
    phase: str = ...,
    dtype: str = ...,
    optimizer: str = ...,
    threads: int | None = ...,
    compile_: bool = ...,
    tf32: bool = ...,
    input_: str = ...,
    data: str | None = ...,
    staging: str | None = ...,
    stage_to: str | None = ...,
    loaders: int | None = ...,
    prefetch: int | None = ...,
    train_steps: int | None = ...,
    replicas: int | None = ...,
    strategy: str | None = ...,
    no_overlap: bool = ...,
    budget: float | None = ...,
    limit: float = ...,
    runs: int = ...,
    parts: bool = ...,
    energy: bool = ...,
    profile: bool = ...,
    trace: str | Path | None = ...,
    out: str | Path | None = ...,
    demo: bool = ...,
) -> Answer: ...
def sweep(
    file: str | Path,
    out: str | Path,
    rounds: int | None = ...,
    runs: int | None = ...,
    retry: str = ...,
    force: bool = ...,
    try_all: bool = ...,
    launcher: str = ...,
    dry_run: bool = ...,
    shard: str | None = ...,
) -> Answer: ...
def import_(
    paths: str | Sequence[Path],
    out: str | Path,
    mapping: str | Path | None = ...,
) -> Answer: ...
def report(
    folder: str | Path,
    out: str | Path | None = ...,
) -> Answer: ...
def compare(
    folders: str | Sequence[Path],
    platforms: str | None = ...,
    by: str | None = ...,
    against: str | None = ...,
    any_dtype: bool = ...,
    quantity: str = ...,
    fail_on: str | None = ...,
    margin: str | None = ...,
) -> Answer: ...
def list(
    topic: str = ...,
    only: str | None = ...,
    sources: bool = ...,
) -> Answer: ...
def query(
    in_dir: str | Path,
    sql: str | None = ...,
    out: str | Path | None = ...,
) -> Answer: ...
