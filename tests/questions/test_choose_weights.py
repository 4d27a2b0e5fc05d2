"""`choose` of devices for weights of one's own machine says what `fit` says of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.questions.choose.desktop import DesktopChooseAnswer
from steptime.questions.choose.weights_page import WeightsPage

CARDS = ["rtx-3070", "rtx-4090", "m4-max-gpu", "ryzen-9-7950x"]
SHARED = (
    *("weights", "file_bytes", "needed_bytes", "fits", "longest_context", "verdict"),
    *("tokens_per_s_per_user", "tokens_per_s_low", "tokens_per_s_high", "prefill_tokens_per_s"),
)


def choose(weights: str, **options: object) -> DesktopChooseAnswer:
    answer = steptime.choose("llama3_8b", CARDS, weights=weights, **options)  # type: ignore[arg-type]
    assert isinstance(answer, DesktopChooseAnswer)
    return answer


@pytest.mark.parametrize("options", [{}, {"stack": "ollama", "length": 2048}])
def test_each_device_is_answered_as_fit_answers(options):
    for row in choose("q4_k_m", **options).rows:
        fit = steptime.fit("llama3_8b", row.device, weights="q4_k_m", **options).rows[0]
        assert [getattr(row, name) for name in SHARED] == [getattr(fit, name) for name in SHARED]


def test_of_all_types_the_one_of_most_bits_that_fits_is_taken():
    answer = choose("all")
    for row in answer.rows:
        fit = steptime.fit("llama3_8b", row.device, weights="all")
        expected = fit.best_weights if row.fits else fit.rows[-1].weights
        assert (row.weights, row.fits) == (expected, fit.fits)
    bits = [row.bits_per_weight for row in answer.rows]
    assert bits == sorted(bits, reverse=True)


def test_the_fastest_come_first_and_those_too_small_last():
    answer = steptime.choose("llama3_70b", ["rtx-3070", "a40", "h200-sxm"], weights="q4_k_m")
    assert [row.device for row in answer.rows] == ["h200-sxm", "a40", "rtx-3070"]
    assert [row.verdict for row in answer.rows] == ["yes", "yes", "no"]
    assert answer.rows[-1].longest_context == 0
    assert answer.headline[0].startswith("h200-sxm: q4_k_m fits")
    assert "1 device too small: rtx-3070" in answer.notes


def test_a_million_tokens_cost_the_hours_that_they_take():
    rows = {row.device: row for row in choose("q4_k_m", sort="cost").rows}
    row = rows["rtx-4090"]
    hours = 1e6 / row.tokens_per_s_per_user / 3600
    assert row.cost_per_million_tokens == pytest.approx(row.cost_per_hour * hours)
    assert rows["m4-max-gpu"].cost_per_million_tokens is None
    assert next(iter(rows)) == "rtx-4090"


def test_devices_of_unknown_cost_come_last_in_both_orders():
    orders = [
        [row.device for row in choose("q4_k_m", sort=sort).rows] for sort in ("cost", "-cost")
    ]
    assert all("m4-max-gpu" in order[-2:] for order in orders)
    assert orders[0][0] == "rtx-4090"


def test_devices_that_no_software_of_a_desk_runs_on_are_named():
    answer = steptime.choose("llama3_8b", ["rtx-4090", "tpu-v5e"], weights="q4_k_m")
    assert [row.device for row in answer.rows] == ["rtx-4090"]
    assert "1 device that llama.cpp is not for: tpu-v5e" in answer.notes


def test_an_affordable_device_is_one_below_the_price():
    answer = choose("q4_k_m", max_price=2)
    assert {row.device for row in answer.rows} == {"rtx-4090"}


def test_every_device_of_the_list_is_answered_or_named():
    answer = steptime.choose("llama3_8b", "gpu", weights="q4_k_m")
    assert len(answer.rows) > 50
    assert all(row.tokens_per_s_per_user > 0 for row in answer.rows)


def test_an_adapter_is_of_a_training():
    with pytest.raises(InputError, match="unknown weights 'q4_k_m'"):
        steptime.choose("llama3_8b", CARDS, weights="q4_k_m", adapter="ia3")


def write_page(path: Path, model: str = "llama3_8b", **options: Any) -> WeightsPage:
    answer = steptime.choose(model, ["rtx-4090", "tpu-v5e"], page=path, **options)
    assert isinstance(answer, WeightsPage)
    return answer


def test_a_page_lists_networks_types_and_contexts_of_every_device_that_runs_them(tmp_path):
    page = write_page(
        tmp_path / "page.html", "llama3_8b,gpt2", weights="q4_k_m,q8_0,int4", length="512,1024"
    )
    assert page.model == ("llama3_8b", "gpt2")
    assert page.weights == ("q4_k_m", "q8_0")  # `int4` is `q4_k_m`
    assert page.context_tokens == (512, 1024)
    assert page.device == ("rtx-4090",)
    assert page.row_count == 2 * 2 * 2
    assert page.notes[0] == "1 device that llama.cpp is not for: tpu-v5e"


def test_a_page_of_a_stack_has_the_type_that_its_answer_has(tmp_path):
    answer = steptime.choose("llama3_8b", "rtx-4090", stack="exllama")
    assert isinstance(answer, DesktopChooseAnswer)
    page = write_page(tmp_path / "page.html", stack="exllama")
    assert page.weights == (answer.rows[0].weights,)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"model": "llama3_8b,llama3_9b", "weights": "q4_k_m"}, "llama3_9b"),
        ({"weights": "q4_k_m,q4_k_n"}, "q4_k_n"),
        ({"weights": "q4_k_m", "batch": 8}, "--batch is of a training"),
        ({"weights": "q4_k_m", "max_price": 2}, "--max-price: the page has a field"),
        ({"weights": "q4_k_m", "length": "0"}, "--length"),
    ],
)
def test_a_page_is_refused_for_any_choice_that_no_device_answers(tmp_path, options, fault):
    with pytest.raises(InputError, match=fault):
        write_page(tmp_path / "page.html", **options)
    assert not (tmp_path / "page.html").exists()
