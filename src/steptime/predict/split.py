"""Where to cut a network between two devices: the first part here, the rest there.

After Kang et al. 2017 (Neurosurgeon): each cut costs the ops before it on the first device, the
tensors that cross it over the link, and the ops after it on the second device. The answer's way
back is left out, and so is any overlap of one example's transfer with another's work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.graph import Graph
from steptime.core.hardware import Device, Link
from steptime.paleo.layers import INPUT, layers_of
from steptime.predict.costs import costs
from steptime.predict.estimate import estimate
from steptime.predict.settings import CostModel


@dataclass(frozen=True)
class Cut:
    """A cut after one op or layer, "" for one before the first.

    `output_bytes` are those of the op itself, `crossing_bytes` of all tensors that are made before
    the cut and read after it. `flop` is the work up to the cut.
    """

    after: str
    flop: float
    output_bytes: int
    crossing_bytes: int
    first_s: float
    transfer_s: float
    second_s: float

    @property
    def total_s(self) -> float:
        """Seconds of one pass."""
        return self.first_s + self.transfer_s + self.second_s


@dataclass(frozen=True)
class _Node:
    parents: tuple[str, ...]
    output_bytes: int


def cuts(
    graph: Graph,
    dtype: str,
    devices: tuple[Device, Device],
    link: Link,
    method: CostModel,
    given: Mapping[str, str],
) -> list[Cut]:
    """Give every cut of an inference, in order: first all on the second device, last on the first.

    Raises `InputError` for what the method or a device does not know.
    """
    settings = method.chosen(given)
    found = costs(graph, dtype, settings)
    here, there = (estimate(found, device, dtype, settings).rows for device in devices)
    nodes = _ops(graph) if settings.ops else _layers(graph, dtype)
    names = [row.name for row in found.rows if row.name in nodes]
    sent = _crossing({name: nodes[name] for name in ("", *names)})
    rate = link.bytes_per_s * settings.ppp_comm
    before = _sums([row.forward.total_s for row in here if row.row.name in nodes])
    after = _sums([row.forward.total_s for row in there if row.row.name in nodes])
    flop = _sums([row.flop for row in here if row.row.name in nodes])
    return [
        Cut(
            name,
            flop[i],
            nodes[name].output_bytes,
            sent[i],
            before[i],
            (link.latency_s or 0.0) + sent[i] / rate if sent[i] else 0.0,
            after[-1] - after[i],
        )
        for i, name in enumerate(("", *names))
    ]


def _ops(graph: Graph) -> dict[str, _Node]:
    """Give the forward ops and the tensors between them; "" stands for the inputs."""
    found = {"": _Node((), sum(graph.tensors[name].size_bytes for name in graph.inputs))}
    maker = dict.fromkeys(graph.inputs, "")
    for op in graph.ops:
        parents = tuple(maker[name] for name in op.inputs if name in maker)
        found[op.name] = _Node(parents, graph.tensors[op.outputs[0]].size_bytes)
        maker.update(dict.fromkeys(op.outputs, op.name))
    return found


def _layers(graph: Graph, dtype: str) -> dict[str, _Node]:
    """Give the layers as the file has them; "" stands for the input."""
    size = SIZE_BYTES[precision(dtype).compute]
    layers = layers_of(graph)
    start = {layer.name for layer in layers if layer.kind == "input"} | {INPUT}
    inputs = sum(graph.tensors[name].size_bytes for name in graph.inputs)
    found = {"": _Node((), inputs)}
    for layer in layers:
        if layer.kind != "input":
            parents = tuple("" if name in start else name for name in layer.parents)
            found[layer.name] = _Node(parents, prod(layer.outputs) * size)
    return found


def _crossing(nodes: Mapping[str, _Node]) -> list[int]:
    """Give, for the cut after each node, the bytes of what is made before and read after it."""
    place = {name: i for i, name in enumerate(nodes)}
    last = dict.fromkeys(nodes, -1)
    for name, node in nodes.items():
        for parent in node.parents:
            last[parent] = place[name]
    change = [0] * (len(nodes) + 1)
    for name, node in nodes.items():
        if last[name] > place[name]:
            change[place[name]] += node.output_bytes
            change[last[name]] -= node.output_bytes
    return [int(total) for total in accumulate(change)][: len(nodes)]


def _sums(values: Iterable[float]) -> list[float]:
    """Give the sums of the first 0, 1, 2, ... values."""
    return list(accumulate(values, initial=0.0))
