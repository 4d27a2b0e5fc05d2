"""What `fit` proposes for an adapter on a small card: what people do, the least costly first."""

from __future__ import annotations

import shlex

import pytest

import steptime

MODEL = "qwen3_4b:length=1024"
CARD = "rtx-3060"


def fit(**words: object) -> steptime.FitAnswer:
    return steptime.fit(MODEL, CARD, dtype="bfloat16", optimizer="adamw", **words)


def ask_again(command: str) -> steptime.FitAnswer:
    """Ask a proposed `fit` as Python does."""
    words = shlex.split(command)[2:]
    pairs = zip(words[1::2], words[2::2], strict=True)
    options = {name.removeprefix("--").replace("-", "_"): value for name, value in pairs}
    return steptime.fit(words[0], options.pop("device"), options.pop("batch"), **options)


@pytest.mark.parametrize("adapter", ["lora,r=16,on=linear", "dora,r=8", "ia3", "prefix,tokens=16"])
def test_an_adapter_is_told_of_frozen_weights_in_4_bits_recompute_and_states_of_8(adapter):
    answer = fit(batch=16, adapter=adapter)
    assert not answer.fits
    commands = [text for text in answer.would_fit if CARD in text and text.startswith("steptime f")]
    at_batch = [text for text in commands if "--batch 16" in text]
    assert all(adapter in text for text in commands)
    assert "--weights nf4 --recompute full" in at_batch[0]
    assert "--optimizer adamw8bit" in at_batch[-1]
    assert "axolotl-2025" in at_batch[-1]
    assert all(ask_again(text).fits for text in at_batch)


def test_the_less_costly_change_comes_first():
    """Weights in 4 bits alone where they are enough: they take less time than recompute."""
    answer = fit(batch=1, lora="r=16,on=linear")
    commands = [text for text in answer.would_fit if CARD in text and "--batch 1" in text]
    changes = [("nf4" in text, "--recompute full" in text) for text in commands]
    assert changes.index((True, False)) < changes.index((True, True))
    narrow = ask_again(commands[changes.index((True, False))])
    both = ask_again(commands[changes.index((True, True))])
    step_s = [answer.rows[0].step_s for answer in (narrow, both)]
    assert step_s[0] < step_s[1]


def test_frozen_weights_in_4_bits_are_among_what_saves_memory():
    changes = {saving.change: saving for saving in fit(batch=1, lora="16").helps}
    assert changes["nf4 weights"].saves_bytes > 4e9
    assert "nf4 weights" not in {saving.change for saving in fit(batch=1).helps}
    quantised = fit(batch=1, lora="16", weights="nf4")
    assert "nf4 weights" not in {saving.change for saving in quantised.helps}
