import math
from dataclasses import replace

import numpy as np
import pytest

from steptime import catalog
from steptime.calibration.cases import Case, op_kernels
from steptime.calibration.columns import Columns
from steptime.calibration.device import calibrate, chosen, intervals
from steptime.calibration.fit import constants_of, fitted, left_out
from steptime.core.errors import InputError
from steptime.core.hardware import device_from_table
from steptime.core.toml_files import toml_text
from steptime.predict.calibrated.method import METHOD
from steptime.predict.step_model import StepModel

V100 = catalog.device("v100-sxm2-16gb")


def streams(slower=1.0, noise=0.0):
    """Cases of additions, `slower` than the priors say."""
    draw = np.random.default_rng(1)
    shapes = [(2**i, 1000) for i in range(8, 20)]
    cases = [
        Case(op_kernels("add", (s, s), {}, "float32"), V100, 1.0, "add", "isolated") for s in shapes
    ]
    priors = constants_of(catalog.priors("gpu"))
    seconds = Columns(cases).predicted(
        priors | {"stream.share_hbm": priors["stream.share_hbm"] / slower}
    )
    off = np.exp(noise * draw.standard_normal(len(cases)))
    return [replace(c, seconds=float(s)) for c, s in zip(cases, seconds * off, strict=True)]


def test_a_device_with_slow_memory_is_found_slow():
    table = calibrate(V100, streams(slower=1.25), points=None, source="twelve sums")
    share = catalog.priors("gpu")["stream.share_hbm"].value
    assert (
        share / 1.25 <= table["constants"]["stream.share_hbm"] < share * 0.95
    )  # shrunk to the prior
    assert table["errors"]["add"]["mape"] < 0.13  # of 0.2 without
    assert (table["points"], table["source"]) == (12, "twelve sums")


def test_rows_that_the_priors_explain_move_nothing():
    assert calibrate(V100, streams())["constants"] == {}


def test_the_table_is_part_of_a_device_file_and_prices_read_it(tmp_path):
    table = calibrate(V100, streams(slower=1.25), points=None)
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
    found = METHOD.sees(mine, "float32", METHOD.settings).constants
    assert found["stream.share_hbm"] == table["constants"]["stream.share_hbm"]


def test_points_are_of_each_kind_and_of_all_sizes():
    cases = streams()
    cases += [replace(case, kind="other") for case in cases for _ in range(9)]
    some = chosen(cases, 12, seed=3)
    assert [case.kind for case in some].count("add") == 6
    sizes = sorted(case.kernels[0].bytes for case in some if case.kind == "add")
    assert sizes[-1] / sizes[0] > 100
    assert chosen(cases, 12, seed=3) == some
    assert chosen(cases, 12, seed=4) != some
    assert chosen(cases[:5], 12) == cases[:5]


def test_left_out_is_what_a_fit_without_the_row_says():
    cases = streams(noise=0.1)
    priors = catalog.priors("gpu")
    constants = fitted([Columns(cases)], priors)
    shortcut = left_out(Columns(cases), priors, constants)
    for i in (0, 6, 11):
        others = fitted([Columns(cases[:i] + cases[i + 1 :])], priors)
        off = math.log(cases[i].seconds / Columns(cases).predicted(others)[i])
        assert shortcut[i] == pytest.approx(off, abs=0.01)


def test_an_interval_leaves_out_one_in_ten_at_either_end():
    cases = streams() * 3
    off = np.linspace(-0.35, 0.35, 36)  # 0.02 apart
    low, high = intervals(cases, off)["all"]
    assert low == pytest.approx(-0.35 + 0.02 * 2)  # the third: floor(0.1 * 37)
    assert high == pytest.approx(0.35 - 0.02 * 2)  # the 34th: ceil(0.9 * 37)


def test_no_row_is_one_line():
    with pytest.raises(InputError, match="v100-sxm2-16gb: no row"):
        calibrate(V100, [])
