from steptime.build import count_step as count_step
from steptime.catalog import device as device
from steptime.catalog import link as link
from steptime.predict.step_model import StepModel as StepModel

__version__: str
__all__ = ["StepModel", "__version__", "count_step", "device", "link"]
