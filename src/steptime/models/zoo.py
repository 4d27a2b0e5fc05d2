"""Named real networks that are settings of the families."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from steptime.core.workload import Value
from steptime.models import cnn
from steptime.models.family import Family, Parameter, resolve
from steptime.ops.builder import Builder


def setting(
    name: str, base: Family, source: str, settings: Mapping[str, Value], *free: str, **how: Any
) -> Family:
    """Return `base` under fixed `settings`, of which the `free` ones may still be chosen."""
    values = resolve(base, settings)

    def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
        return partial(base.build, **how)(b, {**values, **p}, batch)

    def check(p: Mapping[str, Any]) -> str | None:
        return base.check({**values, **p})

    parameters = {key: Parameter(values[key], base.parameters[key].meaning) for key in free}
    how_named: dict[str, Any] = {"named": True, "check": check, "settings": values}
    return Family(name, build, parameters, source, base.batch, **how_named)


_BOTTLENECK: dict[str, Value] = {
    "block": "bottleneck",
    "blocks": "3-4-6-3",
    "filters": 64,
    "image": 224,
}
RESNET50 = setting(
    "resnet50",
    cnn.FAMILY,
    "He et al. 2015, stride on the 3x3 (v1.5): 25,557,032 parameters, 4.09 GMAC an image",
    _BOTTLENECK,
    "image",
)
RESNET50_V1 = setting(
    "resnet50_v1",
    cnn.FAMILY,
    "He et al. 2015, stride on the 1x1: 25,557,032 parameters, 3.86 GMAC an image",
    _BOTTLENECK,
    "image",
    kinds=cnn.BLOCKS_V1,
)
RESNET18 = setting(
    "resnet18",
    cnn.FAMILY,
    "He et al. 2015, as torchvision has it: 11,689,512 parameters",
    {"block": "residual", "blocks": "2", "filters": 64, "image": 224},
    "image",
    project_every_group=False,
)
