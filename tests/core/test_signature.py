"""Parameters of plain questions, their schema and their answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict, Unpack

import msgspec
import pytest

from steptime.core.answer import Answer, AnswerRow, answer_schema
from steptime.core.errors import InputError
from steptime.core.signatures.kinds import Kind, Settings, setting_texts, text_of
from steptime.core.signatures.signature import REQUIRED, OptionGroup, parameters_of
from steptime.core.tables.table import Column, LazySequence, Table


class TuneKeywords(TypedDict, total=False):
    lora: Annotated[str, Kind("r=N")] | None
    fused: bool


@dataclass(frozen=True)
class TuneOptions(OptionGroup, keywords=TuneKeywords):
    """How a network is tuned.

    Args:
        lora: Fine-tune by LoRA of this rank.
        fused: One kernel updates all weights.
    """

    lora: str | None = None
    fused: bool = False


class Line(AnswerRow, frozen=True, kw_only=True):
    """A line.

    Attributes:
        step_s: seconds of a step.
    """

    step_s: float


class Lines(Answer, frozen=True, kw_only=True):
    """Some lines.

    Attributes:
        rows: the lines.
        headline: short facts.
        notes: remarks.
    """

    rows: Sequence[Line]
    headline: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    _title: str = ""

    def tables(self) -> list[Table]:
        return [
            Table((Column("step_s", "step"),), [row.to_dict() for row in self.rows], self._title)
        ]


def ask(
    model: Annotated[str, Kind("MODEL", is_argument=True)],
    steps: Annotated[int | str, Kind("N")] = 2,
    settings: Annotated[Settings, Kind("NAME=VALUE", names=("--option",))] | None = None,
    **options: Unpack[TuneKeywords],
) -> Lines:
    """Say some lines.

    Args:
        model: A network.
        steps: Steps of a run.
        settings: An option of the method.
    """
    TuneOptions.from_keywords(options, ask)
    return Lines(rows=(Line(step_s=1.0),))


class Totals(Answer, frozen=True, kw_only=True):
    """A total.

    Attributes:
        total_s: seconds.
    """

    total_s: float


def test_parameters_have_kinds_texts_and_defaults():
    model, steps, settings, lora, fused = parameters_of(ask)
    assert (model.option, model.default, model.help) == ("MODEL", REQUIRED, "A network.")
    assert (steps.option, steps.default, steps.kind.metavar) == ("--steps", 2, "N")
    assert settings.option == "--option"
    assert settings.is_repeatable
    assert (lora.option, lora.default, lora.kind.metavar) == ("--lora", None, "r=N")
    assert lora.help == "Fine-tune by LoRA of this rank."
    assert fused.is_flag
    assert not steps.is_repeatable


def test_a_group_refuses_keywords_of_others():
    with pytest.raises(InputError, match="ask: unknown parameter 'loar'; did you mean 'lora'"):
        ask("fc", loar="r=8")  # type: ignore[call-arg]


def test_values_of_python_become_texts():
    assert text_of([1, 2]) == "1,2"
    assert text_of([(4, "ethernet-25")]) == "4:ethernet-25"
    assert text_of(0.5) == "0.5"
    assert text_of(None) is None
    assert text_of(True) is True
    assert setting_texts({"fused": True, "tile": 4}) == ["fused=true", "tile=4"]
    with pytest.raises(InputError, match="--option: must be a table"):
        setting_texts(4)  # type: ignore[arg-type]


def test_an_answer_is_the_same_at_every_call():
    lines = LazySequence(2, lambda: (Line(step_s=step_s) for step_s in (1.0, 2.0)))
    answer = Lines(rows=lines, headline=("two lines",), notes=("a remark",), _title="lines")
    rows = [{"step_s": 1.0}, {"step_s": 2.0}]
    document = {"rows": rows, "headline": ["two lines"], "notes": ["a remark"]}
    for _ in range(2):
        assert answer.to_dict() == document
        assert msgspec.json.decode(answer.to_json()) == document
        assert answer.to_pandas().to_dict("records") == rows
        assert str(answer) == "lines\n step\n  1 s\n  2 s\ntwo lines\nnote: a remark\n"
        assert answer._repr_html_().count("<tr>") == 3
    with pytest.raises(AttributeError):
        answer.rows = ()  # type: ignore[misc]


def test_the_schema_of_an_answer_says_every_public_field():
    schema = answer_schema(Lines)
    assert {name: text["description"] for name, text in schema["properties"].items()} == {
        "rows": "the lines.",
        "headline": "short facts.",
        "notes": "remarks.",
    }
    assert schema["$defs"]["Line"]["properties"]["step_s"]["description"] == "seconds of a step."


def test_the_schema_of_a_union_is_any_of_its_answers():
    schema = answer_schema(Lines | Totals)
    first, second = schema["anyOf"]
    assert set(first["properties"]) == {"rows", "headline", "notes"}
    assert set(second["properties"]) == {"total_s"}
    assert second["properties"]["total_s"]["description"] == "seconds."
    assert set(schema["$defs"]) == {"Line"}
