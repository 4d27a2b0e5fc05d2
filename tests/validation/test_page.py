"""The page of results: parts that are written anew, and classes of rows."""

from __future__ import annotations

from steptime.calibration.cases import Case, op_kernels
from steptime.calibration.plan_rows import Question, Reply
from steptime.hardware import catalog
from validation import intervals
from validation.fitting.plans import GROUPS, class_of
from validation.page import PAGE, PARTS, main, marks, written
from validation.score import CaseAnswer
from validation.ways import Row


def row(answer: object, measured: str, form: str = "plan") -> Row:
    texts = {"device": "t4", "model": "m:a=1,heads=2"}
    question = Question("set", "place", answer, texts, {}, {measured: 1.0})  # type: ignore[arg-type]
    return Row("set", question, Reply({}, 64, "jax", form=form))


def test_a_part_is_written_between_its_marks():
    begin, end = marks("plans")
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    assert written(page, "plans", "new") == f"before\n{begin}\nnew\n\n{end}\nafter\n"
    assert written(written(page, "plans", "x"), "plans", "y") == written(page, "plans", "y")


def test_the_page_has_the_marks_of_each_part_once():
    page = PAGE.read_text("utf-8")
    for part in PARTS:
        assert [page.count(mark) for mark in marks(part)] == [1, 1], part


def test_the_part_by_campaign_is_renewed_between_its_marks():
    page = f"before\n{intervals.BEGIN}\nold\n{intervals.END}\nafter\n"
    renewed = intervals.write_part(page, "new")
    assert renewed == f"before\n{intervals.BEGIN}\nnew\n\n{intervals.END}\nafter\n"


def test_what_is_no_part_is_said_to_be_none():
    assert main([]) == 2
    assert main(["plan"]) == 2


def test_rows_are_of_classes():
    kernels = op_kernels("relu", ((8, 8),), {}, "float32")
    for condition, words in (
        ("repeated", "single ops and layers"),
        ("step", "steps of one device"),
    ):
        case = Case(kernels, catalog.device("t4"), 1.0, "relu", condition)  # type: ignore[arg-type]
        assert class_of(row(CaseAnswer(case), "seconds")) == words
    assert class_of(row(None, "step_s")) == "trainings, dense"
    assert class_of(row(None, "step_s", "experts")) == "trainings, mixtures"
    assert class_of(row(None, "exchange_s")) == "exchanges"
    assert class_of(row(None, "ttft_s", "serve")) == "servings"
    assert class_of(row(None, "tpot_s", "experts")) == "servings, mixtures"
    assert [of(row(None, "step_s")) for of in GROUPS.values()] == ["m:a=1", "t4", "up to 64", "jax"]
