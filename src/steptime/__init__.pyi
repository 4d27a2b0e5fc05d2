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
from steptime.prediction.step_model import StepModel as StepModel
from steptime.questions.plan.best import plan as plan
from steptime.questions.serve.answer import serve as serve
from steptime.reports.answered import analyse as analyse

__version__: str
__all__ = [
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
    "whatif",
    "why",
]
