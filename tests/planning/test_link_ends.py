"""What links reach widens plans, replicas and servers; who is joined how is said."""

import pytest

import steptime
from every import every
from steptime.core.errors import InputError


def plan(**options):
    return steptime.plan("llama3_8b", device="h100", data=16, global_batch=16, **options)


def test_a_plan_that_waits_for_its_link_is_as_unsure_as_the_link():
    slow = plan(link="ethernet-1")
    assert slow.low_s < 0.82 * slow.step_s  # a spread of 0.25 in ln
    assert slow.high_s > 1.22 * slow.step_s


def test_replicas_and_a_plan_of_them_have_the_same_ends():
    joined = {"link": "ethernet-10", "inside": "nvlink-4", "per_node": 8, "links_per_node": 8}
    one = steptime.plan("resnet50", device="h100", data=16, global_batch=1024, **joined)
    (row,) = steptime.scale("resnet50", "h100", replicas=16, overlap=True, **joined).rows
    assert (row.low_s, row.step_s, row.high_s) == pytest.approx((one.low_s, one.step_s, one.high_s))
    assert row.low_s < row.step_s < row.high_s


def test_a_server_over_slow_links_is_less_sure_than_one_over_quick_ones():
    widths = []
    for link in ("nvlink-4", "pcie-4-x16"):
        server = steptime.serve(
            "llama3_8b", device="h100", tensor=4, inside=link, stack="vllm-2026",
            running_sequences=64,
        )  # fmt: skip
        widths.append(server.tpot_high_s / server.tpot_low_s)
    assert widths[0] < widths[1]


@every(
    ("question", "options"),
    [
        ("scale", {"replicas": 4}),
        ("plan", {"data": 4, "global_batch": 256}),
    ],
)
def test_cards_without_access_to_each_other_take_longer(question, options):
    ask = getattr(steptime, question)
    took = []
    for link in ("pcie-4-x16", "pcie-4-x16-host"):
        answer = ask(
            "vgg16", device="rtx-3090", inside=link, link="ethernet-10", per_node=4, **options
        )
        took.append(answer.rows[0].step_s if question == "scale" else answer.step_s)
    assert took[0] < took[1]


def test_a_server_without_access_to_each_other_takes_longer():
    took = [
        steptime.serve("llama3_8b", device="rtx-3090", tensor=4, inside=link).tpot_s
        for link in ("pcie-4-x16", "pcie-4-x16-host")
    ]
    assert took[0] < took[1]


def test_the_node_of_the_maker_is_used_and_said():
    answer = plan()
    assert answer.assumed["link"] == "infiniband-ndr"
    assert answer.assumed["inside"] == "nvlink-4"
    scaled = steptime.scale("resnet50", "h100", replicas=16)
    joined = {
        "inside": "nvlink-4",
        "link": "infiniband-ndr",
        "per_node": "8",
        "links_per_node": "8",
    }
    assert joined.items() <= scaled.assumed.items()
    said = {name: value for name, value in scaled.assumed.items() if name in joined}
    again = steptime.scale("resnet50", "h100", replicas=16, **said)
    assert again.rows == scaled.rows
    with pytest.raises(InputError, match="need a link"):
        steptime.scale("resnet50", "rtx-3080", replicas=2)


def test_a_link_between_nodes_joins_no_devices_of_a_node():
    (near,) = steptime.scale("resnet50", "h100", link="ethernet-1", replicas=8).rows
    assert near.communication_s < 0.01
    (alone,) = steptime.scale("resnet50", "h100", link="ethernet-1", per_node=1, replicas=8).rows
    assert alone.communication_s > 1
    t4 = steptime.plan("llama3_2_1b", device="t4", tensor=4, link="ethernet-1", global_batch=8)
    assert t4.assumed["inside"] == "pcie-3-x16"
