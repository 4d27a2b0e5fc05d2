"""Groups of published steps left out of the constants, and what a stack knows of a device."""

import numpy as np
import pytest

from steptime.core.workload import Plan
from steptime.questions.plan.planner import Planner
from steptime.questions.plan.request import Request, Site
from validation.left_out import CUT, NEUTRAL, _fitted

SMALL = "transformer:layers=2,width=4096,heads=32,vocabulary=32000"


def planner(device: str, stack: str) -> Planner:
    request = Request(SMALL, Site(device), length=8192, stack=stack)
    return request.planner(request.shape, 1)


def test_a_constant_goes_as_far_as_the_rows_that_are_left_say() -> None:
    ways = np.array([[0.2, 0.0], [0.2, 0.1], [0.1, 0.1], [0.1, 0.0]])
    found = _fitted(ways, ways @ [1.0, 0.5])
    assert found == pytest.approx([1.0, 0.5], abs=0.05)  # less what the ridge holds back
    many = np.vstack([ways] * 5)
    off = many @ [1.0, 0.5]
    off[0] += 10 * CUT  # a row far off moves it little
    assert _fitted(many, off) == pytest.approx([1.0, 0.5], abs=0.25)


def test_a_constant_that_no_row_has_seen_stays_neutral() -> None:
    ways = np.array([[0.2, 0.0], [0.1, 0.0]])
    assert _fitted(ways, ways @ [1.0, 1.0])[1] == 0
    assert NEUTRAL["straggling"][2] == 0


def test_attention_is_slower_where_a_limit_of_power_holds_products_back() -> None:
    pieces = [
        planner(device, "torch-eager").pieces(Plan(), 1)["block1"]
        for device in ("h100-sxm5", "h100-sxm5-96gb")
    ]
    free, held = (piece.core_s[0] for piece in pieces)
    assert held / free == pytest.approx(0.8 * 989 / 671, rel=0.02)  # and its memory


def test_heads_of_64_take_as_long_as_of_128_before_flash_attention_2() -> None:
    def core_s(heads: int, stack: str) -> float:
        model = SMALL.replace("heads=32", f"heads={heads}")
        request = Request(model, Site("a100-sxm4-80gb"), length=8192, stack=stack)
        return request.planner(request.shape, 1).pieces(Plan(), 1)["block1"].core_s[0]

    assert core_s(64, "fsdp-2023") == pytest.approx(core_s(32, "fsdp-2023"), rel=0.01)
    later = core_s(64, "torch-eager") / core_s(32, "torch-eager")
    assert later == pytest.approx((1 + 40 / 64) / (1 + 40 / 128), rel=0.03)  # beside memory


def test_the_interval_is_wider_on_a_generation_that_a_stack_has_not_seen() -> None:
    seen, unseen = (
        planner(device, "megatron-2025").bounds for device in ("h100-sxm5", "a100-sxm4-80gb")
    )
    assert np.log(seen.high) == pytest.approx(np.hypot(0.08, 0.03))
    assert np.log(unseen.high) == pytest.approx(np.sqrt(0.08**2 + 0.03**2 + 0.075**2))
