"""Remarks of a prediction: what it leaves out, and what nobody measured."""

from typing import NamedTuple

from steptime.core.dtypes import describe_low_products
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.hardware.stack import Stack
from steptime.prediction.method import Method


class RemarkKey(NamedTuple):
    """The properties of a graph that decide its remarks: kinds of ops, unknown layers, its own."""

    kinds: frozenset[str]
    unmodelled: tuple[str, ...]
    remarks: tuple[str, ...]


def remark_key(graph: Graph) -> RemarkKey:
    """Return the properties that decide the remarks of a step of a graph."""
    kinds = frozenset(op.kind for op in graph.ops)
    return RemarkKey(kinds, tuple(graph.unmodelled), tuple(graph.remarks))


def list_remarks(
    graph: Graph, method: Method, dtype: str, device: Device, stack: Stack
) -> tuple[str, ...]:
    """Return the remarks of a step of a graph; equal for graphs of equal `remark_key`."""
    remarks = [*method.notes(graph, dtype, device, method.settings)]
    if graph.unmodelled:
        remarks.append(f"layers of unknown type count nothing: {', '.join(graph.unmodelled)}")
    remarks += describe_low_products(dtype)
    if device.kind == "cpu":
        op_kinds = {op.kind for op in graph.ops}
        # `on_cpu` has a remark for each kind of op that the stack runs otherwise than is predicted.
        remarks += [text for kind, text in stack.on_cpu.items() if kind in op_kinds]
    return (*remarks, *graph.remarks)


def no_link(replicas: int, device: Device) -> InputError:
    """Return the error of replicas that nothing joins, with the link that their maker names."""
    links = catalog.links_of(device)
    inside = f"; in a node of {device.name} it is '{links[0].name}'" if len(links) == 1 else ""
    return InputError(f"{replicas} replicas need a link: --link LINK (steptime list links){inside}")
