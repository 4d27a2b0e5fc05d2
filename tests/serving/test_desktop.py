"""Language models on one's own machine beside published runs: speed, memory, what fits."""

import statistics
import tomllib
from math import log
from pathlib import Path
from typing import Any

import pytest

from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.serving.desktop.request import DesktopPrediction, DesktopRequest

ROWS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("desktop_rows.toml").read_text(encoding="utf-8")
)["rows"]
MIB = 2**20


def predict(row: dict[str, Any]) -> DesktopPrediction:
    """Return the prediction of a row at its prompt; its text follows at the mean context."""
    prompt = row.get("prompt", 512)
    request = DesktopRequest(
        model=row["model"],
        device=row["device"],
        device_count=row.get("device_count", 1),
        stack=row.get("stack", ""),
        weights=row["weights"],
        input_tokens=prompt,
        output_tokens=128,
    )
    return request.resolve().predict()


def decode_speed(row: dict[str, Any]) -> tuple[float, float, float]:
    """Return the tokens a second of a row with their interval, at its mean context."""
    output = 2
    request = DesktopRequest(
        model=row["model"],
        device=row["device"],
        device_count=row.get("device_count", 1),
        stack=row.get("stack", ""),
        weights=row["weights"],
        input_tokens=row["context"] - output // 2,
        output_tokens=output,
    )
    tpot = request.resolve().predict().tpot
    assert tpot.low is not None
    assert tpot.high is not None
    return 1 / tpot.value, 1 / tpot.high, 1 / tpot.low


def test_decode_speed_is_near_published_runs() -> None:
    """The median error is below 20 %, 75 % lie inside the interval, also of new devices alone."""
    for rows in (ROWS, [row for row in ROWS if not row.get("told")]):
        errors, inside = [], []
        for row in rows:
            speed, low, high = decode_speed(row)
            errors.append(abs(log(speed / row["decode"])))
            inside.append(low <= row["decode"] <= high)
        assert len({row["device"] for row in rows}) >= 5
        assert len(rows) >= 15
        assert statistics.median(errors) < 0.10
        assert sum(inside) >= 0.75 * len(rows)


def test_prefill_speed_is_near_published_runs() -> None:
    """The median error of prompts is below 30 %, and 75 % lie inside the interval."""
    errors, inside = [], []
    for row in (row for row in ROWS if "prefill" in row):
        ttft = predict(row).ttft
        measured_s = row["prompt"] / row["prefill"]
        errors.append(abs(log(ttft.value / measured_s)))
        assert ttft.low is not None
        assert ttft.high is not None
        inside.append(ttft.low <= measured_s <= ttft.high)
    assert statistics.median(errors) < 0.20
    assert sum(inside) >= 0.75 * len(inside)


def test_memory_of_published_runs_is_within_8_percent() -> None:
    """MLX publishes the peak memory of six runs."""
    rows = [row for row in ROWS if "memory_GB" in row]
    assert len(rows) >= 6
    for row in rows:
        needed_gb = predict(row).memory.needed_bytes / 1e9
        assert needed_gb == pytest.approx(row["memory_GB"], rel=0.08), row["weights"]


@pytest.mark.parametrize(
    ("model", "context", "has_flash_attention", "logged_mib"),
    [
        ("llama3_8b", 8192, True, 258.5),  # the log of llama-server, flash attention
        ("llama3_8b", 8192, False, 560.0),  # without: scores of 32 heads in 32 bits
        ("llama_7b", 4096, False, 296.0),
        ("qwen3_8b", 8192, True, 304.75),
    ],
)
def test_compute_buffers_are_those_of_the_log(
    model: str, context: int, has_flash_attention: bool, logged_mib: float
) -> None:
    """The compute buffer is what llama.cpp logs.

    The four values stand in public logs (looked up in November 2026): 258.50 MiB of Llama 3 8B on
    CUDA, Metal and CPUs with 512 tokens at once, 560.00 of it with 8,192 tokens of context and no
    flash attention, 296.00 of Llama 2 7B with 4,096, 304.75 of a width of 4,096 and the
    vocabulary of Qwen 3.
    """
    request = DesktopRequest(
        model=model,
        device="rtx-4090",
        weights="q4_k_m",
        context=context,
        has_flash_attention=has_flash_attention,
    )
    buffers_mib = request.resolve().predict().memory.buffers_bytes / MIB
    assert buffers_mib == pytest.approx(logged_mib, rel=0.08)


def test_what_people_run_fits() -> None:
    """Runs that are published fit, and those that are published to lack memory do not."""
    cases = [
        ("llama3_8b", "f16", "rtx-4080", 1, True),
        ("llama3_8b", "q4_k_m", "rtx-3070", 1, True),
        ("llama3_8b", "f16", "rtx-3080-ti", 1, False),
        ("llama3_70b", "q4_k_m", "rtx-4090", 2, True),
        ("llama3_70b", "q4_k_m", "rtx-4090", 1, False),
        ("llama3_70b", "q4_k_m", "m1-max-gpu", 1, True),
        ("llama3_70b", "f16", "m1-max-gpu", 1, False),
        ("llama3_70b", "f16", "m2-ultra-gpu", 1, True),
        ("llama3_8b", "f16", "m1-gpu", 1, False),
    ]
    for model, weights, device, count, does_fit in cases:
        request = DesktopRequest(
            model=model, device=device, device_count=count, weights=weights, output_tokens=512
        )
        over_bytes = request.resolve().predict().memory.over_bytes
        assert (not over_bytes) == does_fit, (model, weights, device)


def test_each_sequence_that_decodes_has_its_logits() -> None:
    """No sequence more takes less than its FLOP at the peak, those of the head among them."""
    few, many = 512, 2048

    def decode(sequences: int) -> DesktopPrediction:
        return (
            DesktopRequest("llama3_2_1b", "rtx-4090", weights="f16", sequences=sequences)
            .resolve()
            .predict()
        )

    weights = DesktopRequest("llama3_2_1b", "rtx-4090", weights="f16").resolve().placing.weights
    peak = catalog.device("rtx-4090").datasheet.peak_flop_per_s["float16"]
    least_s = 2 * (many - few) * weights.parameter_count / peak
    assert decode(many).decode.products_s - decode(few).decode.products_s >= least_s


def test_prompts_pass_only_devices_that_have_layers() -> None:
    """One layer and the head on four devices: a prompt of one chunk goes over as a token does."""
    prediction = (
        DesktopRequest(
            "llama3_8b",
            "rtx-4090",
            weights="f16",
            device_count=4,
            gpu_layers=2,
            input_tokens=64,
            output_tokens=2,
        )
        .resolve()
        .predict()
    )
    assert prediction.prefill.hops_s == prediction.decode.hops_s > 0


def test_layers_on_the_host_take_its_bandwidth() -> None:
    """Each layer that moves to the host frees its bytes on the device and slows text down."""
    whole = DesktopRequest("llama3_8b", "rtx-4090", weights="q4_k_m").resolve().predict()
    half = DesktopRequest("llama3_8b", "rtx-4090", weights="q4_k_m", gpu_layers=16)
    half_prediction = half.resolve().predict()
    none = DesktopRequest("llama3_8b", "rtx-4090", weights="q4_k_m", gpu_layers=0)
    none_prediction = none.resolve().predict()
    assert half_prediction.memory.weights_bytes < 0.5 * whole.memory.weights_bytes
    assert none_prediction.memory.weights_bytes == 0
    decode_s = [one.decode.seconds for one in (whole, half_prediction, none_prediction)]
    assert decode_s[0] < decode_s[1] < decode_s[2]
    host_rate = none_prediction.memory.host_bytes / none_prediction.decode.host_s
    assert 40e9 < host_rate < 83.2e9  # two channels of DDR5-5200


def test_experts_on_the_host_free_the_device() -> None:
    """Experts of all layers on the host leave attention and caches on the device."""
    request = DesktopRequest("qwen3_30b_a3b", "rtx-3070", weights="q4_k_m")
    placed = DesktopRequest("qwen3_30b_a3b", "rtx-3070", weights="q4_k_m", cpu_moe=48)
    assert request.resolve().predict().memory.over_bytes
    assert not placed.resolve().predict().memory.over_bytes
    with pytest.raises(InputError, match="no experts"):
        DesktopRequest("llama3_8b", "rtx-3070", weights="q4_k_m", cpu_moe=4).resolve()


def test_smaller_caches_leave_room_for_longer_contexts() -> None:
    """A cache of 8 bits has room for 16/8.5 times the tokens of one of 16 bits."""
    contexts = {}
    for cache_type in ("f16", "q8_0", "q4_0"):
        request = DesktopRequest("llama3_1_8b", "rtx-3070", weights="q4_k_m", kv=cache_type)
        contexts[cache_type] = request.resolve().predict().longest_context or 0
    assert contexts["q8_0"] / contexts["f16"] == pytest.approx(16 / 8.5, rel=0.05)
    assert contexts["q4_0"] / contexts["f16"] == pytest.approx(16 / 4.5, rel=0.06)


@pytest.mark.parametrize(
    ("memory_gb", "limit_mb"),
    [
        (8, 5726.63),
        (16, 11453.25),
        (24, 17179.89),
        (36, 28991.03),
        (64, 51539.61),
        (192, 154618.82),
    ],
)
def test_a_program_has_metals_working_set(memory_gb: int, limit_mb: float) -> None:
    """The limit that llama.cpp logs as recommendedMaxWorkingSetSize, by the memory of a Mac."""
    request = DesktopRequest(
        "llama3_8b", "m3-max-gpu", weights="q4_k_m", memory_bytes=memory_gb * 1e9
    )
    usable_bytes = request.resolve().predict().memory.usable_bytes
    assert usable_bytes == pytest.approx(limit_mb * 1e6, rel=0.01)


def test_wrong_words_name_the_nearest_choice() -> None:
    """Unknown weights, caches and stacks are refused in one line."""
    with pytest.raises(InputError, match="q4_k_m"):
        DesktopRequest("llama3_8b", "rtx-3070", weights="q4_k_x", stack="llama.cpp").resolve()
    with pytest.raises(InputError, match="q8_0"):
        DesktopRequest("llama3_8b", "rtx-3070", weights="q4_k_m", kv="q8_1").resolve()
    with pytest.raises(InputError, match="does not run on m4-max-gpu"):
        DesktopRequest("llama3_8b", "m4-max-gpu", stack="exllama").resolve()
