"""Collectives: closed forms by hand, messages played one by one, Paleo's own numbers, overlap."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from every import every
from steptime.core.errors import InputError
from steptime.core.exchange import BUCKET_BYTES
from steptime.hardware import catalog
from steptime.hardware.device import Link
from steptime.hardware.topology import effective_link
from steptime.paleo.method import PUBLISHED, without_latency
from steptime.prediction import cost_model
from steptime.prediction.collectives import (
    COLLECTIVES,
    EXCHANGES,
    STARTUP_SPREAD,
    all_reduce,
    collective_spread,
    exposed_all_reduce_s,
    in_switch,
    ring,
)
from steptime.prediction.fabric import Fabric, derate_fabric, fabric_of

SLOW = Link("slow", 1000.0, 1.0, "made up")  # a message of b bytes takes 1000 + b seconds
QUICK = Link("quick", 10.0, 4.0, "made up")  # 10 + b / 4
FABRIC = Fabric(SLOW)


@every(
    ("name", "workers", "messages"),
    [
        ("one-to-all", 2, [64] * 2),
        ("one-to-all", 5, [64] * 8),  # 4 in, 4 out
        ("butterfly", 5, [64] * 3),
        ("butterfly", 8, [64] * 3),
        ("butterfly-mixing", 5, [64]),
        ("ring", 2, [32] * 2),
        ("ring", 4, [16] * 6),
        ("halving-doubling", 2, [32] * 2),
        ("halving-doubling", 8, [32, 16, 8, 8, 16, 32]),
        ("halving-doubling", 5, [64, 32, 16, 16, 32, 64]),  # 4, and one too many
        ("hierarchical", 4, [16] * 6),  # in one node: a ring
        ("hierarchical", 8, [8] * 14),
        ("hierarchical", 16, [8] * 14 + [32] * 2),  # 2 nodes of 8, each with one link
        ("parameter-server", 4, [64] * 8),  # one server with all of it: 4 in, 4 out
    ],
)
def test_closed_forms_by_hand(name, workers, messages):
    expected = sum(1000 + size_bytes for size_bytes in messages)
    assert COLLECTIVES[name](64, workers, FABRIC) == expected


def test_a_double_tree_by_hand():
    # 3 levels up and down wait for a latency each; the gradient goes twice through every link
    tree = COLLECTIVES["tree"]
    assert tree(64, 8, FABRIC) == tree(64, 5, FABRIC) == 6 * 1000 + 2 * 64
    assert tree(64, 2, FABRIC) == 2 * 1000 + 2 * 64
    assert PUBLISHED["tree"](64, 8, FABRIC) == 6 * 64  # Paleo's sends it whole on every level
    # 3 nodes of 4: two levels inside, two between; the slow link is the narrowest
    nodes = Fabric(SLOW, inside=QUICK, per_node=4)
    assert tree(64, 12, nodes) == 2 * (2 * 10 + 2 * 1000) + 2 * 64
    assert tree(64, 4, nodes) == 2 * 2 * 10 + 2 * 64 / 4  # one node: the slow link plays no part


NODES = Fabric(SLOW, inside=QUICK, per_node=4)  # links of 4 bytes a second inside, of 1 between


@every(
    ("name", "seconds"),
    [  # 12 devices on 3 nodes of 4, 240 bytes
        ("one-to-all", 2 * (3 * (10 + 60) + 8 * (1000 + 240))),
        ("butterfly", 2 * (10 + 60) + 2 * (1000 + 4 * 240)),  # four of a node share its link
        ("butterfly-mixing", 1000 + 4 * 240),
        ("ring", 18 * 10 + 4 * 1000 + 22 * 20),  # 4 of its 22 messages cross
        ("halving-doubling", 2 * (10 + 30 + 10 + 15 + 1000 + 4 * 30 + 10 + 60)),  # 8, and a few
        ("hierarchical", 6 * (10 + 15) + 4 * (1000 + 80)),
        ("parameter-server", 2 * 12 * (1000 + 240)),
    ],
)
def test_what_stays_in_a_node_pays_no_latency_between_nodes(name, seconds):
    assert COLLECTIVES[name](240, 12, NODES) == pytest.approx(seconds, rel=1e-14)
    alone = COLLECTIVES[name](240, 4, NODES)  # one node: as if the quick link were all there is
    if name != "parameter-server":
        assert alone == pytest.approx(COLLECTIVES[name](240, 4, Fabric(QUICK)), rel=1e-14)


@every("name", COLLECTIVES)
def test_several_links_of_a_node_help_every_scheme(name):
    if name == "in-switch":  # which joins no nodes
        return
    free = replace(NODES, between=replace(SLOW, latency_s=None))
    one, four = (
        COLLECTIVES[name](2400, 12, replace(free, links_per_node=links)) for links in (1, 4)
    )
    assert four < one
    # as much as it would cost that four groups use the links of a node at once
    shared = replace(free, links_per_node=4, groups=4)
    assert COLLECTIVES[name](2400, 12, shared) == pytest.approx(one, rel=1e-14)


def test_adding_up_is_memory_traffic():
    # 4 devices and 64 bytes at 8 bytes a second of memory: 3 bytes move for each that is added
    adds = replace(FABRIC, memory_bytes_per_s=8.0)
    added = {
        "one-to-all": 3 * 64,
        "tree": 64,
        "butterfly": 2 * 64,
        "butterfly-mixing": 64,
        "ring": 3 / 4 * 64,
        "halving-doubling": 32 + 16,
        "hierarchical": 3 / 4 * 64,
        "parameter-server": 0,  # on machines of their own
    }
    for name, size in added.items():
        more = COLLECTIVES[name](64, 4, adds) - COLLECTIVES[name](64, 4, FABRIC)
        assert more == pytest.approx(3 * size / 8), name


def test_a_measured_link_has_adding_up_in_its_rate():
    assert fabric_of(SLOW, 1.0, 8.0).memory_bytes_per_s == 8.0
    measured = replace(SLOW, measured={"processes": 2})
    assert fabric_of(measured, 1.0, 8.0).memory_bytes_per_s is None
    assert without_latency(fabric_of(SLOW, 1.0, 8.0)) == Fabric(replace(SLOW, latency_s=None))


def test_every_link_of_a_fabric_runs_at_what_it_reaches():
    """The published rate has adding up; without one a link runs at its datasheet's."""
    quick = replace(SLOW, bus_bytes_per_s=0.5)
    inner = Fabric(quick, inside=QUICK, per_node=4)
    found = cost_model("analytic").join_devices(Fabric(quick, inside=inner, per_node=8), 8.0)
    assert isinstance(found.inside, Fabric)
    assert (found.between.bytes_per_s, found.inside.between.bytes_per_s) == (0.5, 0.5)
    assert found.inside.inside == QUICK
    assert found.memory_bytes_per_s is None
    assert found.message_s(8) == 1000 + 8 / 0.5
    assert cost_model("analytic").join_devices(SLOW, 8.0) == Fabric(SLOW, memory_bytes_per_s=8.0)
    published = cost_model("paleo").join_devices(quick, 8.0)
    assert published == Fabric(replace(quick, latency_s=None))
    assert quick.faster(2).for_collectives.bytes_per_s == 1.0
    assert SLOW.faster(2) == replace(SLOW, bytes_per_s=2 * SLOW.bytes_per_s)


def test_other_exchanges_by_hand():
    adds = replace(FABRIC, memory_bytes_per_s=8.0)
    assert EXCHANGES["all_gather"](64, 4, adds) == 3 * (1000 + 16)
    assert EXCHANGES["reduce_scatter"](64, 4, adds) == 3 * (1000 + 16) + 3 * 48 / 8
    assert EXCHANGES["all_to_all"](64, 4, adds) == 1000 + 3 * 16  # all are posted at once
    assert EXCHANGES["send"](64, 4, adds) == 1000 + 64
    # 3 nodes of 4: three partners inside, eight outside, for which four devices share a link
    assert EXCHANGES["all_to_all"](240, 12, NODES) == 10 + 3 * 5 + 1000 + 8 * 4 * 20
    assert EXCHANGES["send"](240, 4, NODES) == 10 + 60
    assert EXCHANGES["all_gather"](240, 12, NODES) == 9 * 10 + 2 * 1000 + 11 * 20


@every("name", EXCHANGES)
def test_one_device_has_nothing_to_exchange(name):
    assert EXCHANGES[name](64, 1, replace(NODES, memory_bytes_per_s=8.0)) == 0


@pytest.mark.slow
@given(st.integers(1, 300), st.floats(0, 1e12), st.integers(1, 16))
def test_scattering_and_gathering_are_the_halves_of_a_ring(devices, size, per_node):
    fabric = replace(NODES, per_node=per_node, memory_bytes_per_s=1e9)
    halves = (EXCHANGES[name](size, devices, fabric) for name in ("all_gather", "reduce_scatter"))
    assert sum(halves) == pytest.approx(COLLECTIVES["ring"](size, devices, fabric), rel=1e-12)


@every(
    ("servers", "messages"),
    [
        (1, [64] * 12),  # 6 workers push to the server, then pull
        (2, [32] * 12),  # a server holds half; two of them: twice as fast but for the latency
        (6, [64 / 6] * 12),  # as many servers as workers: both are as busy
        (8, [8] * 16),  # more servers than workers: a worker's own link is full with 8 messages
    ],
)
def test_servers_share_the_load_until_workers_are_the_bottleneck(servers, messages):
    expected = sum(1000 + size_bytes for size_bytes in messages)
    fabric = replace(FABRIC, servers=servers)
    assert COLLECTIVES["parameter-server"](64, 6, fabric) == pytest.approx(expected, rel=1e-15)


def test_hierarchical_by_hand():
    # 3 nodes of 4 with 240 bytes: inside 2 * 3 messages of 60 over the quick link, between 2 * 2
    # rounds in which a node sends 240 / 3 over its one link
    fabric = Fabric(SLOW, inside=QUICK, per_node=4)
    hierarchical = COLLECTIVES["hierarchical"]
    assert hierarchical(240, 12, fabric) == 6 * (10 + 60 / 4) + 4 * (1000 + 80)
    # a link for each of the 4 devices: each sends 60 / 3; two links: 40 each
    own = replace(fabric, links_per_node=4)
    assert hierarchical(240, 12, own) == 6 * (10 + 60 / 4) + 4 * (1000 + 20)
    two = replace(fabric, links_per_node=2)
    assert hierarchical(240, 12, two) == 6 * (10 + 60 / 4) + 4 * (1000 + 40)
    # more links than devices help nobody, and a node that is not full counts as a full one
    assert hierarchical(240, 12, replace(fabric, links_per_node=9)) == hierarchical(240, 12, own)
    assert hierarchical(240, 9, fabric) == hierarchical(240, 12, fabric)
    # groups of one are a ring
    single = Fabric(SLOW, inside=QUICK, per_node=1)
    assert hierarchical(240, 12, single) == COLLECTIVES["ring"](240, 12, single)


def test_efficiency_divides_bandwidth_and_leaves_latency():
    half = replace(FABRIC, efficiency=0.5)
    assert COLLECTIVES["ring"](64, 4, half) == 6 * (1000 + 16 * 2)
    assert PUBLISHED["tree"](64, 4, half) == 4 * 64 * 2


# Messages played one by one. A state says whose gradients are in the sum that a worker has of a
# chunk; a round is a list of messages (from, to, chunks, whether they are added).
State = list[list[frozenset[int]]]
Message = tuple[int, int, Sequence[int], bool]
Round = tuple[list[Message], Callable[[float], float]]  # and the seconds of a message of so much


def play(rounds: Iterable[Round], workers: int, chunks: int, size_bytes: float, idle: int) -> float:
    """Return the seconds of the rounds, having checked that all workers end with the whole sum.

    A worker has one message going out and one coming in at a time. `idle` more machines begin with
    nothing.
    """
    state: State = [[frozenset((worker,))] * chunks for worker in range(workers)]
    state += [[frozenset()] * chunks for _ in range(idle)]
    seconds = 0.0
    for messages, message_s in rounds:
        before = [list(sums) for sums in state]
        busy: defaultdict[tuple[str, int], float] = defaultdict(float)
        for source, target, sent, added in messages:
            time = message_s(len(sent) * size_bytes / chunks)
            busy["out", source] += time
            busy["in", target] += time
            for chunk in sent:
                old, new = state[target][chunk], before[source][chunk]
                assert not (added and old & new)  # nothing is added twice
                state[target][chunk] = old | new if added else new
        seconds += max(busy.values())
    everyone = frozenset(range(workers))
    assert all(sums == [everyone] * chunks for sums in state[:workers])
    return seconds


def one_to_all_rounds(n: int) -> Iterator[list[Message]]:
    yield [(worker, 0, [0], True) for worker in range(1, n)]
    yield [(0, worker, [0], False) for worker in range(1, n)]


def butterfly_rounds(n: int) -> Iterator[list[Message]]:
    for level in range(n.bit_length() - 1):
        yield [(worker, worker ^ 2**level, [0], True) for worker in range(n)]


def ring_rounds(n: int) -> Iterator[list[Message]]:
    for step in range(n - 1):
        yield [(w, (w + 1) % n, [(w - step) % n], True) for w in range(n)]
    for step in range(n - 1):
        yield [(w, (w + 1) % n, [(w + 1 - step) % n], False) for w in range(n)]


def halving_rounds(n: int) -> Iterator[list[Message]]:
    p = 2 ** (n.bit_length() - 1)
    too_many = range(p, n)
    if too_many:
        yield [(worker, worker - p, range(p), True) for worker in too_many]
    distances = [p >> level for level in range(1, p.bit_length())]
    for distance in distances:  # of its block of 2 * distance chunks a worker gives half away
        yield [(w, w ^ distance, half_of(w ^ distance, distance), True) for w in range(p)]
    for distance in reversed(distances):
        yield [(w, w ^ distance, half_of(w, distance), False) for w in range(p)]
    if too_many:
        yield [(worker - p, worker, range(p), False) for worker in too_many]


def half_of(worker: int, distance: int) -> range:
    """Return the chunks that a worker keeps once partners so far away have split theirs."""
    start = worker // distance * distance
    return range(start, start + distance)


def server_rounds(n: int, servers: int) -> Iterator[list[Message]]:
    yield [(w, n + k, [k], True) for w in range(n) for k in range(servers)]
    yield [(n + k, w, [k], False) for w in range(n) for k in range(servers)]


@every("n", [2, 3, 4, 5, 6, 7, 8, 9, 12, 16])
def test_messages_played_one_by_one_take_the_closed_form(n):
    plays = {
        "one-to-all": (one_to_all_rounds(n), 1),
        "ring": (ring_rounds(n), n),
        "halving-doubling": (halving_rounds(n), 2 ** (n.bit_length() - 1)),
    }
    if n & (n - 1) == 0:
        plays["butterfly"] = (butterfly_rounds(n), 1)
    for name, (rounds, chunks) in plays.items():
        timed = ((messages, FABRIC.message_s) for messages in rounds)
        played = play(timed, n, chunks, 5040.0, idle=0)
        assert COLLECTIVES[name](5040.0, n, FABRIC) == pytest.approx(played, rel=1e-13), name


@every(("n", "servers"), [(2, 1), (5, 1), (5, 3), (4, 4), (3, 5)])
def test_servers_played_one_by_one_take_the_closed_form(n, servers):
    timed = ((messages, FABRIC.message_s) for messages in server_rounds(n, servers))
    played = play(timed, n, servers, 5040.0, idle=servers)
    formula = COLLECTIVES["parameter-server"](5040.0, n, replace(FABRIC, servers=servers))
    assert formula == pytest.approx(played, rel=1e-13)


def hierarchical_rounds(nodes: int, per_node: int, fabric: Fabric) -> Iterator[Round]:
    """Return rings inside, between and inside; slot s of a node reduces block s + 1 of g blocks."""

    def block(index: int) -> range:
        return range(index % per_node * nodes, index % per_node * nodes + nodes)

    def inside(step: int, first: int, added: bool) -> Round:
        devices = [(node, slot) for node in range(nodes) for slot in range(per_node)]
        messages: list[Message] = [
            (
                node * per_node + slot,
                node * per_node + (slot + 1) % per_node,
                block(slot + first - step),
                added,
            )
            for node, slot in devices
        ]
        return messages, fabric.inside_message_s

    for step in range(per_node - 1):
        yield inside(step, 0, True)
    for messages in ring_rounds(nodes):
        between: list[Message] = [
            (
                source * per_node + slot,
                target * per_node + slot,
                [block(slot + 1)[chunk] for chunk in chunks],
                added,
            )
            for source, target, chunks, added in messages
            for slot in range(per_node)
        ]
        yield between, lambda size_bytes: fabric.message_s(size_bytes, per_node)
    for step in range(per_node - 1):
        yield inside(step, 1, False)


@every(("nodes", "per_node"), [(1, 4), (2, 2), (3, 4), (4, 3), (5, 1)])
def test_hierarchy_played_one_by_one_takes_the_closed_form(nodes, per_node):
    fabric = Fabric(SLOW, inside=QUICK, per_node=per_node, links_per_node=per_node)
    n = nodes * per_node
    played = play(hierarchical_rounds(nodes, per_node, fabric), n, n, 5040.0, idle=0)
    formula = COLLECTIVES["hierarchical"](5040.0, n, fabric)
    assert formula == pytest.approx(played, rel=1e-13)


def test_names_and_order():
    assert list(COLLECTIVES) == [
        "one-to-all",
        "tree",
        "butterfly",
        "butterfly-mixing",
        "ring",
        "in-switch",
        "halving-doubling",
        "hierarchical",
        "parameter-server",
    ]
    assert list(PUBLISHED) == list(COLLECTIVES)[:4]


@every("name", COLLECTIVES)
def test_one_worker_exchanges_nothing(name):
    assert COLLECTIVES[name](64, 1, replace(FABRIC, servers=3)) == 0


def test_one_worker_of_paleo_mixes_with_itself():
    assert {name: PUBLISHED[name](64, 1, FABRIC) for name in PUBLISHED} == {
        "one-to-all": 0,
        "tree": 0,
        "butterfly": 0,
        "butterfly-mixing": 64,
    }


@every("name", sorted(PUBLISHED.keys() - {"tree"}))  # ours are the two of NCCL
def test_paleo_is_ours_without_latency(name):
    free = Fabric(catalog.link("ethernet20"), efficiency=0.72)
    for workers in (2, 3, 7, 8, 128):
        assert PUBLISHED[name](1e8, workers, free) == COLLECTIVES[name](1e8, workers, free)
        assert PUBLISHED[name](64, workers, FABRIC) < COLLECTIVES[name](64, workers, FABRIC)


def test_all_rows_of_the_original(shared):
    rows = json.loads((shared / "paleo/comm_schemes.json").read_text())
    columns = {
        "one-to-all": "OneToAll",
        "tree": "TreeAllReduce",
        "butterfly": "ButterflyAllReduce",
        "butterfly-mixing": "ButterflyMixing",
    }
    assert len(rows) == 192
    for row in rows:
        fabric = Fabric(catalog.link(row["network"]), efficiency=row["ppp_comm"])
        for name, column in columns.items():
            ours_s = PUBLISHED[name](row["data_bytes"], row["workers"], fabric)
            assert ours_s * 1e3 == pytest.approx(row[column], rel=1e-12), row


@given(
    st.sampled_from(sorted(COLLECTIVES)),
    st.integers(1, 5000),
    st.floats(0, 1e12),
    st.floats(0, 1e12),
    st.integers(1, 16),
    st.integers(1, 16),
)
def test_more_bytes_never_take_less_time(name, workers, fewer, more, per_node, servers):
    fabric = Fabric(SLOW, inside=QUICK, per_node=per_node, servers=servers)
    fewer, more = sorted((fewer, more))
    low_s, high_s = (COLLECTIVES[name](size, workers, fabric) for size in (fewer, more))
    assert 0 <= low_s <= high_s * (1 + 1e-14)  # its last digit is rounding


def test_ring_with_more_workers_never_takes_less_time():
    times = [COLLECTIVES["ring"](1e6, workers, FABRIC) for workers in range(1, 1000)]
    assert times == sorted(times)
    latencies = [COLLECTIVES["ring"](0, workers, FABRIC) for workers in range(1, 1000)]
    assert latencies == [2000 * (workers - 1) for workers in range(1, 1000)]


def test_a_ring_moves_least_and_halving_waits_least():
    # large gradients: ring and halving take 2 (n - 1) / n of a transfer, the others more
    free = Fabric(replace(SLOW, latency_s=None))
    large = {name: COLLECTIVES[name](6400, 64, free) for name in COLLECTIVES}
    least = 2 * 63 / 64 * 6400
    assert large["ring"] == pytest.approx(least)
    assert large["halving-doubling"] == pytest.approx(least)
    full = ("one-to-all", "tree", "butterfly", "parameter-server")
    assert all(large[name] > least for name in full)
    # small ones: 12 messages one after the other instead of 126
    ring, halving = (COLLECTIVES[name](0, 64, FABRIC) for name in ("ring", "halving-doubling"))
    assert (ring, halving) == (126_000, 12_000)


def test_the_spread_of_a_collective_is_that_of_its_start_or_of_its_link():
    fabric = Fabric(catalog.link("nvlink-3"))
    assert collective_spread(0.0, fabric) == STARTUP_SPREAD
    assert collective_spread(1.0, fabric) == fabric.spread
    assert collective_spread(0.5, fabric) == pytest.approx(
        0.5 * (STARTUP_SPREAD**2 + fabric.spread**2) ** 0.5
    )


def test_unknown_latencies_have_names():
    torus, neuron = catalog.link("ici-tpu-v4"), catalog.link("neuronlink-3")
    assert Fabric(torus, inside=neuron).without_latency == ("ici-tpu-v4", "neuronlink-3")
    assert Fabric(SLOW, inside=neuron).without_latency == ("neuronlink-3",)
    assert Fabric(torus, inside=torus).without_latency == ("ici-tpu-v4",)
    assert Fabric(SLOW).without_latency == ()


@every(
    ("wrong", "message"),
    [
        ({"per_node": 0}, "per_node must be at least 1, not '0'"),
        ({"links_per_node": -1}, "links_per_node must be at least 1, not '-1'"),
        ({"servers": 0}, "servers must be at least 1, not '0'"),
        ({"efficiency": 0.0}, "the efficiency of a link must be positive, not '0.0'"),
        ({"efficiency": float("nan")}, "the efficiency of a link must be positive, not 'nan'"),
    ],
)
def test_wrong_fabrics(wrong, message):
    with pytest.raises(InputError) as error:
        Fabric(SLOW, **wrong)  # type: ignore[arg-type]
    assert str(error.value) == message


READY = [(1.0, 10.0), (2.0, 10.0), (3.0, 4.0)]


def test_overlap_by_hand():
    # 1 .. 2.5, then (full at 2) 2.5 .. 4, then (full at 3) 4 .. 5.5
    assert exposed_all_reduce_s(READY, lambda size: 1.5, 3.0, bucket_bytes=10) == 2.5
    # buckets of 20 and 4: 2 .. 4 and 4 .. 4.4; a byte takes 0.1 s
    assert exposed_all_reduce_s(
        READY, lambda size: size / 10, 3.0, bucket_bytes=11
    ) == pytest.approx(1.4)
    # quick enough: only the last exchange is left
    assert exposed_all_reduce_s(
        READY, lambda size: size / 100, 3.0, bucket_bytes=10
    ) == pytest.approx(0.04)


def test_one_large_bucket_overlaps_nothing():
    sizes: list[float] = []

    def one(size_bytes: float) -> float:
        sizes.append(size_bytes)
        return 7.0

    assert exposed_all_reduce_s(READY, one, 3.0) == 7.0
    assert sizes == [24.0]
    assert BUCKET_BYTES == 26_214_400


def test_an_endless_bandwidth_leaves_nothing_to_wait_for():
    assert exposed_all_reduce_s(READY, lambda size: 0.0, 3.0, bucket_bytes=1) == 0
    # nor does an exchange that ends before the backward pass
    assert exposed_all_reduce_s(READY, lambda size: 1.0, 30.0, bucket_bytes=1) == 0


def test_ops_without_weights_fill_no_bucket():
    with_others = [(0.5, 0.0), *READY, (9.0, 0.0)]
    for bucket_bytes in (1, 10, 11, 100):
        assert exposed_all_reduce_s(
            with_others, lambda size: 1.5, 3.0, bucket_bytes
        ) == exposed_all_reduce_s(READY, lambda size: 1.5, 3.0, bucket_bytes)
    assert exposed_all_reduce_s([(1.0, 0.0)], lambda size: 1.5, 1.0) == 0
    assert exposed_all_reduce_s([], lambda size: 1.5, 1.0) == 0


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 100)), max_size=20),
    st.floats(0.1, 200),
    st.floats(0, 10),
)
def test_overlap_is_never_worse_than_waiting_for_all(steps, bucket_bytes, byte_s):
    ready, now = [], 0.0
    for step_s, size_bytes in steps:
        now += step_s
        ready.append((now, size_bytes))
    exposed = exposed_all_reduce_s(ready, lambda size: size * byte_s, now, bucket_bytes)
    everything = sum(size_bytes for _, size_bytes in ready) * byte_s
    assert 0 <= exposed <= everything * (1 + 1e-12) + 1e-12


SWITCH = Link("switch", 1e-6, 450e9, "by hand", switch_bytes_per_s=300e9)


def test_a_switch_adds_up_in_one_pass():
    """Each of n devices sends its gradient once, and reads its own part back: 1 + 1/n of it."""
    for n in (2, 4, 8):
        expected = 2e-6 + 1e9 * (1 + 1 / n) / 300e9
        assert in_switch(1e9, n, Fabric(SWITCH)) == pytest.approx(expected)
    assert in_switch(1e9, 1, Fabric(SWITCH)) == 0
    assert in_switch(1e9, 4, Fabric(QUICK)) == inf
    assert in_switch(1e9, 16, Fabric(QUICK, inside=SWITCH)) == inf  # over nodes
    assert all_reduce(1e9, 2, Fabric(SWITCH)) == ring(1e9, 2, Fabric(SWITCH))
    assert all_reduce(1e9, 8, Fabric(SWITCH)) == in_switch(1e9, 8, Fabric(SWITCH))


@pytest.mark.parametrize(("name", "bus_gb_per_s"), [("nvlink-4", 480), ("nvlink-5", 838)])
def test_eight_devices_reach_the_published_rate_of_their_switch(name, bus_gb_per_s):
    fabric = derate_fabric(Fabric(catalog.link(name)))
    seconds = in_switch(16e9, 8, fabric)
    assert 16e9 * 2 * 7 / 8 / seconds / 1e9 == pytest.approx(bus_gb_per_s, rel=0.01)


def test_every_link_says_what_it_reaches_and_how_sure_that_is():
    paleo = {"aws", "ethernet", "ethernet20", "infiniband", "pcie2", "pcie3"}
    for name in set(catalog.link_names()) - paleo:
        link = catalog.link(name)
        assert link.for_collectives.bytes_per_s < link.bytes_per_s, name
        assert link.bus_source, name
        assert 0 < link.spread <= 0.5, name
        slow, quick = (Fabric(link).with_link_rates(end).between.bytes_per_s for end in (-1, 1))
        assert slow * quick == pytest.approx(link.bytes_per_s**2)


def test_gaudi_has_three_of_its_ports_between_nodes():
    for name in ("roce-gaudi2", "roce-gaudi3"):
        inside, outside = catalog.link(name), catalog.link(f"{name}-scale-out")
        assert inside.bytes_per_s == 7 * outside.bytes_per_s
        assert effective_link(inside, 8, 2).bytes_per_s == outside.bytes_per_s  # 3 ports a pair
    assert catalog.link("ici-tpu-v4").bytes_per_s == 6 * 50e9
    assert catalog.link("roce-400").bytes_per_s == catalog.link("infiniband-ndr").bytes_per_s
