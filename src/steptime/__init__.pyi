from steptime.api import calibrate as calibrate
from steptime.api import evaluate as evaluate
from steptime.api import from_module as from_module
from steptime.api import predict as predict
from steptime.api import predict_op as predict_op
from steptime.api import whatif as whatif
from steptime.api import why as why
from steptime.build import count_step as count_step
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
from steptime.questions.plan.best import plan as plan
from steptime.questions.serve.targets import serve as serve
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
    "count_step",
    "device",
    "evaluate",
    "from_module",
    "link",
    "plan",
    "predict",
    "predict_op",
    "serve",
    "stack_names",
    "whatif",
    "why",
]
