"""Kernels that engines bring: casts, unsplit products, attention of prompts and of new tokens."""

import re
from dataclasses import replace

import numpy as np
import pytest

from steptime import predict_op
from steptime.calibration.cases import op_kernels
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.prediction import cost_model
from steptime.prediction.calibrated.engine_attention import engine_attention
from steptime.prediction.calibrated.form import memory_rate
from steptime.prediction.calibrated.product import product, time_product
from steptime.prediction.calibrated.stream import stream
from steptime.prediction.calibrated.tiles import TileTime, limit_tiles, list_set_tiles
from steptime.prediction.kernel import Settings
from steptime.prediction.kernels import Kernels

LAYER = ((300, 4096), (1024, 4096))
PROMPT = {"heads": 8, "kv_heads": 2, "causal": True}
TOKEN = {"heads": 8, "kv_heads": 2, "causal": False}
US = 1e-6


def priced(kind, shapes, attrs, dtype, stack, **constants):
    """The rows of an op's kernels under a stack, an H100 and its constants with some changed."""
    settings = Settings(stack=stack)
    device = cost_model("calibrated").derate(catalog.device("h100"), "bfloat16", settings)
    device = replace(device, constants={**device.constants, **constants})
    kernels = op_kernels(kind, shapes, attrs, dtype, settings=settings)
    groups = [rows for kernel in kernels for rows, _ in Kernels([kernel]).groups]
    return groups, device


def scaled(seconds, device):
    """Seconds that are stated for 1.5 GHz, at the clock of the device."""
    return seconds * 1.5e9 / device.datasheet.clock_hz


def attention(shape, attrs, stack, **constants):
    """The parts of the time of an attention: shape is batch, queries, keys, width of a head."""
    batch, queries, keys, width = shape
    shapes = (
        (batch, queries, attrs["heads"] * width),
        *[(batch, keys, attrs["kv_heads"] * width)] * 2,
    )
    (rows,), device = priced("attention", shapes, attrs, "bfloat16", stack, **constants)
    return engine_attention(rows, device, device.constants), device


def test_a_layer_of_tensorrt_llm_finds_its_scale_before_it_casts():
    rows, device = priced("linear", LAYER, {}, "float8", "trt-llm-2025")
    assert [group.kind for group in rows] == ["scale", "cast", "linear"]
    plain, _ = priced("linear", LAYER, {}, "float8", "torch-eager")
    # together they move what one kernel does
    moved_bytes = sum(float(group.bytes[0]) for group in rows[:2])
    assert moved_bytes == float(plain[0].bytes[0]) == 5 * 300 * 4096
    times = [
        float(stream(rows[0], device, {**device.constants, "kernels.scale_s": seconds}).memory_s[0])
        for seconds in (0, 8 * US)
    ]
    assert times[1] - times[0] == pytest.approx(scaled(8 * US, device))


def test_a_layer_of_vllm_casts_row_by_row():
    (cast, _), device = priced("linear", LAYER, {}, "float8", "vllm-2026")
    assert [float(figure[0]) for figure in cast.figures] == [300, 4096]
    constants = device.constants | {"kernels.cast_row_s": US, "kernels.cast_number_s": 1e-9}
    # 300 rows on 132 multiprocessors are 3 rounds of blocks
    expected_s = 3 * US + 300 * 4096 / 132 * 1e-9
    assert float(stream(cast, device, constants).compute_s[0]) == pytest.approx(
        scaled(expected_s, device)
    )


def test_products_of_cutlass_in_8_bit_are_not_split():
    (_, matrix), device = priced("linear", ((16, 16384), (1024, 16384)), {}, "float8", "vllm-2026")
    (shape,) = matrix.products
    split = time_product(device, device.constants | {"kernels.unsplit": 0}, "float8", shape)
    unsplit = time_product(device, device.constants | {"kernels.unsplit": 1}, "float8", shape)
    assert float(unsplit.compute_s[0]) > 1.5 * float(split.compute_s[0])
    # 16 tiles of 64 columns leave multiprocessors idle: each step of 128 waits a turn, at 1.98 GHz
    turn_s = scaled(device.constants["product.tensor_turn_s"], device)
    assert float(unsplit.compute_s[0]) > 16384 / 128 * turn_s
    in_16_bit = [
        float(
            time_product(
                device, device.constants | {"kernels.unsplit": flag}, "bfloat16", shape
            ).compute_s[0]
        )
        for flag in (0, 1)
    ]
    assert in_16_bit[0] == in_16_bit[1]


def test_products_of_cutlass_in_8_bit_take_a_tile_by_their_rows():
    """A tile of 128 x 128 from 129 rows on, with few columns, too; 64 x 128 and 64 x 64 before."""
    _, device = priced("linear", LAYER, {}, "float8", "vllm-2026")
    wave_flop = {}
    for m, tile in ((1, (64, 64)), (64, (64, 64)), (65, (64, 128)), (129, (128, 128))):
        time = time_product(device, device.constants, "float8", (1, m, 48, 8192), is_single_op=True)
        assert float(time.flop) == 2 * 8192 * tile[0] * tile[1] * -(-m // tile[0])
        wave_flop[m] = float(time.flop)
    in_step = time_product(device, device.constants, "float8", (1, 129, 48, 8192))
    assert float(in_step.flop) < wave_flop[129]  # the fastest tile
    limits = [(tile.low_rows, tile.high_rows) for tile in limited_tiles("Ada")]
    assert limits == [(0, 16), (16, 64), (64, 128), (128, 256), (256, float("inf"))]
    assert list_set_tiles("Blackwell 2") == ()  # the fastest tile


def limited_tiles(family):
    """The tiles of a family with the rows of products that take them."""
    set_tiles = list_set_tiles(family)
    tiles = [TileTime(rows, columns, 1.0, 1.0) for _, rows, columns in set_tiles]
    return limit_tiles(tuple(tiles), set_tiles)


def test_prompts_take_products_and_exponentials_of_tiles_of_scores():
    named = {
        "kernels.prefill_share_tensor": 0.5,
        "kernels.softmax_tensor": 0.0,
        "kernels.prefill_block_tensor_s": 0.0,
        "kernels.prefill_moves": 0.0,
        "kernels.attention_s": 0.0,
    }
    parts, device = attention((2, 512, 512, 128), PROMPT, "vllm-2026", **named)
    # half of 512 x 512 scores, and half a tile of 128 x 128 for each of 4 rows of tiles
    scores = 2 * 8 * (512 * 512 / 2 + 4 * 128 * 128 / 2)
    peak = device.datasheet.peak_flop_per_s["bfloat16"]
    product_s = 4 * scores * 128 / (0.5 * peak)
    assert float(parts.compute_s[0]) == pytest.approx(product_s)
    exposed, _ = attention(
        (2, 512, 512, 128), PROMPT, "vllm-2026", **named | {"kernels.softmax_tensor": 1.0}
    )
    exponential_s = scores / (16 * device.datasheet.clock_hz * 132)
    assert float(exposed.compute_s[0]) == pytest.approx(product_s + exponential_s)
    blocks, _ = attention(
        (2, 512, 512, 128), PROMPT, "vllm-2026", **named | {"kernels.prefill_block_tensor_s": US}
    )
    assert float(blocks.compute_s[0]) == pytest.approx(
        product_s + scaled(2 * 8 * 4 / 132 * US, device)
    )


def test_prompts_bring_keys_and_values_into_the_cache():
    quiet = {"kernels.attention_s": 0.0}
    still, device = attention(
        (2, 512, 512, 128), PROMPT, "vllm-2026", **quiet, **{"kernels.prefill_moves": 0.0}
    )
    moving, _ = attention(
        (2, 512, 512, 128), PROMPT, "vllm-2026", **quiet, **{"kernels.prefill_moves": 2.0}
    )
    moved_bytes = 2 * 512 * 128 * (2 * 8 + 2 * 2) * 2
    added_s = float(moving.gap_s[0]) - float(still.gap_s[0])
    assert added_s == pytest.approx(2 * moved_bytes / float(memory_rate(device, device.constants)))


def test_a_layer_of_experts_moves_its_rows_between_kernels():
    shapes = ((1, 100, 512), (1, 100, 8), (8, 2 * 256, 512), (8, 512, 256))
    attrs = {"per_token": 2, "activation": "swiglu"}
    rows, device = priced("experts", shapes, attrs, "bfloat16", "vllm-2026")
    assert [group.kind for group in rows] == ["route", "experts"]
    # 200 rows, of 512 of the token and 256 of the activation, 512 and 512 of both products' results
    moved_bytes = 2 * 2 * 200 * (512 + 256 + 512 + 512)
    assert float(rows[0].bytes[0]) == moved_bytes
    long = rows[0]._replace(bytes=rows[0].bytes * 10**6)  # beyond the cache
    assert float(stream(long, device, device.constants).memory_s[0]) == pytest.approx(
        10**6 * moved_bytes / float(memory_rate(device, device.constants)), rel=0.01
    )
    times = [
        float(stream(rows[0], device, {**device.constants, "kernels.experts_s": one}).memory_s[0])
        for one in (0, 40 * US)
    ]
    assert times[1] - times[0] == pytest.approx(scaled(40 * US, device))
    plain, _ = priced("experts", shapes, attrs, "bfloat16", "torch-eager")
    assert [group.kind for group in plain] == ["experts"]


def test_rows_of_experts_are_read_in_the_type_of_operands():
    shapes = ((1, 100, 512), (1, 100, 8), (8, 2 * 256, 512), (8, 512, 256))
    attrs = {"per_token": 2, "activation": "swiglu"}
    for dtype, operand_bytes in (("float8", 1.0), ("float4", 0.5625)):
        rows, _ = priced("experts", shapes, attrs, dtype, "vllm-2026")
        (route,) = [group for group in rows if group.kind == "route"]
        expected_bytes = 2 * 200 * (operand_bytes * (512 + 256) + 2 * (512 + 512))
        assert float(route.bytes[0]) == expected_bytes


def test_grouped_products_of_sglang_wait_for_the_loads_of_their_tiles():
    shapes = ((1, 4096, 512), (1, 4096, 8), (8, 2 * 256, 512), (8, 512, 256))
    attrs = {"per_token": 2, "activation": "swiglu"}
    for dtype, operand_bytes in (("bfloat16", 2), ("float8", 1)):
        rows, device = priced("experts", shapes, attrs, dtype, "sglang-2025")
        times = {
            bytes_per_clock: float(
                product(
                    rows[-1], device, device.constants | {"kernels.loaded_bytes": bytes_per_clock}
                ).compute_s[0]
            )
            for bytes_per_clock in (0, 64)
        }
        # 64 multiply-adds of a number that a tile of 128 x 128 loads
        flop_per_clock = device.datasheet.peak_flop_per_s[dtype] / 132 / device.datasheet.clock_hz
        load_share = flop_per_clock / 2 / 64 * operand_bytes / 64
        assert times[64] == pytest.approx(times[0] * (1 + load_share))
    rows, _ = priced("experts", shapes, attrs, "float4", "sglang-2025")
    assert rows[-1].figures == ()  # kernels of 4 bit copy what they multiply


def test_a_window_and_whole_scores_are_tiled_at_both_edges_and_at_none():
    named = {"kernels.softmax_tensor": 0.0, "kernels.prefill_block_tensor_s": 0.0}
    shape = (1, 1024, 1024, 64)
    window, device = attention(shape, PROMPT | {"window": 128}, "vllm-2026", **named)
    whole, _ = attention(shape, PROMPT | {"causal": False}, "vllm-2026", **named)
    peak_share = device.constants["kernels.prefill_share_tensor"]
    rate = device.datasheet.peak_flop_per_s["bfloat16"] * peak_share
    in_window = 128 * 1024 - 128 * 127 / 2
    for parts, scores in ((window, in_window + 2 * 8 * 128 * 64), (whole, 1024 * 1024)):
        assert float(parts.compute_s[0]) == pytest.approx(8 * scores * 4 * 64 / rate)


def test_new_tokens_take_a_block_for_each_sequence_and_key_head():
    named = {"kernels.decode_block_s": US}
    parts, device = attention((1000, 1, 16, 128), TOKEN, "vllm-2026", **named)
    assert float(parts.compute_s[0]) == pytest.approx(scaled(1000 * 2 / 132 * US, device))
    wide, _ = attention((1000, 1, 16, 256), TOKEN, "vllm-2026", **named)
    assert float(wide.compute_s[0]) == pytest.approx(1.5 * float(parts.compute_s[0]))


def test_heads_beyond_the_limit_of_tensorrt_llm_have_blocks_of_their_own():
    named = {
        "kernels.decode_block_s": US,
        "kernels.decode_head_s": US / 2,
        "kernels.head_bytes": 1e9,
    }
    for heads, key_heads, block_s in ((64, 1, 64 / 2), (64, 2, 2), (8, 8, 8 / 2)):
        attrs = {"heads": heads, "kv_heads": key_heads, "causal": False}
        parts, device = attention((100, 1, 16, 128), attrs, "trt-llm-2025", **named)
        expected_s = 100 * block_s * US / 132
        assert float(parts.compute_s[0]) == pytest.approx(scaled(expected_s, device))


def test_heads_that_share_keys_apart_read_them_again_from_the_cache():
    attrs = {"heads": 64, "kv_heads": 1, "causal": False}
    named = {"kernels.decode_head_s": 0.0, "kernels.head_bytes": 16.0}
    parts, device = attention((100, 1, 2048, 128), attrs, "trt-llm-2025", **named)
    # 63 of 64 heads read keys and values of 2 bytes, 16 in a clock of each of 132 multiprocessors
    read_bytes = 100 * 63 * 2048 * 128 * 2 * 2
    expected_s = read_bytes / (16 * device.datasheet.clock_hz * 132)
    assert float(parts.compute_s[0]) == pytest.approx(expected_s)
    window, _ = attention((100, 1, 2048, 128), attrs | {"window": 256}, "trt-llm-2025", **named)
    assert float(window.compute_s[0]) == pytest.approx(expected_s / 8)


def test_a_block_of_flash_attention_2_reads_keys_that_no_head_shares_alone():
    shapes = ((1, 1, 256), (1, 65536, 256), (1, 65536, 256))
    times = {
        (device, heads): predict_op(
            "attention",
            shapes if heads == 2 else (shapes[0], *[(1, 65536, 128)] * 2),
            "bfloat16",
            device,
            {"heads": 2, "kv_heads": heads, "causal": False},
            stack="vllm",
        ).seconds
        for device in ("a100", "h100")
        for heads in (1, 2)
    }
    assert times["a100", 2] == pytest.approx(65536 * 2.05e-8, rel=0.05)
    assert times["a100", 1] < times["a100", 2] / 5
    assert times["h100", 2] < times["a100", 2] / 5


def test_exponentials_of_blackwell_ultra_are_twice_as_quick():
    shapes = [(4, 8192, 4096), (4, 8192, 1024), (4, 8192, 1024)]
    attrs = {"heads": 32, "kv_heads": 8, "causal": True}
    b200, b300 = (catalog.device(name).datasheet for name in ("b200", "b300"))
    assert b300.peak_flop_per_s["bfloat16"] <= 1.15 * b200.peak_flop_per_s["bfloat16"]
    times = [
        predict_op("attention", shapes, "bfloat16", name, attrs, stack="vllm").seconds
        for name in ("b200", "b300")
    ]
    assert 1.1 < times[0] / times[1] < 2


@pytest.mark.parametrize("stack", ["vllm", "sglang-2025", "trt-llm"])
def test_a_named_engine_changes_what_runs_by_its_kernels_alone(stack):
    layer = {"kind": "linear", "shapes": LAYER}
    assert predict_op(**layer, dtype="float8", device="h100").stack == ""
    plain, named = (
        predict_op(**layer, dtype="bfloat16", device="a100", stack=name).seconds
        for name in (None, stack)
    )
    assert plain == pytest.approx(named, rel=0.02)
    low = [
        predict_op(**layer, dtype="float8", device="h100", stack=name).seconds
        for name in (None, stack)
    ]
    assert low[0] != low[1]


def test_persistent_kernels_wait_for_the_first_tile_alone():
    # 33 x 16 tiles of 128 x 256 are 4 waves on 132 multiprocessors
    (rows,), device = priced("linear", ((33 * 128, 512), (4096, 512)), {}, "bfloat16", "vllm-2026")
    times = [
        float(product(rows, device, device.constants | {"kernels.persistent": flag}).compute_s[0])
        for flag in (False, True)
    ]
    constants = device.constants
    ramp, half_reuse = (constants[f"product.tensor_{name}"] for name in ("ramp", "half_reuse"))
    # pairs of 128 x 256 use a number of the shared operand as a tile of 256 x 256 does
    pair_s = (1 + half_reuse / 128) / (1 + half_reuse * (128 + 256) / (128 * 256))
    expected = pair_s * (4 * 512 + ramp) / (4 * (512 + ramp))
    assert times[1] / times[0] == pytest.approx(expected)
    (plain_rows,), _ = priced("linear", LAYER, {}, "bfloat16", "torch-eager")
    assert plain_rows.figures == ()


def test_no_persistent_kernel_is_above_the_peak():
    for name in ("h100", "h200", "b200", "b300", "gb300"):
        device = catalog.device(name)
        for m, n, k in ((8192, 8192, 8192), (32768, 16384, 16384), (256, 65536, 16384)):
            seconds = predict_op("linear", ((m, k), (n, k)), "bfloat16", name, stack="vllm").seconds
            assert seconds > 2 * m * n * k / device.datasheet.peak_flop_per_s["bfloat16"]


def test_more_rows_take_persistent_kernels_longer():
    for stack in ("vllm", "trt-llm"):
        times = [
            predict_op("linear", ((m, 4096), (6144, 4096)), "bfloat16", "b200", stack=stack).seconds
            for m in range(64, 8192, 64)
        ]
        assert np.all(np.diff(times) >= 0)


def test_kernels_of_a_stack_that_brings_none_are_the_library_s():
    for dtype in ("float8", "bfloat16"):
        answers = [
            predict_op("linear", ((304, 4096), (1024, 4096)), dtype, "h100", stack=name).seconds
            for name in (None, "vllm-2024")
        ]
        assert answers[0] == pytest.approx(answers[1])


def test_a_wide_head_of_a_latent_cache_runs_by_the_library_s_kernel():
    attrs = {"heads": 16, "kv_heads": 1, "causal": False}
    shapes = [(4, 1, 16 * 576), (4, 64, 576), (4, 64, 576)]
    settings = Settings(stack="vllm-2026")
    (kernel,) = op_kernels("attention", tuple(shapes), attrs, "bfloat16", settings=settings)
    assert kernel.figures == ()


def test_a_time_of_attention_grows_with_its_keys_under_each_engine():
    for stack in ("vllm", "sglang", "trt-llm"):
        times = [
            predict_op(
                "attention",
                [(8, queries, 1024), (8, keys, 256), (8, keys, 256)],
                "bfloat16",
                "b200",
                {"heads": 8, "kv_heads": 2, "causal": queries > 1},
                stack=stack,
            ).seconds
            for queries, keys in ((1, 4096), (1, 32768), (512, 512), (512, 4096), (4096, 4096))
        ]
        assert times[0] < times[1], stack
        assert np.all(np.diff(times[2:]) > 0), stack


@pytest.mark.parametrize(("name", "meant"), [("vlm", "vllm"), ("trt-lm-2025", "trt-llm-2025")])
def test_a_near_name_of_a_stack_is_refused_with_the_name(name, meant):
    with pytest.raises(InputError, match=re.escape(f"did you mean '{meant}'")):
        predict_op("linear", LAYER, "float8", "h100", stack=name)
