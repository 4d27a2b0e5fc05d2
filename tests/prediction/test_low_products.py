"""Products with operands of 8 and 4 bit: bytes, casts, peaks, and what cannot be asked."""

import pytest

from steptime import count, predict, predict_op
from steptime.core.dtypes import check_measured_dtype, find_dtype
from steptime.core.errors import InputError
from steptime.hardware import catalog

TOKENS, OUTPUTS, INPUTS = 8192, 14336, 4096
SHAPES = [[TOKENS, INPUTS], [OUTPUTS, INPUTS]]
FLOP = 2 * TOKENS * OUTPUTS * INPUTS


@pytest.mark.parametrize(
    ("dtype", "operand_bytes", "reads"),
    [("float8", 1.0, 2), ("nvfp4", 0.5625, 1)],  # one for the scale of a whole operand
)
def test_a_product_reads_lower_operands_and_writes_16_bit(
    dtype: str, operand_bytes: float, reads: int
) -> None:
    cast, product = predict_op("linear", SHAPES, dtype, "b200-sxm").kernels
    operands = TOKENS * INPUTS + OUTPUTS * INPUTS
    assert product.bytes == operand_bytes * operands + 2 * TOKENS * OUTPUTS
    assert cast.bytes == (2 * reads + operand_bytes) * TOKENS * INPUTS
    assert product.dtype == find_dtype(dtype)


@pytest.mark.parametrize("device", ["h100", "b200-sxm", "rtx-pro-6000-blackwell-server"])
def test_a_product_of_lower_operands_is_quicker_and_below_its_peak(device: str) -> None:
    peaks = catalog.device(device).datasheet.peak_flop_per_s
    seconds = {
        dtype: predict_op("linear", SHAPES, dtype, device).seconds
        for dtype in ("bfloat16", "float8", "float4")
        if dtype in peaks
    }
    assert sorted(seconds.values(), reverse=True) == list(seconds.values())
    assert len(seconds) > 1
    for dtype, time_s in seconds.items():
        assert FLOP / time_s < peaks[dtype]


def test_experts_take_lower_operands() -> None:
    shapes = [[1, 4096, 4096], [1, 4096, 64], [64, 2048, 4096], [64, 4096, 1024]]
    attrs = {"per_token": 4, "activation": "swiglu"}
    bfloat16 = predict_op("experts", shapes, "bfloat16", "h100", attrs)
    float8 = predict_op("experts", shapes, "float8", "h100", attrs)
    assert float8.seconds < bfloat16.seconds


def test_a_gradient_of_a_product_takes_lower_operands() -> None:
    both = predict_op("linear", SHAPES, "float8", "h100", pass_="both")  # noqa: S106
    assert {kernel.dtype for kernel in both.kernels if kernel.unit == "matrix"} == {"float8"}
    assert both.seconds > 2 * predict_op("linear", SHAPES, "float8", "h100").seconds


def test_an_op_without_products_says_which_have_them() -> None:
    with pytest.raises(InputError, match=r"no products of float8 operands.*linear, experts"):
        predict_op("softmax", [[128, 128]], "float8", "h100")


def test_a_device_without_the_type_says_which_it_has() -> None:
    with pytest.raises(InputError, match=r"no peak is known for float8; known: .*bfloat16"):
        predict_op("linear", SHAPES, "float8", "a100")
    with pytest.raises(InputError, match=r"no peak is known for float4; known: .*float8"):
        predict("bert_base", "h100", 8, dtype="float4")


@pytest.mark.parametrize("phase", ["train", "infer"])
def test_a_step_of_lower_products_is_quicker_and_says_what_is_kept(phase: str) -> None:
    bfloat16 = predict("bert_base", "h100", 32, dtype="bfloat16", phase=phase)
    float8 = predict("bert_base", "h100", 32, dtype="fp8", phase=phase)
    assert float8.step_s < bfloat16.step_s
    assert float8.peak_bytes == bfloat16.peak_bytes
    assert "weights are kept in bfloat16" in " ".join(float8.notes)


def test_every_linear_layer_of_another_network_takes_lower_operands() -> None:
    model = "fc:layers=4,nodes=4096"
    bfloat16 = predict(model, "b200-sxm", 65536, dtype="bfloat16", phase="infer")
    float8 = predict(model, "b200-sxm", 65536, dtype="float8", phase="infer")
    assert float8.step_s < 0.75 * bfloat16.step_s


def test_count_has_the_bytes_of_lower_operands_and_of_their_casts() -> None:
    model, batch, width = "fc:layers=1,nodes=1024,inputs=1024,outputs=1024", 256, 1024
    bfloat16 = count(model, batch, dtype="bfloat16", phase="infer")
    float8 = count(model, batch, dtype="float8", phase="infer")
    layers = [op for op in float8.ops if op.kind == "linear"]
    saved_bytes = len(layers) * (batch * width + width * width + width)
    cast_bytes = len(layers) * 5 * batch * width  # two reads in 16 bit, a write in 8
    assert float8.flop == bfloat16.flop
    difference = float8.executed_traffic_bytes - bfloat16.executed_traffic_bytes
    assert difference == pytest.approx(cast_bytes - saved_bytes, rel=0.01)
    assert "float8 operands" in float8.notes[0]


def test_lower_products_are_predicted_not_measured() -> None:
    with pytest.raises(InputError, match="predicted, not measured; nearest: bfloat16-mixed"):
        check_measured_dtype("float8-mixed")
    assert check_measured_dtype("bfloat16") == "bfloat16"


def test_kernels_of_lower_operands_have_an_interval_of_their_own() -> None:
    widths = {}
    for dtype in ("bfloat16", "float8"):
        answer = predict_op("linear", SHAPES, dtype, "h100")
        assert answer.low is not None
        widths[dtype] = answer.seconds / answer.low
    assert widths["float8"] > widths["bfloat16"]
