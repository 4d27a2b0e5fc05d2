import math
from dataclasses import replace

import numpy as np
import pytest

from every import every
from steptime.build import make_workload, read_model
from steptime.calibration.cases import Case, op_kernels, priors_of, step_kernels
from steptime.calibration.choice import choose_cases
from steptime.calibration.columns import Columns
from steptime.calibration.device import calibrate, fit_intervals, moved_constants
from steptime.calibration.evaluate import score, score_after_calibration
from steptime.calibration.fit import constants_of, fit_constants, leave_out_residuals, log_residuals
from steptime.core.errors import InputError
from steptime.core.toml_files import toml_text
from steptime.hardware import catalog
from steptime.hardware.device_file import device_from_table
from steptime.prediction import cost_model
from steptime.prediction.calibrated.interval import interval_name
from steptime.prediction.calibrated.method import METHOD
from steptime.prediction.steps.step_model import StepModel
from steptime.records.ratios import geometric_mean

V100 = catalog.device("v100-sxm2-16gb")


def streams(slower=1.0, noise=0.0):
    """Cases of additions, `slower` than the priors say."""
    draw = np.random.default_rng(1)
    shapes = [(2**i, 1000) for i in range(8, 20)]
    cases = [
        Case(op_kernels("add", (s, s), {}, "float32"), V100, 1.0, "add", "isolated") for s in shapes
    ]
    priors = constants_of(catalog.priors("gpu"))
    seconds = Columns(cases).predict_s(
        priors | {"stream.share_hbm": priors["stream.share_hbm"] / slower}
    )
    off = np.exp(noise * draw.standard_normal(len(cases)))
    return [replace(c, seconds=float(s)) for c, s in zip(cases, seconds * off, strict=True)]


def test_a_constant_of_0_is_moved_by_no_row():
    share = catalog.priors("gpu")["stream.share_hbm"]
    priors = {"none": share._replace(value=0.0), "some": share._replace(value=0.5)}
    assert moved_constants({"none": 0.0, "some": 0.5}, priors) == {}
    assert moved_constants({"none": 0.0, "some": 0.6}, priors) == {"some": 0.6}


def test_a_device_with_slow_memory_is_found_slow():
    table = calibrate(V100, streams(slower=1.25), points=None, source="twelve sums")
    share = catalog.priors("gpu")["stream.share_hbm"].value
    assert share / 1.3 <= table["alone"]["stream.share_hbm"] < share * 0.95
    assert table["errors"]["add"]["mape"] < 0.13  # of 0.2 without
    assert (table["points"], table["source"]) == (12, "twelve sums")


def test_ops_by_themselves_move_no_step():
    cases, steps = streams(slower=1.25), [replace(one, condition="step") for one in streams()]
    table = calibrate(V100, cases, points=None)
    assert table["constants"] == {}
    known = V100.with_calibration(table)
    for some, least, most in ((cases[-1:], 1.1, 1.3), (steps[-1:], 1.0, 1.0)):
        longer, took = (
            score([replace(one, device=at) for one in some], METHOD)[0] for at in (known, V100)
        )
        assert least <= longer.value / took.value <= most
    assert (longer.low, longer.high) == (took.low, took.high)  # of a step, as if none was told


def test_ops_move_constants_of_steps_that_confirm_them():
    slow, quick = (
        [replace(one, condition="step", seconds=one.seconds * by) for one in streams()[6:]]
        for by in (1.25, 1.0)
    )
    share = catalog.priors("gpu")["stream.share_hbm"].value
    ops = streams(slower=1.25)
    agreed, apart = (calibrate(V100, [*ops, *steps], points=None) for steps in (slow, quick))
    assert agreed["constants"]["stream.share_hbm"] < 0.95 * share
    assert apart["constants"].get("stream.share_hbm", share) > 0.97 * share
    assert apart["alone"]["stream.share_hbm"] < 0.9 * share


def linears(stack=""):
    """Cases of steps of one large product, a quarter longer than the priors say."""
    shapes = [((m, 4096), (4096, 4096)) for m in (1024, 2048, 3072, 4096)]
    cases = [
        Case(op_kernels("linear", s, {}, "float32"), V100, 1.0, "linear", "step", stack=stack)
        for s in shapes
    ]
    seconds = Columns(cases).predict_s(constants_of(catalog.priors("gpu", stack or "torch-eager")))
    return [replace(c, seconds=1.25 * float(s)) for c, s in zip(cases, seconds, strict=True)]


def test_what_ops_by_themselves_do_not_tell_is_as_steps_told_it():
    table = calibrate(V100, [*streams(slower=1.25), *linears() * 3], points=None)
    assert table["constants"]["product.share"] < catalog.priors("gpu")["product.share"].value
    assert "stream.share_hbm" in table["alone"]
    assert not {name for name in table["alone"] if name.startswith(("product.", "host."))}


def test_devices_of_one_name_are_predicted_each_by_its_own_constants():
    known = V100.with_calibration(calibrate(V100, streams(slower=1.25), points=None))
    one = streams()[-1]
    both = score([one, replace(one, device=known)], METHOD)
    assert both[1].value == score([replace(one, device=known)], METHOD)[0].value
    assert both[1].value > 1.1 * both[0].value


def test_constants_of_ops_by_themselves_are_counted_too():
    cases = streams(slower=1.05, noise=0.05)
    table = calibrate(V100, choose_cases(cases, 11, seed=0), None)
    assert table["alone"].keys() - table["constants"].keys()
    _, moved_count = score_after_calibration(cases, 11, draws=1)
    assert moved_count == len({**table["constants"], **table["alone"]})


def test_steps_are_of_the_stack_with_most_of_them():
    eager, others = linears(), [replace(one, seconds=9.0) for one in linears("torch-compile")[:3]]
    table = calibrate(V100, [*others, *eager], points=None)
    alike = calibrate(V100, eager, points=None)
    for name in ("stack", "points", "constants", "intervals"):
        assert table[name] == alike[name]
    assert table["stack"] == "torch-eager"
    assert calibrate(V100, linears("torch-compile"), points=None)["stack"] == "torch-compile"
    assert "stack" not in calibrate(V100, streams(), points=None)
    known = V100.with_calibration(table)
    for stack, notes in (("torch-eager", 0), ("torch-compile", 1)):
        model = StepModel("fc", known, method="calibrated", options={"stack": stack})
        line = "v100-sxm2-16gb is calibrated with steps of stack torch-eager"
        assert model.remarks().count(line) == notes


@every("points", [0, -1, 2.5])
def test_a_number_of_points_that_is_none_is_one_line(points):
    with pytest.raises(InputError, match="points: must be"):
        calibrate(V100, streams(), points)


def test_rows_that_the_priors_explain_move_nothing():
    table = calibrate(V100, streams())
    assert (table["constants"], table["alone"]) == ({}, {})


def test_the_table_is_part_of_a_device_file_and_prices_read_it(tmp_path):
    steps = [replace(one, condition="step") for one in streams(slower=1.25)]
    table = calibrate(V100, steps, points=None)
    peaks = {"float32": 15.7}
    said = {
        "name": "mine", "kind": "gpu", "source": "test", "memory_GB_per_s": 900,
        "peak_TFLOP_per_s": peaks, "calibration": table,
        "details": {"memory_type": "HBM2"},
    }  # fmt: skip
    path = tmp_path / "mine.toml"
    path.write_text(toml_text(said))
    mine = catalog.device(path)
    plain = device_from_table(said | {"calibration": {}}, "test")
    slow, fast = (
        StepModel("fc", one, method="calibrated", phase="infer").timeline(65536)
        for one in (mine, plain)
    )
    assert slow.step_s > fast.step_s
    found = METHOD.derate(mine, "float32", METHOD.settings).constants
    assert found["stream.share_hbm"] == table["constants"]["stream.share_hbm"]


def test_points_are_of_each_kind_and_of_all_sizes():
    cases = streams()
    cases += [replace(case, kind="other") for case in cases for _ in range(9)]
    some = choose_cases(cases, 12, seed=3)
    assert [case.kind for case in some].count("add") == 6
    sizes = sorted(case.kernels[0].bytes for case in some if case.kind == "add")
    assert sizes[-1] / sizes[0] > 100
    assert choose_cases(cases, 12, seed=3) == some
    assert choose_cases(cases, 12, seed=4) != some
    assert choose_cases(cases[:5], 12) == cases[:5]


def test_steps_are_drawn_as_often_as_a_table_has_their_size():
    steps = [replace(one, condition="step") for one in streams()]
    many = [*steps[:1] * 90, *steps[1:]]  # 90 of the smallest, 11 larger ones
    small = [one.kernels == steps[0].kernels for one in choose_cases(many, 10, seed=1)]
    assert small.count(True) in (8, 9, 10)
    alone = [replace(one, condition="isolated") for one in many]
    small = [one.kernels == steps[0].kernels for one in choose_cases(alone, 10, seed=1)]
    assert small.count(True) < 8


def test_left_out_is_what_a_fit_without_the_row_says():
    cases = streams(noise=0.1)
    priors = catalog.priors("gpu")
    constants = fit_constants([Columns(cases)], priors)
    shortcut = leave_out_residuals(Columns(cases), priors, constants)
    for i in (0, 6, 11):
        others = fit_constants([Columns(cases[:i] + cases[i + 1 :])], priors)
        off = math.log(cases[i].seconds / Columns(cases).predict_s(others)[i])
        assert shortcut[i] == pytest.approx(off, abs=0.01)


def test_a_row_that_is_left_out_is_no_farther_off_than_rows_are():
    shapes = (
        (91, 36, 351),
        (4065, 84, 25),
        (154, 3657, 115),
        (186, 1666, 1349),
        (1149, 5394, 3060),
    )
    seconds = (1.52e-5, 1.67e-5, 2.8e-5, 9.86e-5, 3.81e-3)  # the fourth is where a tile is split
    l4, priors = catalog.device("l4"), catalog.priors("gpu")
    rows = Columns(
        [
            Case(
                op_kernels("linear", ((m, k), (n, k)), {}, "float32"),
                l4,
                took,
                "linear",
                "repeated",
            )
            for (m, n, k), took in zip(shapes, seconds, strict=True)
        ]
    )
    constants = fit_constants([rows], priors)
    far = np.abs([log_residuals(rows, constants), log_residuals(rows, constants_of(priors))]).max()
    assert np.abs(leave_out_residuals(rows, priors, constants)).max() <= far < 2


def test_an_interval_leaves_out_one_in_ten_at_either_end():
    columns = Columns([replace(case, condition="repeated") for case in streams() * 3])
    constants = constants_of(catalog.priors("gpu"))
    own = constants["interval.stream_own"]
    off = own * np.linspace(-7, 7, 36)  # 0.4 widths apart; ten more are as the priors say
    found = fit_intervals(columns, constants, off)
    low, high = found["stream"]
    assert low == pytest.approx(own * (-7 + 3 * 0.4), rel=0.01)  # the fourth: floor(0.1 * 47)
    assert high == pytest.approx(own * (7 - 3 * 0.4), rel=0.01)
    widest = constants[f"interval.{interval_name('', constants)}_own"]
    assert found["all"][0] / low == pytest.approx(widest / own, rel=0.01)
    assert set(found) == {"all", "stream"}  # nothing is told of the host, nor of other forms


def test_what_a_calibration_was_not_told_is_as_wide_as_before():
    cases = streams(noise=0.02)
    made = V100.with_calibration(calibrate(V100, cases, None))
    conv = op_kernels("conv2d", ((8, 64, 28, 28), (64, 64, 3, 3)), {}, "float32")[0]
    add = cases[0].kernels[0]
    before, after = (METHOD.derate(one, "float32", METHOD.settings) for one in (V100, made))
    widths = [METHOD.price(one, at) for one in (conv, add) for at in (before, after)]
    was, now, sums, found = (one.high / one.low for one in widths)
    assert now == pytest.approx(was)
    assert found == sums  # of a step: these are ops by themselves
    own, left = (score([replace(cases[-1], device=at)], METHOD)[0] for at in (made, V100))
    assert own.high / own.low < left.high / left.low


def test_parts_of_one_network_are_left_out_together():
    cases = streams(noise=0.1)
    priors = catalog.priors("gpu")
    constants = fit_constants([Columns(cases)], priors)
    named = ["", *["net"] * 3, *[""] * 8]
    shortcut = leave_out_residuals(Columns(cases), priors, constants, families=named)
    others = fit_constants([Columns(cases[:1] + cases[4:])], priors)
    off = np.log([one.seconds for one in cases[1:4]] / Columns(cases[1:4]).predict_s(others))
    assert shortcut[1:4] == pytest.approx(off, abs=0.02)
    assert shortcut[0] == leave_out_residuals(Columns(cases), priors, constants)[0]


def test_no_row_is_one_line():
    with pytest.raises(InputError, match="v100-sxm2-16gb: no row"):
        calibrate(V100, [])


@every(
    "wrong",
    [
        {"steps": "abc"},
        {"steps": [[1.0, 0.1]]},
        {"steps": [[0.0, 1.0, 0.1]]},
        {"intervals": "all"},
        {"intervals": {"all": [0.1]}},
        {"constants": {"stream.share_hbm": "most"}},
        {"alone": {"stream.share_hbm": math.nan}},
        {"alone": [0.9]},
        {"intervals": {"product": [math.nan, 0.1]}},
        {"intervals": {"product": [-0.1, 1e6]}},
        {"intervals": {"product": [0.1, -0.1]}},
        {"infer": {"intervals": {"host": [0.1, -0.1]}}},
        {"train": {"intervals": {"host": [0.1]}}},
        {"steps": [[1.0, 1.0, math.nan]]},
        {"steps": [[1.0, 1.0, 1e300]]},
        {"products": {"matmul float32": [[1, 8, 8, 8, math.inf]]}},
        {"stack": 5},
    ],
)
def test_a_wrong_calibration_in_a_device_file_is_one_line(wrong):
    said = {
        "name": "mine", "kind": "gpu", "source": "test", "memory_GB_per_s": 900,
        "peak_TFLOP_per_s": {"float32": 15.7}, "calibration": wrong,
    }  # fmt: skip
    with pytest.raises(
        InputError, match=rf"mine.toml: 'calibration\.{next(iter(wrong))}[^']*' must be"
    ):
        device_from_table(said, "mine.toml")


T4 = catalog.device("t4")


def networks(phase, *times):
    """Nine fully connected networks, which take so many times what the priors say, in turn."""
    found, priors = [], constants_of(priors_of(T4))
    for layers in range(2, 11):
        network = read_model(f"fc:layers={layers},nodes=64,inputs=64,outputs=10")
        workload = make_workload(network, 16, "float32", phase, "sgd")
        one = Case(step_kernels(workload), T4, 1.0, "fc", "step")
        seconds = times[layers % len(times)] * float(Columns([one]).predict_s(priors)[0])
        found.append(replace(one, seconds=seconds, family=f"fc of {layers}"))
    return found


def scored_on(table, phase):
    """What a calibrated T4 says of such networks."""
    return score(
        [replace(one, device=T4.with_calibration(table)) for one in networks(phase, 1.0)],
        cost_model("calibrated"),
    )


@pytest.mark.slow
def test_trainings_tell_nothing_of_inference_on_a_gpu():
    """Trainings take twice as long as expected, inference half: each is predicted as it was."""

    def ratio(table, phase):
        return geometric_mean(np.array([one.ratio for one in scored_on(table, phase)]))

    trained = calibrate(T4, networks("train", 2.0), None)
    assert ratio(trained, "train") == pytest.approx(2.0, rel=0.2)
    assert ratio(trained, "infer") == pytest.approx(1.0, rel=1e-6)
    both = calibrate(T4, networks("train", 2.0) + networks("infer", 0.5), None)
    assert ratio(both, "infer") == pytest.approx(0.5, rel=0.2)
    assert "infer" not in calibrate(T4, networks("infer", 0.5), None)


def widths(table, phase):
    """By what factor the ends of intervals differ."""
    return [one.high / one.low for one in scored_on(table, phase)]


@pytest.mark.parametrize(("told", "other"), [("train", "infer"), ("infer", "train")])
def test_a_phase_of_which_no_step_tells_is_as_far_off_as_on_a_device_never_seen(told, other):
    table = calibrate(T4, networks(told, 1.0), None)
    table = device_from_table(
        {
            "name": "mine",
            "kind": "gpu",
            "source": "test",
            "memory_GB_per_s": 320,
            "peak_TFLOP_per_s": {"float32": 8.1},
            "calibration": table,
        },
        "mine.toml",
    ).calibration.table
    assert widths(table, other) == pytest.approx(widths({}, other), rel=1e-3)
    assert math.log(max(widths(table, told))) < 0.8 * math.log(min(widths({}, told)))


@pytest.mark.slow
def test_inference_is_as_far_off_as_inference_was():
    """Trainings miss by nothing, steps of inference by half: these alone have wide intervals."""
    both = calibrate(T4, networks("train", 1.0) + networks("infer", 0.6, 1.6), None)
    one = calibrate(T4, networks("train", 1.0), None)
    assert widths(both, "train") == pytest.approx(widths(one, "train"), rel=1e-3)
    held = [case.seconds for case in networks("infer", 0.6, 1.6)]
    found = scored_on(both, "infer")
    assert all(x.low < s < x.high for x, s in zip(found, held, strict=True))


def test_few_networks_are_as_far_off_as_their_mean_may_be():
    """A network 9 times is one network: cases that nobody measured are sqrt(2) times as far off."""
    told = [replace(case, family="one") for case in networks("infer", 1.0)]
    many = calibrate(T4, networks("infer", 1.0), None)["intervals"]["host"]
    one = calibrate(T4, told, None)["intervals"]["host"]
    assert one == pytest.approx([end * (2 / (10 / 9)) ** 0.5 for end in many], rel=0.02)
