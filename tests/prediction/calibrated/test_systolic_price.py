"""Products on TPUs: padding to the arrays, and arrays that wait, by hand."""

import pytest

from every import every
from steptime.build import make_workload, read_model
from steptime.hardware import catalog
from steptime.prediction.calibrated.systolic import padded_flop
from steptime.prediction.steps.step_model import StepModel

TPUS = ("tpu-v2", "tpu-v2-8", "tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7")
ONE = catalog.device("tpu-v3").with_figures(arrays=1, array_side=128)


@every(
    ("shape", "done"),
    [
        ((1, 128, 128, 128), 2 * 128**3),  # one tile, full
        ((1, 1, 100, 100), 2 * 128**3),  # a row past a tile takes as long as loading the next
        ((1, 130, 128, 128), 2 * 136 * 128**2),  # rows are padded to 8
        ((1, 256, 129, 128), 2 * 256 * 256 * 128),  # a column more is a tile more
        ((3, 128, 128, 300), 3 * 2 * 128 * 128 * 384),
    ],
)
def test_products_are_padded_to_the_arrays(shape, done):
    assert padded_flop(shape, ONE) == done


def test_arrays_without_a_tile_wait():
    eight = ONE.with_figures(arrays=8)
    assert padded_flop((1, 128, 128, 128), eight) == 8 * 2 * 128**3
    assert padded_flop((1, 1024, 1024, 1024), eight) == 2 * 1024**3
    # nine parts in eight arrays are two rounds
    assert padded_flop((1, 384, 384, 128), eight) == 16 * 2 * 128**3
    unknown = ONE.with_figures(arrays=None)
    assert padded_flop((1, 128, 128, 128), unknown) == 2 * 128**3


@every("name", [name for name in TPUS if catalog.device(name).datasheet.arrays])
def test_arrays_and_peak_make_a_clock_that_there_is(name):
    """Published clocks: v2 700, v3 940, v4 1050, v5e 1500, v5p 1750 MHz."""
    device = catalog.device(name)
    assert device.datasheet.arrays
    assert device.datasheet.array_side
    a_clock = 2 * device.datasheet.arrays * device.datasheet.array_side**2
    clocks = {"v2": 0.7e9, "v3": 0.94e9, "v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9}
    wanted = clocks[name.removeprefix("tpu-").removesuffix("-8")]
    assert device.datasheet.peak_flop_per_s["bfloat16"] / a_clock == pytest.approx(wanted, rel=0.03)


@every("name", TPUS)
def test_the_families_of_paradnn_are_predicted_on_every_tpu(name):
    for model in ("fc", "cnn", "rnn", "transformer:layers=2,width=256,heads=4,length=128"):
        work = make_workload(read_model(model), None, "bfloat16")
        model_of = StepModel(work, name)
        timeline = model_of.timeline(work.batch_per_replica)
        assert 0 < timeline.step_s < 60


def test_a_batch_that_fills_no_tile_is_no_faster():
    seconds = [
        StepModel("fc:layers=8,nodes=4096", "tpu-v4", dtype="bfloat16").timeline(batch).step_s
        for batch in (8, 128)
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.2)
