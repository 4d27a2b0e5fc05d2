"""What holds of every price, as sizes grow and devices get faster: cases by chance."""

import random

import pytest

import steptime

DEVICES = ("t4", "v100", "a100", "h100", "rtx-4090", "p100", "mi300x", "epyc-7763", "m1")


def _size(chance, most):
    return round(2 ** chance.uniform(0, most.bit_length() - 1)) + chance.choice((0, 0, 0, 1))


def _linear(n):
    rows = n(10**5)
    return "linear", [[rows, k := n(8192)], [n(8192), k]], {}


def _batched(n):
    batch, m, k = n(512), n(1024), n(512)
    return "matmul", [[batch, m, k], [batch, k, n(1024)]], {}


def _convolution(n):
    channels, size = n(512), 4 + n(100)
    return "conv2d", [[n(64), channels, size, size], [n(512), channels, 3, 3]], {"padding": 1}


def _lstm(n):
    wide, inputs = n(1024), n(1024)
    of_gates = [[4 * wide, inputs], [4 * wide, wide], [4 * wide], [4 * wide]]
    return "lstm", [[n(256), n(500), inputs], *of_gates], {}


def _attention(n):
    heads, keys = n(16), n(4096)
    one = [n(16), keys, heads * 64]
    return "attention", [one] * 3, {"heads": heads, "kv_heads": heads, "causal": False}


def _layer_norm(n):
    return "layer_norm", [[n(10**6), n(4096)]], {}


OPS = (_linear, _batched, _convolution, _lstm, _attention, _layer_norm)


def _cases(seed, many=60):
    chance = random.Random(seed)  # noqa: S311  # it keeps no secret
    for _ in range(many):
        kind, shapes, attrs = chance.choice(OPS)(lambda most: _size(chance, most))
        device = steptime.device(chance.choice(DEVICES))
        how = chance.choice(("isolated", "repeated")), chance.choice(("forward", "both"))

        def seconds(device=device, shapes=shapes, kind=kind, attrs=attrs, how=how):
            return steptime.predict_op(kind, shapes, "float32", device, attrs, *how)

        yield (kind, shapes, device.name, *how), shapes, device, seconds


def test_an_interval_holds_its_value():
    for said, _, _, found in _cases(1):
        one = found()
        assert 0 < one.low <= one.seconds <= one.high < 3600, said


def test_twice_the_batch_takes_no_less():
    for said, shapes, _, found in _cases(2):
        kind, grow = said[0], len(shapes) if said[0] in {"matmul", "attention"} else 1
        if kind == "lstm" and 16 < shapes[0][0] <= 32:  # cuDNN splits no product of so many rows
            continue
        twice = [
            [2 * shape[0], *shape[1:]] if i < grow else shape for i, shape in enumerate(shapes)
        ]
        more = found(shapes=twice)
        assert more.seconds > 0.97 * found().seconds, said


@pytest.mark.parametrize("figure", ["memory_bytes_per_s", "peak_flop_per_s"])
def test_a_faster_device_takes_no_longer(figure):
    for said, _, device, found in _cases(3):
        changed = {"memory_bytes_per_s": 2 * device.datasheet.memory_bytes_per_s}
        if figure == "peak_flop_per_s":
            if said[0] == "conv2d":  # a quicker Winograd's may draw more than the limit of power
                continue
            changed = {
                name: {dtype: 2 * peak for dtype, peak in getattr(device.datasheet, name).items()}
                for name in ("peak_flop_per_s", "vector_flop_per_s")
            }
        assert found(device=device.with_figures(**changed)).seconds < 1.005 * found().seconds, said


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_recurrent_layer_of_32_rows_on_tensor_cores_takes_no_longer_than_one_of_64(dtype):
    gates = [[2048, 512], [2048, 512], [2048], [2048]]
    some, more = (
        steptime.predict_op("lstm", [[rows, 50, 512], *gates], dtype, "a100") for rows in (32, 64)
    )
    assert some.seconds <= more.seconds
