"""Steps behind a host that take longer than constants say, told by those that were measured."""

import math
from dataclasses import replace

import numpy as np
import pytest

from every import every
from steptime.api import predict_op
from steptime.build import make_workload, read_model
from steptime.calibration.cases import Case, op_kernels, step_kernels
from steptime.calibration.columns import Columns
from steptime.calibration.device import calibrate
from steptime.calibration.evaluate import score, score_with_constants
from steptime.calibration.fit import constants_of
from steptime.calibration.residual_model import (
    MIN_ROWS,
    PRODUCT_NOISE,
    SPREAD,
    STEP_NOISE,
    learn_residuals,
)
from steptime.core.errors import InputError
from steptime.core.toml_files import toml_text
from steptime.grids.batch_steps import BatchSteps
from steptime.hardware import catalog
from steptime.prediction import cost_model
from steptime.prediction.host import Host, kernel_weighted_factor, step_similarity, wait_for_host
from steptime.prediction.steps.step_model import StepModel

V100 = catalog.device("v100-sxm2-16gb")
PRIORS = constants_of(catalog.priors("gpu"))
CALIBRATED = cost_model("calibrated")


def steps(count, miss=0.0):
    """Steps of so many layers, that take exp(miss) times what the priors say."""
    cases = []
    for layers in range(1, count + 1):
        work = make_workload(read_model(f"fc:layers={layers},nodes=64"), 32, optimizer="adam")
        cases.append(Case(step_kernels(work), V100, 1.0, "fc", "step", workload=work))
    seconds = Columns(cases).predict_s(PRIORS) * math.exp(miss)
    return [replace(c, seconds=float(s)) for c, s in zip(cases, seconds, strict=True)]


def device_of_file(folder, calibration):
    """A V100 read from a device file with this calibration."""
    path = folder / "mine.toml"
    said = {"name": "mine", "kind": "gpu", "source": "test", "memory_GB_per_s": 897}
    said |= {"peak_TFLOP_per_s": {"float32": 15.67}, "calibration": calibration}
    path.write_text(toml_text(said))
    return catalog.device(path)


def test_a_step_tells_of_those_that_are_like_it():
    told = [(1e-3, 4e-3, 0.1)]
    assert kernel_weighted_factor(told, step_similarity, 1e-3, 4e-3) == pytest.approx(math.exp(0.1))
    assert kernel_weighted_factor(told, step_similarity, 2e-3, 8e-3) == pytest.approx(
        math.exp(0.1 * 0.8)
    )
    assert kernel_weighted_factor(told, step_similarity, 1e-3, 8e-3) == pytest.approx(
        math.exp(0.1 * 0.8**0.5)
    )
    assert kernel_weighted_factor(told, step_similarity, 1.0, 1e-6) == pytest.approx(1, abs=1e-4)
    assert kernel_weighted_factor(told, step_similarity, 1.0, 0.0) == 1.0
    assert kernel_weighted_factor((), step_similarity, 1e-3, 4e-3) == 1.0


@pytest.mark.parametrize("waits", [False, True])
def test_all_parts_of_a_step_are_longer_by_what_is_left_over(waits):
    host = Host((1.0, 2.0, 4.0), 0.5, waits, measured_steps=((4.0, 6.0, 0.3),))
    plain = wait_for_host((1.0, 2.0, 3.0), host._replace(measured_steps=()))
    longer = wait_for_host((1.0, 2.0, 3.0), host)
    assert longer == pytest.approx([part * math.exp(0.3) for part in plain])


def test_what_one_of_many_alike_misses_by_is_shrunk_to_what_all_of_them_do():
    # n rows of one kind that miss by y: each is told y (n - 1) s2 / ((n - 1) s2 + noise) by others
    one = steps(1, 0.05)[0]
    columns = Columns([replace(one, family=f"network {i}") for i in range(20)])
    found, off = learn_residuals(columns, PRIORS, np.full(20, 0.05))
    ratio = (
        SPREAD**2 / STEP_NOISE**2 * 5 / 4
    )  # as noise of rows that miss by little is 4/5 as large
    assert sum(weight for _, _, weight in found["steps"]) == pytest.approx(0.05, rel=0.02)
    assert off == pytest.approx(0.05 / (1 + 19 * ratio), rel=0.05)


@pytest.mark.parametrize("family", ["mine", ""])
def test_a_network_that_is_left_out_is_told_by_none_of_its_rows(family):
    """Twenty rows of one network, by its family or its text: another would miss as this does."""
    columns = Columns([replace(steps(1, 0.05)[0], family=family)] * 20)
    _, off = learn_residuals(columns, PRIORS, np.full(20, 0.05))
    assert off == pytest.approx(0.05)


def test_few_steps_and_those_of_a_cpu_tell_nothing_of_others():
    few = steps(MIN_ROWS - 1, 0.2)
    assert "steps" not in calibrate(V100, few, None)
    cpu = catalog.device("xeon-skylake-n1-standard-32")
    own = [replace(case, device=cpu) for case in steps(MIN_ROWS, 0.2)]
    assert "steps" not in calibrate(cpu, own, None)


def test_a_device_file_holds_the_steps_and_every_prediction_reads_them(tmp_path):
    cases = steps(12, 0.6)
    held = {name: one._replace(spread=0.0) for name, one in catalog.priors("gpu").items()}
    table = calibrate(V100, cases, None, priors=held)
    assert (len(table["steps"]), table["constants"]) == (12, {})
    mine = device_of_file(tmp_path, table)
    model = StepModel("fc:layers=6,nodes=64", mine, optimizer="adam")
    plain = model.with_device(mine.with_calibration({}))
    longer = model.timeline(32).step_s / plain.timeline(32).step_s
    assert longer == pytest.approx(math.exp(0.6), rel=0.05)
    on_arrays = BatchSteps(model, [32, 40, 48, 56])
    assert on_arrays.lines is not None
    assert sum(part[0] for part in on_arrays.spans([model])[0].times) == pytest.approx(
        model.timeline(32).step_s
    )
    case = replace(cases[5], device=mine)
    (scored,) = score([case], CALIBRATED)
    assert scored.value == pytest.approx(model.timeline(32).step_s)
    again, bare = (
        calibrate(one, cases, None, priors=held) for one in (mine, mine.with_calibration({}))
    )
    assert again["steps"] == bare["steps"]  # what is known already is not taken away


def test_a_step_that_misses_by_nothing_is_not_far_off_where_it_is_left_out():
    cases = steps(MIN_ROWS + 2, 0.1)
    cases[3] = replace(cases[3], seconds=cases[3].seconds / math.exp(0.1) * (1 + 1e-9))
    columns = Columns(cases)
    off = np.full(len(cases), 0.05)  # left out with its family
    _, alone = learn_residuals(columns, PRIORS, off)
    assert np.abs(alone).max() < 2


def test_names_of_networks_in_a_file_of_before_are_no_matter(tmp_path):
    table = calibrate(V100, steps(12, 0.6), None)
    before = {**table, "networks": {"resnet18": 0.3}}
    said = [device_of_file(tmp_path, one) for one in (table, before)]
    cases = steps(3)
    plain, same = (
        [one.value for one in score([replace(c, device=mine) for c in cases], CALIBRATED)]
        for mine in said
    )
    assert plain == same


def products(shapes, miss, dtype="float32", condition="repeated"):
    """Products of x[m, k] and weights[n, k] that take exp(miss) times what the priors say."""
    cases = [
        Case(op_kernels("linear", ((m, k), (n, k)), {}, dtype), V100, 1.0, "linear", condition)
        for m, n, k in shapes
    ]
    seconds = Columns(cases).predict_s(PRIORS) * np.exp(miss)
    return [replace(c, seconds=float(s)) for c, s in zip(cases, seconds, strict=True)]


def predicted(cases, told):
    """Return by what factor cases take longer where `told` is known of products."""
    known = V100.with_calibration({"products": told})
    found = score([replace(one, device=known) for one in cases], CALIBRATED)
    return [one.value / one.case.seconds for one in found]


def test_a_product_tells_of_those_of_like_sizes():
    told = {"linear float32": [[1, 512, 256, 1024, 0.1]]}
    shapes = [(512, 256, 1024), (1024, 256, 1024), (1024, 64, 1024), (512, 256, 10**6)]
    longer = predicted(products(shapes, 0.0), told)
    # 2 x / (x^2 + 1) of each side that is x times as long: 4/5 of 2, 8/17 of 4
    expected = [0.1, 0.1 * 0.8, 0.1 * 0.8 * 8 / 17, 0.0]
    assert np.log(longer) == pytest.approx(expected, abs=3e-4)
    assert predicted(products(shapes, 0.0, "float16"), told) == pytest.approx([1.0] * 4)
    assert predicted(products(shapes[:1], 0.0), {"matmul float32": told["linear float32"]}) == [1.0]


def test_products_that_miss_alike_are_told_with_a_part_of_it():
    # n rows of one size that miss by y are told y n s2 / (n s2 + 4/5 noise), by others n - 1 of it
    columns = Columns(products([(2048, 2048, 2048)] * 20, 0.05))
    found, off = learn_residuals(columns, PRIORS, np.full(20, 0.05))
    assert found.keys() == {"products"}
    ratio = SPREAD**2 / PRODUCT_NOISE**2 * 5 / 4
    rows = found["products"]["linear float32"]
    assert {tuple(row[:4]) for row in rows} == {(1, 2048, 2048, 2048)}
    assert sum(row[4] for row in rows) == pytest.approx(0.05 * 20 / (20 + 1 / ratio), rel=0.02)
    assert off == pytest.approx(0.05 / (1 + 19 * ratio), rel=0.05)
    assert (
        learn_residuals(Columns(products([(2048, 2048, 2048)] * 9, 0.05)), PRIORS, off[:9])[0] == {}
    )


def test_what_is_no_single_product_is_left_as_it_is():
    case = Case(op_kernels("relu", ((4, 4),), {}, "float32"), V100, 1.0, "relu", "repeated")
    case = replace(case, seconds=float(Columns([case]).predict_s(PRIORS)[0]))
    assert predicted([case], {"relu float32": [[1, 4, 4, 4, 0.1]]}) == [1.0]


def test_what_the_host_hides_of_a_product_tells_little():
    # of rows that feel h of what their kernel takes, kernels are told y n h s2 / (n h2 s2 + noise)
    columns = Columns(products([(8, 8, 16)] * 20, 0.05, condition="isolated"))
    _, felt = columns.find_product_cases(PRIORS)
    assert felt == pytest.approx([felt[0]] * 20)
    assert 0 < felt[0] < 0.5
    found, _ = learn_residuals(columns, PRIORS, np.full(20, 0.05))
    noise = 0.8 * PRODUCT_NOISE**2 / SPREAD**2
    expected = 0.05 * 20 * felt[0] / (20 * felt[0] ** 2 + noise)
    rows = found["products"]["linear float32"]
    assert sum(row[4] for row in rows) == pytest.approx(expected, rel=0.05)


def test_a_device_file_holds_products_for_those_that_run_alone(tmp_path):
    held = {name: one._replace(spread=0.0) for name, one in catalog.priors("gpu").items()}
    table = calibrate(V100, products([(64, 1024, 1024)] * 12, 0.3), None, priors=held)
    mine = device_of_file(tmp_path, table)
    sizes = [(64, 1024), (1024, 1024)]
    usual = predict_op("linear", sizes, "float32", mine.with_calibration({}))
    longer = predict_op("linear", sizes, "float32", mine)
    assert longer.seconds / usual.seconds == pytest.approx(math.exp(0.3), rel=0.02)
    network, constants = "fc:layers=4,nodes=1024,inputs=1024", table["constants"]
    steps = [
        StepModel(network, mine.with_calibration(one), phase="infer").timeline(64).step_s
        for one in (table, {"constants": constants, "intervals": table["intervals"]})
    ]
    assert steps[0] == steps[1]  # what is left over of products alone did not pay in networks
    for bad in ([1], {"linear float32": [[1, 2, 3, 0.1]]}, {"linear float32": [[1, 0, 3, 4, 0.1]]}):
        with pytest.raises(InputError, match=r"'calibration.products\b.*' must be"):
            device_of_file(tmp_path, {"products": bad})


@every(("condition", "waits"), [("call", "yes"), ("step", "no")])
@every("batch", [1, 8, 64])
def test_a_step_is_fitted_by_the_formula_that_predicts_it(condition, waits, batch):
    """Passes that wait for the host one by one are not its whole time or theirs."""
    work = make_workload(read_model("cnn:block=bottleneck,blocks=1,filters=16"), batch)
    model = StepModel(work, V100, options={"waits": waits})
    case = Case(model.lower_step().kernels, V100, 1.0, "step", condition)
    made = Columns([case]).predict_s(model.effective_device.constants)
    assert made == pytest.approx([model.timeline().step_s], rel=1e-9)


KNOWN = ([], [[1e-3, 4e-3, 0.6]], [[3e-3, 2e-2, -0.5], [1e-3, 5e-4, 0.7]])


@every(("condition", "waits"), [("call", "yes"), ("step", "no")])
@every("known", KNOWN, ids=len)
@every("name", ["v100", "core-i9-9900k"])
def test_a_step_that_is_evaluated_lies_where_predict_says(condition, waits, known, name):
    """What constants leave over moves with the step as it is; a CPU's base is its host's, too."""
    device = catalog.device(name)
    if not device.is_cpu:  # whose steps tell nothing of others
        device = device.with_calibration({"steps": known} if known else {})
    model = StepModel("fc:layers=2,nodes=64", device, options={"waits": waits})
    times = model.timeline()
    case = Case(model.lower_step().kernels, device, 1.0, "step", condition)
    [scored] = score_with_constants([case], model.effective_device.constants)
    assert [scored.value, scored.low, scored.high] == pytest.approx(
        [times.step_s, times.low_s, times.high_s], rel=1e-12
    )
    assert times.low_s < times.step_s < times.high_s
