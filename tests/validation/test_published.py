"""Published tables: known by their columns; a layer beside what was published of it."""

from __future__ import annotations

import pytest

from every import every
from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.planning.pipelines.stages import Part
from steptime.planning.plan_cost import cost_plan
from steptime.planning.plan_step import PlanStep
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.site import Site
from steptime.planning.request import Request
from validation.layouts import layout_of, layouts, stack_at

HEAD = "model_B,devices,tp,dp,pp,micro_batch,global_batch,sequence,hidden,layers,heads,step_s\n"
ROW = "3.6,64,2,32,1,4,512,2048,3072,30,32,4.0\n"


def test_a_table_is_known_by_its_columns_not_by_its_name(tmp_path):
    table = tmp_path / "anything.csv"
    table.write_text(HEAD + ROW, "utf-8")
    found = layout_of(table)
    assert found is not None
    assert found.name == "vTrain"
    table.write_text("model,seconds\nx,1\n", "utf-8")
    assert layout_of(table) is None


def test_a_layout_is_told_from_all_others():
    for one in layouts():  # those with most columns come first
        first = next(two for two in layouts() if {*one.columns} >= {*two.columns})
        assert first.key == one.key


def test_the_stack_is_that_of_the_date():
    assert stack_at("megatron", "2021-12") == "megatron-2021"
    assert stack_at("megatron", "24.07") == "megatron-2024"
    assert stack_at("megatron", "25.09") == "megatron-2025"
    assert stack_at("megatron", "26.06.01") == "megatron-2026"
    with pytest.raises(InputError, match="unknown software"):
        stack_at("megatro", "2024-01")


@every(
    ("sequence", "recompute", "forward_ms", "backward_ms"),  # Korthikanti et al. 2022, table 4
    [(False, "none", 7.7, 11.9), (False, "full", 7.7, 19.5), (False, "selective", 7.7, 13.2),
     (True, "none", 7.2, 11.8), (True, "selective", 7.2, 13.1)],
)  # fmt: skip
def test_a_layer_takes_what_was_measured_of_it(sequence, recompute, forward_ms, backward_ms):
    model = "transformer:layers=48,width=6144,heads=64,vocabulary=51200,dropout=0.1"
    request = Request(
        model, Site("a100-sxm4-80gb", 8, "nvlink-3"), dtype="float16", stack="megatron-2022"
    )
    plan = Plan(tensor=8, sequence=sequence, recompute=recompute)
    problem = request.make_problem(read_language_model(model, 2048), 8)
    layer = cost_plan(problem, PlanStep(plan, 4, 4)).passes(Part("block1", recompute != "none"))
    forward, backward = (1e3 * one.seconds for one in layer)
    assert forward == pytest.approx(forward_ms, rel=0.06)
    assert backward == pytest.approx(backward_ms, rel=0.06)
