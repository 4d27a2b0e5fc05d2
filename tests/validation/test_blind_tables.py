"""Blind tables of the reference data: questions, reasons to refuse rows, and no constants."""

import numpy as np
import pytest

from steptime.calibration.plan_errors import predict_rows
from steptime.core.errors import InputError
from steptime.prediction.conformal import MEMORY, TRAININGS
from validation.blind.cells import check_kept, find_device, parse_number, parse_pairs
from validation.blind.servings import read_blis, read_ml_energy, read_nccl
from validation.blind.tables import TABLES
from validation.conformal import hold
from validation.layouts import layouts
from validation.residuals import METHOD, residuals_of
from validation.sets import owned
from validation.ways import Row


def test_a_plan_is_read_as_pairs() -> None:
    assert parse_pairs("dp=8; tp=4;vp=-;channels_first") == {"dp": "8", "tp": "4"}


def test_the_first_number_of_a_text_is_read() -> None:
    assert parse_number("p99 of steps 1.5e3 bytes") == 99
    assert parse_number("", 7) == 7


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-SXM4-40GB (a2-highgpu-1g)", "a100-sxm4-40gb"),
        ("A100 80GB PCIe", "a100-pcie-80gb"),
        ("A10", "a10"),
        ("RTX_PRO_6000_S", "rtx-pro-6000-blackwell-server"),
    ],
)
def test_the_longest_name_that_fits_is_the_device(text: str, name: str) -> None:
    assert find_device(text) == name


def test_a_collective_of_nccl_tests_is_asked_by_its_bytes() -> None:
    cells = {"table": "nccl", "dtype": "half", "op": "alltoall", "device": "h100-sxm5"}
    row = read_nccl({**cells, "num_gpus": 8, "message_size": 2**25, "seconds": 3e-4})
    assert row.texts["collective"] == "all_to_all"
    assert row.numbers == {"device_count": 8, "per_node": 8, "bytes": 2**26}


def test_a_collective_that_pays_no_start_is_left_out() -> None:
    cells = {"table": "nccl", "dtype": "half", "op": "all_reduce", "device": "h100-sxm5"}
    with pytest.raises(InputError, match="too short"):
        read_nccl({**cells, "num_gpus": 8, "message_size": 512, "seconds": 9e-6})


def test_a_batch_that_waits_for_room_in_the_cache_is_not_asked() -> None:
    cells = {
        "model": "Qwen/Qwen3-14B",
        "gpu": "H100",
        "gpus": 1,
        "dp": 1,
        "ep": 1,
        "weights": "bfloat16",
        "avg_batch_size": 100,
        "avg_output_len": 500,
        "avg_power_watts": 500,
        "median_itl_ms": 50,
        "output_throughput_tokens_per_sec": 1900,
    }
    assert read_ml_energy(cells).measured["tpot_s"] == 0.05
    with pytest.raises(InputError, match="wait for room"):
        read_ml_energy({**cells, "output_throughput_tokens_per_sec": 1000})


def test_the_output_of_a_stage_is_what_its_own_times_tell() -> None:
    """A first token after 0.1 s and 200 further ones of 10 ms, whatever other models' runs gave."""
    cells: dict[str, object] = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "H100",
        "dtype": "fp16",
        "tp": 1,
        "rate_per_s": 8,
        "stage_s": 60,
        "requests": 480,
        "max_num_seqs": 128,
        "mean_input_tokens": 573.3,
        "mean_output_tokens": 247.2,
        "e2e_mean_s": 2.1,
        "ttft_mean_s": 0.1,
        "itl_mean_s": 0.01,
    }
    assert read_blis(cells).numbers["output"] == 201


def test_an_unknown_device_is_said() -> None:
    with pytest.raises(InputError, match="Abacus"):
        find_device("Abacus")


def test_a_row_that_is_to_be_left_out_is_left_out_with_its_reason() -> None:
    with pytest.raises(InputError, match="slow for no reason"):
        check_kept({"exclude": "slow for no reason"})
    check_kept({"exclude": ""})


def test_every_layout_says_its_campaign() -> None:
    assert all(" x " in layout.campaign for layout in layouts())


def test_no_constant_names_a_blind_table() -> None:
    names = {table.path.rpartition("/")[2].partition(".")[0] for table in TABLES}
    assert names.isdisjoint(name for _, _, constant in owned() for name in constant.rows)


@pytest.mark.slow
def test_blind_trainings_are_held_by_the_shipped_intervals(shared) -> None:
    [table] = [one for one in TABLES if "bloom" in one.path]
    residuals = [
        residual
        for _, _, answer in predict_rows(table.read(shared), METHOD)
        if not isinstance(answer, InputError)
        for residual in residuals_of(Row("blind", *answer), table.added)
    ]
    assert {one.kind for one in residuals} == {TRAININGS, MEMORY}
    assert all(one.is_blind and one.campaign == table.campaign for one in residuals)
    inside = [
        hold(one, one.below, one.above).is_inside for one in residuals if one.kind == TRAININGS
    ]
    assert np.mean(inside) > 0.7
