"""Times of a service lie inside of their intervals: drawn loads on drawn servers."""

from functools import lru_cache
from random import Random

import pytest

from steptime.core.errors import InputError
from steptime.planning.ranks.site import Site
from steptime.serving.demand import Demand
from steptime.serving.phases import Phases
from steptime.serving.service import Service
from steptime.serving.times import predict_times, run_service

SITES = [
    Site("h100-sxm5", 8, "nvlink-4", "infiniband-ndr"),
    Site("a100", 4, "nvlink-3", "ethernet-100"),
]
MODELS = ["llama3_8b", "mixtral_8x7b"]


@lru_cache(maxsize=64)
def phases(model: str, site: Site, stack: str, tensor: int) -> tuple[Service, Phases]:
    one = Service(model, site, 1, 4096, 512, tensor=tensor, stack=stack)
    return one, one.phases()


def service_drawn(seed: int) -> bool:
    """Ask a drawn service; return whether there is such a one."""
    draw = Random(seed)  # noqa: S311
    stack = draw.choice(["vllm-2025", "sglang-2025", "trt-llm-2025", "torch-eager"])
    model, site = draw.choice(MODELS), draw.choice(SITES)
    one, ready = phases(model, site, stack, draw.choice([2, 4]))
    sizes = draw.choice([1, 8, 64]), draw.choice([64, 512, 3000]), draw.choice([1, 16, 200])
    users = draw.choice([0, 0, 2, 9])
    demand = Demand(concurrency=users, count=20)
    asked = Service(model, site, *sizes, tensor=one.tensor, stack=stack, demand=demand)
    try:
        run = run_service(asked, demand.load(*sizes[1:]), ready) if users else None
    except InputError:  # weights that leave no room
        return False
    times = predict_times(asked, ready, run)
    for time in (times.ttft, times.tpot, times.request):
        assert time.low is not None
        assert time.high is not None
        assert 0 < time.low <= time.value <= time.high
    return True


@pytest.mark.slow
def test_a_service_lies_inside_of_its_intervals():
    assert sum(map(service_drawn, range(100))) > 80


@pytest.mark.rare
def test_a_thousand_services_do():
    assert sum(map(service_drawn, range(100, 1000))) > 720
