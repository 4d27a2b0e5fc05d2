"""Every setting that an answer assumes is an option; its printed value changes no number."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import steptime
from every import every
from steptime.core.question import named

CNN = {"model": "resnet18", "device": "a100", "batch": 8}
OF_IMAGES = {"model": "resnet18", "batch": 8}
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
    ("whatif", ("a100", BANDWIDTH), OF_IMAGES),
    ("whatif", ("a100", ["memory_GB_per_s=x1..x2x2"]), OF_IMAGES),
    ("whatif", ("a100",), {"model": "fc", "batch": "largest", "upgrade": BANDWIDTH}),
)


def _ask(name: str, values: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    return getattr(steptime, name)(*values, **options)


def _document(answer: Any) -> Any:
    return json.loads(json.dumps(answer.to_dict()))


def _name(i: int, item: Any) -> str:
    """Return the name of an item of a list: rows of devices change places."""
    return str(item.get("device", i) if isinstance(item, Mapping) else i)


def _numbers(document: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of all numbers and truth values of a JSON document."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            yield from _numbers(value, f"{place}.{key}")
    elif isinstance(document, list):
        for i, item in enumerate(document):
            yield from _numbers(item, f"{place}[{_name(i, item)}]")
    elif isinstance(document, int | float):
        yield place, document


def _assumed(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that an answer or its rows assume: the place, the key and the value."""
    for key, value in (document.get("assumed") or {}).items():
        yield "", key, value
    for i, row in enumerate(document.get("rows", ())):
        for key, value in (row.get("assumed") or {}).items():
            yield f".rows[{_name(i, row)}]", key, value


@every(("name", "values", "options"), QUESTIONS)
def test_an_assumed_setting_is_an_option_and_its_printed_value_changes_no_number(
    name, values, options
):
    answer = _ask(name, values, options)
    document, text = _document(answer), " ".join(str(answer).split())
    settings = list(_assumed(document))
    assert settings
    for place, key, value in settings:
        assert f"{named(key)} {value}" in text, text
        again = dict(_numbers(_document(_ask(name, values, {**options, key: value}))))
        changed = {
            where: (number, again.get(where))
            for where, number in _numbers(document)
            if where.startswith(place) and again.get(where) != number
        }
        assert not changed, (key, value, changed)
