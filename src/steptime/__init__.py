"""How long a training step takes, how long it would take elsewhere, and why.

What the command line answers is here as functions of the same names, imported when they are asked
for: `predict`, `fit`, `choose`, `scale`, `plan`, `serve`, `split`, `energy_`, `systolic`; `count`,
`why`, `whatif`; `doctor`, `calibrate`, `run`, `data_`, `sweep`, `sweep_status`, `sweep_collect`,
`sweep_cancel`; `import_`, `report`, `compare`, `analyse`, `evaluate`; `list`, `query`, `convert`.
`watch` times the steps of a training loop of one's own.
So is what programs and extensions are made of: `predict_op`, `StepModel`, `count_step`, `device`,
`link`, `Kernel`, `Interval`, `Method`, `Device`, `Datasheet`, `Link`, `Cluster`; and what there is
by name: `METHODS`, `OPS` (kinds of ops), `stack_names()`, `schema("fit")`. Subpackages hold the
rest; `docs/python.md` shows them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; a test holds these names to `api.NAMES`
    from steptime.api import schema as schema
    from steptime.calibration.one_op import predict_op as predict_op
    from steptime.hardware.catalog import device as device
    from steptime.hardware.catalog import link as link
    from steptime.hardware.catalog import stack_names as stack_names
    from steptime.hardware.datasheet import Datasheet as Datasheet
    from steptime.hardware.device import Cluster as Cluster
    from steptime.hardware.device import Device as Device
    from steptime.hardware.device import Link as Link
    from steptime.integrations.watch import watch as watch
    from steptime.network.ops import OPS as OPS
    from steptime.prediction import METHODS as METHODS
    from steptime.prediction.kernel import Interval as Interval
    from steptime.prediction.kernel import Kernel as Kernel
    from steptime.prediction.method import Method as Method
    from steptime.prediction.steps.step_model import StepModel as StepModel
    from steptime.questions.analyse import analyse as analyse
    from steptime.questions.calibrate.question import calibrate as calibrate
    from steptime.questions.choose.question import choose as choose
    from steptime.questions.compare.question import compare as compare
    from steptime.questions.convert import convert as convert
    from steptime.questions.count import count as count
    from steptime.questions.count import count_step as count_step
    from steptime.questions.data import data as data_
    from steptime.questions.doctor.question import doctor as doctor
    from steptime.questions.energy.question import energy as energy_
    from steptime.questions.evaluate.question import evaluate as evaluate
    from steptime.questions.fit.question import fit as fit
    from steptime.questions.import_ import import_ as import_
    from steptime.questions.list.question import list_ as list  # noqa: A004  # the command's name
    from steptime.questions.module_file import from_module as from_module
    from steptime.questions.plan.question import plan as plan
    from steptime.questions.predict.question import predict as predict
    from steptime.questions.query import query as query
    from steptime.questions.report import report as report
    from steptime.questions.run.question import run as run
    from steptime.questions.scale.question import scale as scale
    from steptime.questions.serve.question import serve as serve
    from steptime.questions.split import split as split
    from steptime.questions.sweep.jobs import cancel as sweep_cancel
    from steptime.questions.sweep.jobs import collect as sweep_collect
    from steptime.questions.sweep.jobs import status as sweep_status
    from steptime.questions.sweep.question import sweep as sweep
    from steptime.questions.systolic import systolic as systolic
    from steptime.questions.whatif.question import whatif as whatif
    from steptime.questions.why.question import why as why

__version__ = "0.15.0"
__all__ = [
    "METHODS",
    "OPS",
    "Cluster",
    "Datasheet",
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
    "schema",
    "serve",
    "split",
    "stack_names",
    "sweep",
    "sweep_cancel",
    "sweep_collect",
    "sweep_status",
    "systolic",
    "watch",
    "whatif",
    "why",
]


def __getattr__(name: str) -> Any:
    """Return a name of the table of questions, importing what it needs."""
    if name.startswith("__"):
        raise AttributeError(f"module 'steptime' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("steptime.api"), name)


def __dir__() -> Iterable[str]:
    """Return the names that `dir(steptime)` shows."""
    return sorted({*globals(), *__all__})
