"""Tokens on their way to experts: what is expected by counting all choices, and by hand."""

from itertools import combinations, product
from math import comb

import pytest

from every import every
from steptime.hardware.device import Link
from steptime.prediction.fabric import Fabric
from steptime.prediction.routing import dispatch_s, expected_parts

SLOW = Link("slow", 1000.0, 1.0, "made up")  # a message of b bytes takes 1000 + b seconds
QUICK = Link("quick", 10.0, 4.0, "made up")  # 10 + b / 4


@every(
    ("parts", "experts", "chosen", "groups", "groups_chosen"),
    [(1, 8, 2, 1, 1), (4, 8, 2, 1, 1), (8, 8, 3, 1, 1), (2, 8, 2, 4, 2), (4, 8, 3, 4, 2),
     (8, 8, 2, 4, 2), (2, 12, 3, 6, 3)],
)  # fmt: skip
def test_every_choice_counted(parts, experts, chosen, groups, groups_chosen):
    each, own, counts = experts // groups, experts // parts, []
    for some in combinations(range(groups), groups_chosen):
        allowed = [g * each + i for g, i in product(some, range(each))]
        counts += [len({one // own for one in picks}) for picks in combinations(allowed, chosen)]
    mean = sum(counts) / len(counts)
    assert expected_parts(parts, experts, chosen, groups, groups_chosen) == pytest.approx(mean)


def test_deepseek_v3_reaches_fewer_than_four_nodes():
    assert expected_parts(8, 256, 8, 8, 4) == pytest.approx(4 * (1 - comb(96, 8) / comb(128, 8)))
    assert 3.6 < expected_parts(8, 256, 8, 8, 4) < 3.7 < expected_parts(8, 256, 8) < 5.4


def test_a_token_crosses_once_to_each_part():
    """Two nodes of two devices, of which it reaches 1.5 and 2.4: the slower level counts."""
    spread = {2: 1.5, 4: 2.4}.__getitem__
    between = 1000 + 2 * 800 * 1.5 / 2  # both devices of a node share its link
    assert dispatch_s(800.0, 4, Fabric(SLOW, QUICK, per_node=2), spread) == between
    inside = 1000 + 800 * 2.4 / 2
    quick = Link("quick", 10.0, 4.0, "made up")
    assert dispatch_s(800.0, 4, Fabric(quick, SLOW, per_node=2), spread) == inside


def test_racks_are_parts_too():
    """Two racks of two nodes of two devices."""
    spread = {2: 1.5, 4: 2.0, 8: 3.0}.__getitem__
    rack = Fabric(SLOW, QUICK, per_node=2)
    found = dispatch_s(800.0, 8, Fabric(QUICK, rack, per_node=4), spread)
    assert found == 1000 + 2 * 800 * 2.0 / 2
