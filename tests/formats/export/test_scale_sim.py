"""A topology of SCALE-Sim has the multiply-adds that we count, and its own formula of positions."""

from __future__ import annotations

import csv
import io
import math

from steptime.build import build, make_workload, read_model
from steptime.core.graph import Graph
from steptime.energy.scale_sim import HEADER, topology
from steptime.network.count import count
from steptime.network.ops import OPS


def graph_of(text: str, batch: int = 1) -> Graph:
    return build(make_workload(read_model(text), batch, phase="infer"))


def multiply_adds(text: str) -> int:
    """What SCALE-Sim makes of the rows: ceil((height - filter + stride) / stride) positions."""
    total = 0
    for _, *numbers, end in list(csv.reader(io.StringIO(text)))[1:]:
        assert not end.strip()
        height, width, high, wide, channels, filters, stride = map(int, numbers)
        positions = math.ceil((height - high + stride) / stride) * math.ceil(
            (width - wide + stride) / stride
        )
        total += positions * high * wide * channels * filters
    return total


def counted(graph: Graph) -> int:
    return sum(cost.flop for cost in count(graph).ops if OPS[cost.kind].products) // 2


def test_multiply_adds_of_real_networks():
    for text, batch in (
        ("resnet50", 1),
        ("mobilenet_v2", 1),
        ("resnet18", 4),
        ("bert_base:length=16", 1),
        ("rnn:cell=lstm,length=5", 2),
        ("fc", 64),
    ):
        graph = graph_of(text, batch)
        assert multiply_adds(topology(graph)[0]) == counted(graph), text


def test_rows_by_hand():
    """The first layer of ResNet-50: 112 positions of 7 at stride 2 cover 229 of the padded 230."""
    text, left = topology(graph_of("resnet50"))
    first, second, *_ = text.splitlines()
    assert first == HEADER
    assert second == "stem/conv/conv2d, 229, 229, 7, 7, 3, 64, 2,"
    assert text.splitlines()[-1].endswith(", 1, 1, 1, 1, 2048, 1000, 1,")
    assert left["batch_norm"] == 53
    assert "conv2d" not in left


def test_a_depthwise_convolution_has_one_filter_over_all_channels():
    (row,) = (
        line
        for line in topology(graph_of("mobilenet_v1"))[0].splitlines()
        if ", 512, 1, 2," in line
    )
    assert row.split(", ")[1:3] == ["15", "15"]  # 7 positions of 3 at stride 2


def test_attention_is_two_products_a_head():
    text, _ = topology(graph_of("bert_base:length=16"))
    scores = [line for line in text.splitlines() if line.endswith(", 16, 1, 1, 1, 64, 16, 1,")]
    assert len(scores) == 12 * 12
