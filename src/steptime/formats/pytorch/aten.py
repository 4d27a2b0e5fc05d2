"""The table of ATen ops onto `formats/lowering.py`; what it lacks is decomposed at export.

A key is an op's name without its overload. Its function gets the call, whose arguments have the
names of ATen's schema, and returns the tensor made, or a list of one for each output.
"""

from collections.abc import Mapping

from steptime.formats.pytorch.call import Handler
from steptime.formats.pytorch.functions import FUNCTIONS
from steptime.formats.pytorch.fused import FUSED
from steptime.formats.pytorch.layers import LAYERS
from steptime.formats.pytorch.recurrent import RECURRENT
from steptime.formats.pytorch.views import MOVES, VIEWS

ATEN: Mapping[str, Handler] = {
    **VIEWS,
    **MOVES,
    **FUNCTIONS,
    **LAYERS,
    **RECURRENT,
    **FUSED,
}
