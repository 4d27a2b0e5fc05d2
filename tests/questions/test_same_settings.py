"""Every setting that an answer assumes is an option; its printed value changes no number."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_type_hints

import pytest

import steptime
from every import every
from steptime.api import QUESTIONS as QUESTIONS_BY_NAME
from steptime.core.answer import answer_kinds, public_fields, structs_of
from steptime.core.registry import load
from steptime.core.signatures.signature import option_name
from steptime.questions.whatif.answer import WhatIfAnswer

CNN = {"model": "resnet18", "device": "a100", "batch": 8}
OF_IMAGES = {"model": "resnet18", "batch": 8}
LOAD = {"input": 64, "output": 4, "rate": 1, "count": 5, "tpot": 0.1}
BANDWIDTH = ["memory_GB_per_s=x2"]
QUESTIONS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    ("predict", (), CNN),
    ("predict", (), CNN | {"stack": "torch-compile"}),
    ("predict", (), CNN | {"tf32": "on", "host": "slow"}),
    ("predict", (), CNN | {"method": "roofline"}),
    ("predict", (), CNN | {"method": "analytic"}),
    ("predict", (), CNN | {"device": "epyc-7742"}),
    ("predict", ("gpt2", "rtx-3090"), {"batch": 2, "dtype": "bfloat16-mixed"}),
    ("predict", ("gpt2", "tpu-v5e"), {"batch": 2, "dtype": "bfloat16"}),
    ("predict", ("gpt2", "a100"), {"batch": 1, "phase": "infer"}),
    ("fit", (), CNN),
    ("fit", ("llama3_8b", "rtx-4090"), {"batch": 1, "dtype": "bfloat16"}),
    ("count", (), OF_IMAGES),
    ("count", (), OF_IMAGES | {"stack": "torch-compile"}),
    ("why", (), CNN),
    ("why", (), CNN | {"phase": "infer", "dtype": "float16"}),
    ("why", (), CNN | {"host": "slow"}),
    ("choose", ("resnet18", "a100,t4,rtx-4090"), {"batch": 8}),
    ("scale", (), CNN | {"link": "infiniband-ndr", "replicas": "1,8"}),
    ("plan", ("gpt2", "h100"), {"data": 16, "link": "infiniband-ndr"}),
    ("plan", ("gpt2", "h100"), {"global_batch": 4}),
    ("plan", ("resnet50", "v100"), {"data": 4, "global_batch": 64}),
    ("plan", ("gpt2", "h100", 32, 8), {}),
    ("predict", ("gpt2", "a100"), {"batch": 2}),
    ("predict", ("gpt2", "v100"), {"batch": 2}),
    ("predict", ("bert_base", "core-i9-9900k"), {"batch": 1}),
    ("predict", ("rnn", "K40"), {"batch": 8}),
    ("predict", ("resnet18", "tpu-v3"), {"batch": 8}),
    ("predict", ("llama3_8b", "h100"), {"phase": "infer"}),
    ("predict", ("gpt2,resnet18", "a100,v100"), {"batch": 2, "all_cells": True}),
    ("fit", ("gpt2", "v100"), {"batch": 2}),
    ("count", (), {"model": "gpt2"}),
    ("why", ("gpt2", "a100"), {"batch": 2}),
    ("choose", ("gpt2", "a100,v100"), {"batch": 2}),
    ("scale", ("gpt2", "v100"), {"link": "infiniband-ndr", "replicas": "1,8"}),
    ("plan", ("gpt2", "v100"), {}),
    ("plan", ("rnn", "a100"), {"global_batch": 8}),
    ("serve", ("gpt2", "v100"), {"input": 512}),
    ("serve", ("llama3_8b", "h100"), {"stack": "vllm"}),
    ("serve", ("gpt2", "h100"), LOAD),
    ("serve", ("gpt2", "h100,l40s"), LOAD | {"search": True, "max_device_count": 1}),
    ("predict", (), CNN | {"stack": "torch-eager,torch-compile"}),
    ("plan", ("gpt2", "h100"), {"data": 2, "tensor": 6}),
    ("split", ("resnet18", "K40", "V100", "ethernet-10"), {}),
    ("split", ("gpt2", "v100", "a100", "ethernet-10"), {}),
    ("whatif", ("a100", BANDWIDTH), {"model": "gpt2", "batch": 2}),
    ("whatif", ("a100", BANDWIDTH), OF_IMAGES),
    ("whatif", ("a100", ["memory_GB_per_s=x1..x2x2"]), OF_IMAGES),
    ("whatif", ("a100",), {"model": "fc", "batch": "largest", "upgrade": BANDWIDTH}),
)


OF_OTHER_STACKS = ("any_stack_", "other_stacks[")
"""Beginnings of keys with the stacks that could be meant, of which a named stack leaves none."""


def _ask(name: str, values: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    return getattr(steptime, name)(*values, **options)


def _document(answer: Any) -> Any:
    return json.loads(json.dumps(answer.to_dict()))


def _is_of_other_stacks(key: str, where: str) -> bool:
    """Return whether a number is of stacks that could be meant, and the stack is named now."""
    words = where.split(".")
    return key == "stack" and any(word.startswith(OF_OTHER_STACKS) for word in words)


def _names(items: Sequence[Any]) -> list[str]:
    """Return the names of the items of a list: rows of different devices change places."""
    devices = [item.get("device") for item in items if isinstance(item, Mapping)]
    if len({*devices} - {None}) == len(items):
        return [str(device) for device in devices]
    return [str(i) for i in range(len(items))]


def _numbers(document: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of all numbers and truth values of a JSON document."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            yield from _numbers(value, f"{place}.{key}")
    elif isinstance(document, list):
        for name, item in zip(_names(document), document, strict=True):
            yield from _numbers(item, f"{place}[{name}]")
    elif isinstance(document, int | float):
        yield place, document


def _assumed(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that an answer or its rows assume: the place, the key and the value."""
    for key, value in (document.get("assumed") or {}).items():
        yield "", key, value
    rows = document.get("rows", ())
    for name, row in zip(_names(rows), rows, strict=True):
        for key, value in (row.get("assumed") or {}).items():
            yield f".rows[{name}]", key, value


def _changed(
    document: Mapping[str, Any], again: Any, place: str, keys: Iterable[str]
) -> dict[str, tuple[Any, Any]]:
    """Return the numbers below a place that another answer says otherwise, by their places."""
    numbers = dict(_numbers(_document(again)))
    return {
        where: (number, numbers.get(where))
        for where, number in _numbers(document)
        if where.startswith(place) and numbers.get(where) != number
        if not any(_is_of_other_stacks(key, where) for key in keys)
    }


def _hold_each_setting(name: str, values: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    document = _document(_ask(name, values, options))
    for place, key, value in _assumed(document):
        if "," in str(options.get(key, "")):  # side by side
            continue
        again = _ask(name, values, {**options, key: value})
        assert not _changed(document, again, place, [key]), (key, value)


@pytest.mark.slow
@every(("name", "values", "options"), QUESTIONS)
def test_assumed_settings_are_options_and_their_printed_values_change_no_number(
    name, values, options
):
    """All settings of an answer, or of a row, at once."""
    answer = _ask(name, values, options)
    document, text = _document(answer), " ".join(str(answer).split())
    settings_of: dict[str, dict[str, str]] = {}
    for place, key, value in _assumed(document):
        assert f"{option_name(key)} {value}" in text, text
        is_side_by_side = "," in str(options.get(key, ""))
        settings = settings_of.setdefault(place, {})
        if not is_side_by_side:
            settings[key] = value
    assert settings_of
    for place, settings in settings_of.items():
        again = _ask(name, values, {**options, **settings})
        assert not _changed(document, again, place, settings), settings


@pytest.mark.rare  # the test above sets all at once
@every(("name", "values", "options"), QUESTIONS)
def test_each_assumed_setting_of_any_question_changes_no_number(name, values, options):
    _hold_each_setting(name, values, options)


def test_every_command_that_assumes_settings_is_asked():
    names = set()
    for name, row in QUESTIONS_BY_NAME.items():
        for kind in answer_kinds(get_type_hints(load(row.answer))["return"]):
            if any("assumed" in public_fields(part) for part in (kind, *structs_of(kind))):
                names.add(name)
    others = {"run", "report"}  # `run` has a test of its own; `report` assumes its limit alone
    assert names - others == {name for name, *_ in QUESTIONS}


@pytest.mark.slow
def test_what_run_assumes_measures_the_same_step():
    asked: dict[str, Any] = {"model": "rnn:length=4", "backend": "null", "budget": 0.01}
    answer = steptime.run(**asked)
    assert {*answer.assumed} == {"dtype", "optimizer"}
    for key, value in answer.assumed.items():
        assert f"{option_name(key)} {value}" in " ".join(str(answer).split())
        again = steptime.run(**asked, **{key: value})
        for name in (
            "status",
            "model",
            "batch",
            "dtype",
            "optimizer",
            "flop",
            "planned_memory_bytes",
        ):
            assert getattr(again, name) == getattr(answer, name), (key, name)


MIXED = ("resnet18", "gpt2")


@pytest.mark.parametrize(
    "how",
    [
        {"set_": BANDWIDTH},
        {"set_": ["memory_GB_per_s=x1..x2x2"]},
        {"upgrade": ["memory_GB_per_s=x2", "peak=x2"]},
    ],
    ids=["change", "ranges", "upgrades"],
)
def test_whatif_says_the_settings_of_each_network_where_they_differ(how):
    answer = steptime.whatif("a100", model=",".join(MIXED), batch=4, **how)
    assert "dtype" not in answer.assumed
    settings = {row.model: row.assumed for row in answer.network_settings}
    assert tuple(settings) == MIXED
    text = " ".join(str(answer).split())
    for model, assumed in settings.items():
        for key, value in assumed.items():
            assert f"{option_name(key)} {value}" in text
        single = steptime.whatif("a100", model=model, batch=4, **how)
        again = steptime.whatif("a100", model=model, batch=4, **how, **assumed)
        assert dict(_numbers(_document(again))) == dict(_numbers(_document(single)))
        assert single.assumed == assumed
        assert single.network_settings == ()
        if isinstance(answer, WhatIfAnswer):
            assert [row for row in answer.rows if row.model == model] == list(single.rows)
