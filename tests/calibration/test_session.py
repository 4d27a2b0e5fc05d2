"""A session on a machine that is made up: it takes what forms say under constants of its own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from steptime.calibration.cases import Case
from steptime.calibration.columns import Columns
from steptime.calibration.fit import constants_of
from steptime.calibration.points import NETWORK_STEP, Point, candidates
from steptime.calibration.session import MeasuredPoint, Session
from steptime.core.errors import InputError
from steptime.core.graph_json import graph_from_json
from steptime.hardware import catalog
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device

CPU = Device("four", "cpu", Datasheet({"float32": 4e11}, 4e10, "test", cores=4, l2_bytes=2**25))
PRIORS = catalog.priors("cpu")
POINTS = {one.name: one for one in candidates()}
SMALL = tuple(  # a handful keeps the tests quick
    POINTS[name]
    for name in (
        *("linear 64 1024 1024", "linear 256 256 256", "relu 1048576 infer", "relu 4194304 infer"),
        *("chain 100 8 8", "max_pool 8 32 56 3 2", "batch_norm 16 32 28 28"),
        *("fc:layers=2,nodes=64,inputs=64,outputs=10 8", "fc:layers=4,nodes=512,inputs=1000 128"),
    )
)


class Machine:
    """Answers requests as a worker does, of a device whose constants are `changed`; counts them."""

    def __init__(self, changed: Mapping[str, float], device: Device = CPU) -> None:
        self.constants = constants_of(PRIORS) | changed
        self.device = device
        self.asked: list[Mapping[str, Any]] = []
        self.heard: list[MeasuredPoint] = []
        self.now_s = 0.0
        self.busy: dict[str, float] = {}  # points that a neighbour makes longer, once, and by what

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        self.now_s += 0.5  # to prepare it
        said = request["graph"]
        name = next(n for n, p in POINTS.items() if same(p, said, request["optimizer"]))
        kernels = POINTS[name].kernels
        passes = dict.fromkeys(one.pass_ for one in kernels)
        parts = [tuple(one for one in kernels if one.pass_ == name) for name in passes]
        cases = [Case(part, self.device, 1.0, "", "repeated") for part in parts]
        times = Columns(cases).predict_s(self.constants)
        times[0] += self.constants["launch.step_s"]
        longer = self.busy.pop(name, 1.0)
        return {
            "seconds": dict(zip(passes, longer * times, strict=True)),
            "disturbed": 0.05 if longer == 1 else 0.5,
        }

    def session(self, most: int = 9, limit_s: float = 1e3, **more: Any) -> Session:
        return Session(
            self.device, self.ask, lambda one, _: self.heard.append(one), limit_s, most,
            most, clock=lambda: self.now_s, **more,
        )  # fmt: skip


def same(point: Point, said: Mapping[str, Any], optimizer: str) -> bool:
    graph = graph_from_json(said)
    return (point.phase, point.optimizer) == (said["phase"], optimizer) and (
        dict(point.graph.tensors) == {**point.graph.tensors, **graph.tensors}
        and len(point.graph.ops) == len(graph.ops)
    )


@pytest.fixture(autouse=True)
def few(monkeypatch):
    def some(dtypes: tuple[str, ...] = ("float32",)) -> Any:
        return iter(SMALL)

    monkeypatch.setattr("steptime.calibration.session.candidates", some)


def test_constants_of_the_machine_are_found():
    table = Machine({"vector.max_pool_cycles": 16.0}).session().run()
    assert table["constants"]["vector.max_pool_cycles"] == pytest.approx(16.0, rel=0.15)
    assert table["errors"]["all"]["mape"] < 0.1
    assert table["disturbed"] == 0.05


@pytest.mark.slow
def test_what_was_disturbed_is_measured_again_and_the_least_counts():
    quiet = Machine({}).session().run()
    machine = Machine({})
    machine.busy = {"relu 1048576 infer": 2.5, "chain 100 8 8": 1.8}
    table = machine.session().run()
    assert table["constants"] == quiet["constants"]
    assert table["check_mape"] < 0.01
    assert [one.point.name for one in machine.heard[9:-1]] == [
        one.point.name for one in machine.heard[:9] if one.disturbed > 0.1
    ]
    assert len(machine.heard[9:-1]) == 2


def test_without_time_nothing_is_measured_again():
    machine = Machine({})
    machine.busy = dict.fromkeys(POINTS, 2.0)
    machine.session(limit_s=1.9).run()
    assert len(machine.asked) == 5


def test_a_third_is_kept_back_and_the_first_point_comes_again():
    machine = Machine({})
    table = machine.session().run()
    assert [one.is_check for one in machine.heard] == [False, False, True] * 3 + [False]
    assert machine.heard[-1].point == machine.heard[0].point
    assert table["check_points"] == 3
    assert table["measured_points"] == 9
    assert table["drift"] == 0.0
    assert table["check_mape"] == pytest.approx(0, abs=0.02)


@pytest.mark.slow
def test_points_are_the_same_each_time():
    orders = []
    for _ in range(2):
        machine = Machine({"product.share": 0.8})
        machine.session().run()
        orders.append([one.point.name for one in machine.heard])
    assert orders[0] == orders[1]
    assert len(set(orders[0])) == 9


def test_time_ends_it():
    machine = Machine({})
    machine.session(limit_s=1.9).run()
    assert len(machine.asked) == 5  # of half a second each, of which one warms
    assert len(machine.heard) == 4  # three, and the first one again
    assert all(one["budget_s"] <= 1.9 for one in machine.asked)


def test_what_cannot_be_measured_is_said():
    machine = Machine({})
    answer: Callable[[Mapping[str, Any]], dict[str, Any]] = machine.ask

    def ask(request: Mapping[str, Any]) -> dict[str, Any]:
        found = answer(request)
        return {"note": "no kernel"} if len(request["graph"]["ops"]) == 101 else found

    session = machine.session()
    session.send_request = ask
    assert session.run()["failed"] == {"chain 100 8 8": "no kernel"}


def test_nothing_measured_is_an_error():
    session = Machine({}).session()
    session.send_request = lambda _: {"note": "none"}
    with pytest.raises(InputError, match="no row to calibrate with"):
        session.run()


def test_large_points_are_left_out_on_slow_devices():
    slow = Machine({}, CPU.with_figures(peak_flop_per_s={"float32": 1e7}))
    slow.session().run()
    names = {one.point.name for one in slow.heard}
    assert "linear 64 1024 1024" not in names  # 134 MFLOP at 10 MFLOP/s
    assert "chain 100 8 8" in names


GPU = catalog.device("t4").with_figures(peak_flop_per_s={"float32": 8e12, "bfloat16": 6e13})


@pytest.mark.slow
def test_a_gpu_is_timed_by_its_own_clock_and_works_for_seconds(monkeypatch):
    def some(dtypes: tuple[str, ...]) -> Any:
        assert dtypes == ("float32", "bfloat16")
        more = [replace(one, dtype="bfloat16") for one in SMALL[:2]]
        POINTS.update({one.name: one for one in more})
        return iter((*SMALL[:4], *more))

    monkeypatch.setattr("steptime.calibration.session.candidates", some)
    priors = catalog.priors("gpu")
    machine = Machine({})

    def ask(request: Mapping[str, Any]) -> dict[str, Any]:
        machine.asked.append(request)
        said = request["graph"]
        point = next(
            p
            for p in POINTS.values()
            if p.dtype == said["dtype"] and same(p, said, request["optimizer"])
        )
        rows = Columns([Case(point.kernels, GPU, 1.0, "", "step")])
        return {"seconds": {"step": rows.predict_s(constants_of(priors))[0]}, "disturbed": 0.0}

    session = Session(GPU, ask, lambda one, _: machine.heard.append(one), 1e3, 6, 6,
                      ("float32", "bfloat16"))  # fmt: skip
    table = session.run()
    assert table["errors"]["all"]["mape"] < 0.02
    long = [one for one in machine.asked if one["least_s"]]
    assert [one["least_s"] for one in long] == [4.0]  # T4: 70 W
    assert long[0]["graph"]["name"] == "linear"
    assert {one.point.dtype for one in machine.heard} == {"float32", "bfloat16"}


def test_short_steps_are_rows_and_of_longer_ones_the_passes():
    point = POINTS["fc:layers=4,nodes=512,inputs=1000 128"]
    long = {"forward": 2e-3, "backward": 4e-3, "update": 1e-4}  # an update below 0.2 ms is no row
    assert [one.seconds for one in point.cases(CPU, long)] == [2e-3, 4e-3]
    short = {"forward": 2e-4, "backward": 4e-4, "update": 1e-4}
    (one,) = point.cases(CPU, short)
    assert (one.seconds, one.condition) == (pytest.approx(7e-4), "step")
    (by_its_clock,) = point.cases(CPU, {"step": 3e-3})  # of a GPU
    assert by_its_clock.condition == "step"


def test_every_candidate_has_kernels_and_its_own_name():
    found = list(candidates(("float32", "bfloat16")))
    assert len({one.name for one in found}) == len(found)
    assert sum(one.kind == NETWORK_STEP for one in found) >= 10
    assert {one.dtype for one in found if one.kind == "stream"} == {"float32"}


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        (3, "[3/24, 0:20 left]"),
        (24, "[24/24, 0:20 left]"),
        (25, "[24/24 and 1 again, 0:20 left]"),
        (26, "[24/24 and 2 again, 0:20 left]"),
    ],
)
def test_progress_counts_no_more_points_than_there_are(measured, shown):
    from steptime.calibration.here import format_progress

    assert format_progress(measured, 24, 20.0) == shown
