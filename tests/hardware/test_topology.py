"""What links give to groups, by hand: tori, meshes, a cube without a switch, the host's memory."""

import pytest

from steptime.core.errors import InputError
from steptime.core.toml_files import read_packaged_toml
from steptime.hardware import catalog
from steptime.hardware.device import Cluster, Level, Link
from steptime.hardware.topology import KINDS, effective_link, torus_axis_sizes
from steptime.prediction.collectives import all_gather, all_to_all
from steptime.prediction.fabric import Fabric, fabric_of_group
from steptime.prediction.steps.step_model import StepModel


@pytest.mark.parametrize(
    ("name", "size", "group", "gigabytes_per_s", "hops"),
    [
        ("ici-tpu-v6e", 256, 256, 400, 8),  # 16 x 16, both closed: 4 + 4 links on the way
        ("ici-tpu-v6e", 32, 32, 200, 2),  # 4 x 8, both open: (4 + 8) / 3 x half of the rate
        ("ici-tpu-v6e", 256, 4, 100, 1),  # four in a row: one of two axes, open
        ("ici-tpu-v5p", 64, 64, 600, 3),  # a cube of 4 x 4 x 4
        ("ici-tpu-v5p", 32, 32, 300, 10 / 6),  # below a cube nothing closes: (2 + 4 + 4) / 3 / 2
        ("nvlink-2-dgx1", 8, 8, 150, 10 / 7),  # of seven, four are one link away and three two
        ("nvlink-2-dgx1", 8, 4, 100, 1),  # a quad: two cycles both ways
        ("nvlink-2-dgx1", 8, 2, 25, 1),  # one link
        ("xgmi-mi300x", 8, 8, 448, 1),
        ("xgmi-mi300x", 8, 4, 3 * 64, 1),
        ("xgmi-mi300x", 8, 2, 64, 1),
        ("pcie-4-x16-host", 8, 8, 409.6 / 16, 1),  # eight, of which each byte passes twice
        ("pcie-4-x16-host", 8, 2, 31, 1),
        ("pcie-4-x16-bridges", 8, 2, 31, 1),  # two reach each other's memory across bridges
        ("pcie-4-x16-bridges", 8, 4, 0.55 * 31, 1),  # four go through the host's
        ("nvlink-5", 72, 72, 900, 1),  # a rack behind switches
    ],
)
def test_what_a_group_has_of_a_link(name, size, group, gigabytes_per_s, hops):
    link = effective_link(catalog.link(name), size, group)
    assert link.bytes_per_s == pytest.approx(gigabytes_per_s * 1e9)
    assert link.hops == pytest.approx(hops, rel=1e-4)


@pytest.mark.parametrize("name", ["nvlink-3", "nvlink-4", "nvlink-5", "nvlink-6"])
def test_small_groups_behind_a_switch_reach_less_of_the_same_link(name):
    link = catalog.link(name)
    groups = [effective_link(link, 8, group) for group in range(2, 9)]
    assert {group.bytes_per_s for group in groups} == {link.bytes_per_s}
    reached = [group.for_collectives.bytes_per_s for group in groups]
    assert reached == sorted(reached)
    assert reached[0] == pytest.approx(0.78 * link.for_collectives.bytes_per_s)
    assert reached[3] == pytest.approx(0.955 * link.for_collectives.bytes_per_s)  # five
    assert reached[-1] == link.for_collectives.bytes_per_s
    rack = effective_link(link, 72, 72)
    assert rack.for_collectives.bytes_per_s == reached[-1]


@pytest.mark.parametrize("name", ["pcie-3-x16", "pcie-4-x16", "pcie-5-x16", "pcie-6-x16"])
def test_cards_across_bridges_are_between_those_with_and_without_peer_access(name):
    across = catalog.link(f"{name}-bridges")
    for group in range(2, 17):
        rate = effective_link(across, 16, group).for_collectives.bytes_per_s
        direct = effective_link(catalog.link(name), 16, group).for_collectives.bytes_per_s
        assert rate == pytest.approx(direct) if group == 2 else rate <= 0.55 * direct


def test_sides_are_as_even_as_they_can_be():
    assert [torus_axis_sizes(n, 2) for n in (8, 32, 128, 256)] == [
        [2, 4],
        [4, 8],
        [8, 16],
        [16, 16],
    ]
    assert [torus_axis_sizes(n, 3) for n in (4, 64, 128)] == [[1, 2, 2], [4, 4, 4], [4, 4, 8]]


def test_all_to_all_of_a_pod_is_bound_by_its_bisection():
    """256 chips of v6e with 3.2 TB/s between halves (Google): 128 of them send half each."""
    link = catalog.link("ici-tpu-v6e")
    cluster = Cluster(catalog.device("tpu-v6e"), (Level(256, link),))
    fabric = fabric_of_group(cluster, range(256))
    assert fabric is not None
    by_halves = 128 * 0.5e9 / 3.2e12
    assert all_to_all(1e9, 256, fabric) == pytest.approx(by_halves, rel=0.01)
    assert all_gather(1e9, 256, fabric) == pytest.approx(1e9 * 255 / 256 / 400e9)


def test_a_group_inside_a_node_has_the_links_of_its_number():
    levels = (Level(8, catalog.link("xgmi-mi300x")), Level(4, catalog.link("infiniband-ndr"), 8))
    cluster = Cluster(catalog.device("mi300x"), levels)
    pair = fabric_of_group(cluster, (0, 1))
    across = fabric_of_group(cluster, (0, 1, 8, 9))
    assert pair is not None
    assert across is not None
    assert pair.between.bytes_per_s == pytest.approx(64e9)
    assert isinstance(across.inside, Link)
    assert across.inside.bytes_per_s == pytest.approx(64e9)
    assert across.between.bytes_per_s == 50e9


@pytest.mark.parametrize(("links", "gigabits_per_s"), [(1, 400), (2, 800), (8, 3200)])
def test_a_node_of_400_gbit_is_eight_times_slower_than_one_of_3200(links, gigabits_per_s):
    """Eight groups share the cards of a node: of 4 GB each has its share in links / 8 of a card."""
    levels = (Level(8, catalog.link("nvlink-4")), Level(2, catalog.link("infiniband-ndr"), links))
    fabric = fabric_of_group(Cluster(catalog.device("h100"), levels), (0, 8))
    assert fabric is not None
    each = gigabits_per_s / 8 / 8 * 1e9
    assert fabric.slowest_link_s(4e9, 1, 2) == pytest.approx(4e9 / each)


def test_every_topology_has_a_source_a_kind_and_a_link():
    rows = read_packaged_toml("topologies.toml")
    links = {catalog.link(name).topology for name in catalog.link_names()} - {""}
    assert links == set(rows)
    assert all(row["source"] and row["kind"] in KINDS for row in rows.values())


def test_an_unknown_topology_is_one_line():
    link = Link("mine", None, 1e9, "a test", topology="torus")
    with pytest.raises(InputError, match="mine: unknown topology 'torus'; did you mean 'torus-"):
        effective_link(link, 8, 8)


@pytest.mark.parametrize(
    ("device", "link", "inside"),
    [
        ("tpu-v5e", "ici-tpu-v5e", None),
        ("mi300x", "xgmi-mi300x", None),
        ("v100-sxm2-16gb", "nvlink-2-dgx1", None),
        ("rtx-4090", "pcie-4-x16-host", None),
        ("l40s", "pcie-4-x16-bridges", None),
        ("h100-sxm5", "nvlink-4", None),
        ("mi300x", "infiniband-ndr", "xgmi-mi300x"),
    ],
)
def test_scaling_and_planning_have_the_same_of_a_link(device, link, inside):
    near = inside and catalog.link(inside)
    for workers in (2, 4, 8, 16):
        if inside and workers < 16:
            continue  # inside of a node there is no other
        between = catalog.link(link)
        fabric = Fabric(between, near, per_node=8, links_per_node=8) if near else between
        types = catalog.device(device).datasheet.peak_flop_per_s
        model = StepModel("gpt2", device, fabric, dtype=next(iter(types)))
        levels = (Level(8, near), Level(workers // 8, between, 8)) if near else None
        cluster = Cluster(catalog.device(device), levels or (Level(workers, between),))
        planned = fabric_of_group(cluster, range(workers))
        assert planned is not None
        joined = model.method.join_devices(planned, model.device.datasheet.memory_bytes_per_s)
        for name in ("ring", "tree", "halving-doubling"):
            told = model.startup.add_to(model.collectives[name](1e9, workers, joined), joined)
            assert model.collective_s(name, 1e9, workers) == pytest.approx(told, rel=1e-12)
