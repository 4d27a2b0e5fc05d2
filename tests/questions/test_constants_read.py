"""Constants and what reads them: each is read by a form, and each form reads what a table holds.

What is read is noted while networks are predicted, planned, served and measured op by op.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from steptime.calibration.cases import Case, conditions, op_kernels
from steptime.calibration.columns import Columns
from steptime.cli.main import run
from steptime.hardware import catalog
from steptime.hardware.constants import kinds_of_use, stack_uses
from steptime.planning.ranks.rank_setup import RankSetup
from steptime.prediction.calibrated import method as calibrated
from steptime.prediction.kernel import Settings
from steptime.prediction.steps import step_setup
from steptime.prediction.training import in_training

QUESTIONS = """
predict resnet50 --device h100 --dtype bfloat16-mixed
predict resnet50 --device h100 --dtype bfloat16-mixed --stack torch-compile --host slow
predict resnet50 --device v100
predict resnet50 --device a100
predict bert_base --device h100 --batch 8 --dtype float32 --tf32 on
predict resnet50 --device tesla-k40
predict resnet50 --device p100-pcie-16gb
predict resnet50 --device core-i9-9900k
predict mobilenet_v2 --device rtx-4090 --dtype float16-mixed
predict resnet18 --device mi300x --dtype bfloat16-mixed
predict resnet18 --device tpu-v3 --dtype bfloat16
predict gpt2 --device tpu-v5p --dtype bfloat16
predict densenet121 --device a40
predict densenet121 --device core-i9-9900k
predict gpt2 --device h100 --dtype bfloat16-mixed
predict gpt2 --device v100
predict gpt2 --device a100 --stack jax --optimizer adam
predict fc --device a100 --stack jax --optimizer momentum
predict fc --device a100 --stack jax --optimizer rmsprop
predict fc --device a100 --stack jax --optimizer adamw
predict gpt2 --device core-i9-9900k
predict bert_base --device core-i9-9900k --optimizer adam
predict transformer:layers=1,width=64,heads=2,norm=rms_norm,dropout=0.1 --device core-i9-9900k
predict rnn:cell=rnn --device core-i9-9900k
predict rnn:cell=gru --device core-i9-9900k
predict rnn --device core-i9-9900k
predict rnn --device v100
predict rnn --device p100-pcie-16gb
plan llama3_8b --device h100-sxm5 --inside nvlink-4 --data 2 --tensor 4 --global-batch 16 \
--recompute selective
plan llama3_8b --device h100-sxm5 --inside nvlink-4 --data 8 --global-batch 16 --zero 3 \
--recompute full --dtype float8
plan llama3_8b --device b200 --inside nvlink-5 --data 4 --pipeline 2 --global-batch 16 \
--dtype float8 --zero 1
plan llama3_8b --device b200 --inside nvlink-5 --data 8 --global-batch 16 --dtype float4
plan qwen3_30b_a3b --device a100 --inside nvlink-3 --data 8 --expert 8 --global-batch 16 --zero 1
plan llama3_8b --device mi300x --inside nvlink-4 --data 8 --global-batch 16
plan llama3_8b --device h100-sxm5 --inside nvlink-4 --data 8 --global-batch 8 --offload optimizer \
--host-link pcie-5-x16
plan resnet50 --device v100 --device-count 8 --global-batch 64
serve llama3_8b --device h100 --running-sequences 4 --dtype float8
serve llama3_8b --device a100 --inside nvlink-3 --tensor 2 --rate 2
serve qwen3_30b_a3b --device h100 --running-sequences 4 --stack trt-llm-2025
"""
ISOLATED = {  # ops by themselves between two events, by what constants call their kinds
    "relu": ((64, 64),),
    "gelu": ((64, 64),),
    "softmax": ((64, 64),),
    "layer_norm": ((64, 64), (64,), (64,)),
    "linear": ((64, 64), (64, 64)),
    "matmul": ((64, 64), (64, 64)),
    "conv2d": ((1, 8, 16, 16), (8, 8, 3, 3)),
}
# what no table holds: how far a device beyond those that were measured is off (`hull.py`), what a
# user's own calibration says, ops of a host that a stack may tell apart, and kinds of no own factor
DERIVED = re.compile(
    r"step\.\w+|interval\.beyond|interval\.\w+_(low|high)|host\.\w+_s|isolated\.\w+"
)


class Reads(dict[str, Any]):
    """Constants that note which of them are asked for, whether they are there or not."""

    def __init__(self, said: Mapping[str, Any], names: set[str]) -> None:
        super().__init__(said)
        self.names = names

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def answer(words: str) -> None:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        assert run(words.split()) == 0, (words, said.getvalue())


def watch(patch: pytest.MonkeyPatch, names: set[str]) -> None:
    """Note what is read of constants, by whoever reads them."""
    base, of_owner = calibrated.METHOD, catalog.constants_of
    constant, flag = RankSetup.constant, RankSetup.flag

    def noted(device: Any) -> Any:
        return replace(device, constants=Reads(device.constants, names))

    def of_rank(read: Any) -> Any:
        def noting(self: RankSetup, name: str) -> Any:
            names.add(f"{self.use}.{name}")
            return read(self, name)

        return noting

    patch.setattr(calibrated, "METHOD", replace(base, derate=lambda *of: noted(base.derate(*of))))
    patch.setattr(step_setup, "in_training", lambda device: noted(in_training(device)))
    patch.setattr(RankSetup, "constant", of_rank(constant))
    patch.setattr(RankSetup, "flag", of_rank(flag))
    patch.setattr(catalog, "constants_of", lambda owner: Reads(of_owner(owner), names))


@pytest.fixture(scope="module")
def names():
    """The names of all constants that are read in what is asked above."""
    found: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        watch(patch, found)
        for line in QUESTIONS.split("\n"):
            if line:
                answer(line)
        v100, own = catalog.device("v100"), {"intervals": {"stream": [-0.1, 0.1]}}
        for device in (v100, v100.with_calibration(own)):
            cases = [
                Case(op_kernels(kind, shapes, {}, "float32"), device, 1.0, kind, "isolated")
                for kind, shapes in ISOLATED.items()
            ]
            seen = calibrated.METHOD.derate(device, "float32", calibrated.METHOD.settings)
            of_timing = {name: one.value for name, one in conditions().items()}
            constants = Reads({**seen.constants, **of_timing}, found)
            assert np.isfinite(Columns(cases).predict_intervals(constants)).all()
        read_kernels_of_engines(found)
    return found


ENGINES = ("vllm-2026", "sglang-2025", "trt-llm-2025")
OF_ENGINES = {  # shapes and attributes of what engines run by kernels of their own
    "linear": ("float8", ((64, 512), (512, 512)), {}),
    "experts": (
        "bfloat16",
        ((1, 64, 64), (1, 64, 4), (4, 128, 64), (4, 64, 64)),
        {"per_token": 2, "activation": "swiglu"},
    ),
    "attention": ("bfloat16", ((2, 64, 512), (2, 64, 128), (2, 64, 128)), {"causal": True}),
    "decode": ("bfloat16", ((2, 1, 512), (2, 64, 128), (2, 64, 128)), {"causal": False}),
}


def read_kernels_of_engines(names: set[str]) -> None:
    """Price what engines run by kernels of their own, on GPUs of three kinds."""
    for stack, name in itertools.product(ENGINES, ("a100", "l40s", "b200")):
        device, settings = catalog.device(name), Settings(stack=stack)
        seen = calibrated.METHOD.derate(device, "bfloat16", settings)
        for kind, (dtype, shapes, attrs) in OF_ENGINES.items():
            if dtype not in device.datasheet.peak_flop_per_s:
                continue
            is_attention = kind in ("attention", "decode")
            heads = {"heads": 8, "kv_heads": 2} if is_attention else {}
            op = "attention" if is_attention else kind
            kernels = op_kernels(op, shapes, {**heads, **attrs}, dtype, settings=settings)
            case = Case(kernels, device, 1.0, op, "repeated", stack=stack)
            constants = Reads(seen.constants, names)
            assert np.isfinite(Columns([case]).predict_intervals(constants)).all()


OWNERS = ("gpu", "cpu", "host", "link")


def held() -> set[str]:
    """The names of all constants that the tables hold."""
    stacks = map(catalog.stack, catalog.stack_names(with_user_files=False))
    of_stacks = {name for one in stacks for name in (*one.host, *one.uses)}
    of_owners = {name for owner in OWNERS for name in catalog.constants_of(owner)}
    return of_stacks | of_owners | conditions().keys()


@pytest.mark.slow
def test_a_constant_that_a_table_holds_is_read(names):
    unread = sorted(held() - names)
    assert unread == [], str(unread)


@pytest.mark.slow
def test_a_name_that_is_read_is_held_by_a_table(names):
    declared = {name for use in stack_uses() for name in kinds_of_use(use)}
    assert [name for name in sorted(names - held() - declared) if not DERIVED.fullmatch(name)] == []


@pytest.mark.slow
def test_a_constant_that_a_stack_may_have_is_read(names):
    assert (
        sorted(
            {name for use in stack_uses() if use != "memory" for name in kinds_of_use(use)} - names
        )
        == []
    )
