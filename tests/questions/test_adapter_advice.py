"""What `fit` proposes for an adapter on a small card: what people do, the least costly first."""

from __future__ import annotations

import shlex

import pytest

import steptime

SMALL_MODEL = "llama3_2_1b:length=512"
CARD = "rtx-3060"


def ask_again(command: str) -> steptime.FitAnswer:
    """Ask a proposed `fit` as Python does."""
    words = shlex.split(command)[2:]
    pairs = zip(words[1::2], words[2::2], strict=True)
    options = {name.removeprefix("--").replace("-", "_"): value for name, value in pairs}
    return steptime.fit(words[0], options.pop("device"), options.pop("batch"), **options)


@pytest.mark.rare
def test_an_adapter_is_told_of_frozen_weights_in_4_bits_recompute_and_states_of_8():
    answer = steptime.fit(
        SMALL_MODEL, CARD, 64, dtype="bfloat16", optimizer="adamw", adapter="dora,r=8,on=linear"
    )
    assert not answer.fits
    commands = [text for text in answer.would_fit if CARD in text and text.startswith("steptime f")]
    at_batch = [text for text in commands if "--batch 64" in text]
    assert all("dora,r=8,on=linear" in text for text in commands)
    assert "--weights nf4 --recompute full" in at_batch[0]
    assert "--optimizer adamw8bit" in at_batch[-1]
    assert "axolotl-2025" in at_batch[-1]
    assert ask_again(at_batch[0]).fits


@pytest.mark.slow
def test_the_less_costly_change_comes_first():
    """Weights in 4 bits alone where they are enough: they take less time than recompute."""
    words = {"dtype": "bfloat16", "optimizer": "adamw", "lora": "r=16,on=linear"}
    answer = steptime.fit("qwen3_4b:length=1024", CARD, 1, **words)
    commands = [text for text in answer.would_fit if CARD in text and "--batch 1" in text]
    changes = [("nf4" in text, "--recompute full" in text) for text in commands]
    assert changes.index((True, False)) < changes.index((True, True))


@pytest.mark.slow
def test_frozen_weights_in_4_bits_are_among_what_saves_memory():
    usual: dict[str, object] = {"dtype": "bfloat16", "optimizer": "adamw"}
    answers = [
        steptime.fit(SMALL_MODEL, "a100", 1, **usual, **words)
        for words in ({"lora": "16"}, {}, {"lora": "16", "weights": "nf4"})
    ]
    plain, whole, quantised = (
        {saving.change: saving.saves_bytes for saving in answer.helps} for answer in answers
    )
    products = 1_235_814_400 - 128_256 * 2048
    assert plain["nf4 weights"] == pytest.approx(products * (16 - 4.5) / 8, rel=0.1)
    assert "nf4 weights" not in {*whole, *quantised}
