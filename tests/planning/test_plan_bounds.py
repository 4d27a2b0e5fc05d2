"""A step lies inside of its interval: drawn plans of networks on devices of all kinds."""

from random import Random

import pytest

from steptime.core.errors import InputError
from steptime.core.workload import RECOMPUTES, SCHEDULES
from steptime.planning.answer import time_request
from steptime.planning.ranks.site import Site
from steptime.planning.request import Request

SITES = [
    Site("h100-sxm5", 8, "nvlink-4", "infiniband-ndr"),
    Site("a100", 4, "nvlink-3", "ethernet-100"),
    Site("mi300x", 8, "nvlink-4", "infiniband-ndr"),
    Site("tpu-v4", 4, "nvlink-3", "ethernet-100"),
]
MODELS = ["gpt2", "llama3_8b", "mixtral_8x7b", "resnet50"]


def plan_drawn(seed: int) -> bool:
    """Ask a drawn plan; return whether there is such a one."""
    draw = Random(seed)  # noqa: S311
    sizes = {name: draw.choice([1, 1, 2, 4]) for name in ("data", "tensor", "pipeline")}
    how = {
        **sizes, "zero": draw.choice([0, 0, 1, 3]), "recompute": draw.choice(RECOMPUTES),
        "schedule": draw.choice(SCHEDULES[:2]),
    }  # fmt: skip
    batch = sizes["data"] * draw.choice([1, 2, 8])
    asked = Request(draw.choice(MODELS), draw.choice(SITES), batch, split=how)
    try:
        _, found = time_request(asked)
    except InputError:  # a network without such a part, a device without a type
        return False
    assert 0 < found.low_s <= found.step_s <= found.high_s
    return True


@pytest.mark.slow
def test_a_step_lies_inside_of_its_interval():
    assert sum(map(plan_drawn, range(30))) > 15


@pytest.mark.rare
def test_a_thousand_steps_do():
    assert sum(map(plan_drawn, range(30, 1000))) > 485
