"""Types that a plan computes and keeps in: those of `predict`, and products in 8 and 4 bit."""

import pytest

import steptime
from every import every
from steptime.cli.main import run

N = 124_439_808  # parameters of GPT-2


def states_bytes(dtype: str) -> float:
    told = steptime.plan("gpt2", "h100-sxm5", inside="nvlink-4", data=2, dtype=dtype).to_dict()
    assert told["dtype"] == dtype
    parts = told["memory"]["by_part"]
    return float(parts["weights_bytes"] + parts["gradients_bytes"] + parts["states_bytes"])


@pytest.mark.slow
@every(
    ("dtype", "each"),
    [
        ("bfloat16", 2 + 2 + 2 * 2),  # weight, gradient, two states of Adam
        ("float16", 2 + 2 + 2 * 2),
        ("float32", 4 + 4 + 2 * 4),
        ("bfloat16-mixed", 2 + 4 + 4 + 2 * 4),  # a copy in 16 bit beside the weight of 32
        ("float16-mixed", 2 + 4 + 4 + 2 * 4),
    ],
)
def test_a_type_is_that_of_predict(dtype, each):
    assert states_bytes(dtype) == each * N


def test_without_a_type_it_is_mixed_and_the_answer_says_it():
    plain, mixed = (
        steptime.plan("gpt2", "h100-sxm5", dtype=t).to_dict() for t in (None, "bf16-mixed")
    )
    assumed = {"stack": "torch-eager", "optimizer": "adam", "host": "any-server"}
    assert mixed.pop("assumed") == assumed
    assert plain.pop("assumed") == {**assumed, "dtype": "bfloat16-mixed"}
    assert plain == mixed
    assert plain["dtype"] == "bfloat16-mixed"
    assert steptime.plan("gpt2", "v100-sxm2-16gb").to_dict()["dtype"] == "float16-mixed"
    best = steptime.plan(
        "gpt2", "h100-sxm5", device_count=(2,), global_batch=8, dtype="bfloat16"
    ).to_dict()["best"]
    assert best["dtype"] == "bfloat16"


def test_float32_computes_in_float32():
    whole, mixed = (
        steptime.plan("mpt_125m", "a100", global_batch=8, microbatch=8, dtype=t).to_dict()["parts"][
            "compute_s"
        ]
        for t in ("float32", "bfloat16-mixed")
    )
    # peaks, of which small products in 16 bit reach less; its vocabulary is a multiple of 8
    assert whole > 312 / 19.5 / 2 * mixed


@every(
    ("words", "said"),
    [
        ("serve gpt2 --device a100 --dtype bfloat16-mixed", "nearest: --dtype bfloat16\n"),
        ("serve gpt2 --device v100 --dtype float32", "nearest: --dtype float16"),
        ("plan gpt2 --device a100 --dtype float8", "nearest: --dtype bfloat16-mixed"),
        ("plan gpt2 --device a100 --dtype bf17", "unknown dtype 'bf17'; known: bfloat16-mixed, "),
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_is_said_with_the_nearest(words, said, capsys):
    assert run([*words.split(), *(["--input", "64"] if "serve" in words else [])]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_a_type_without_arithmetic_is_that_of_weights_alone():
    weights = steptime.serve("llama3_8b", "a100", dtype="bfloat16", weights="float8")
    short = steptime.serve("llama3_8b", "a100", dtype="float8")
    assert weights.fits
    assert short.tpot_s == weights.tpot_s
    assert short.needed_bytes == weights.needed_bytes
    assert any("weights alone" in note for note in short.notes)


def test_weights_of_autocast_are_in_32_bit_with_a_copy_in_16():
    told = steptime.plan(
        "gpt2", "h100-sxm5", inside="nvlink-4", data=2, stack="torch-eager"
    ).to_dict()
    parts = told["memory"]["by_part"]
    assert parts["weights_bytes"] == (4 + 2) * N
    assert parts["states_bytes"] == 2 * 4 * N


def test_not_fitting_stands_in_the_first_line(capsys):
    assert run(["serve", "llama3_70b", "--device", "h100", "--inside", "nvlink-4"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("out of memory by ")
    assert "nearest that fits: --tensor 4" in first
