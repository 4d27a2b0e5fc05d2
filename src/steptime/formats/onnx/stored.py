"""Quantised weights of an ONNX file: kept in the bits that the file has them in.

Runtimes scale them in the kernel of the product that reads them. In training they are of the run's
own type, since no step can move a weight of few bits.
"""

from collections.abc import Mapping
from dataclasses import replace

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.graph import Op
from steptime.core.units import counted
from steptime.formats.elements import PRODUCTS
from steptime.formats.onnx.fold import cleaned
from steptime.formats.onnx.model import Static
from steptime.formats.onnx.run import Visit
from steptime.formats.tensors import free_name
from steptime.network.ops import OPS

_NARROW = [name for name, size in SIZE_BYTES.items() if name.startswith("int") and size <= 1]


def store(run: Visit) -> list[str]:
    """Keep the quantised weights that products alone read as the file does; return what to say."""
    b, places = run.b, {op.name: i for i, op in enumerate(run.b.ops)}
    readers: dict[str, list[Op]] = {}
    for op in b.ops if run.quantised else ():
        for tensor in op.inputs:
            readers.setdefault(tensor, []).append(op)
    scales: dict[str, str] = {}
    kept, others = 0, 0
    for name, (dtype, scaled_by) in run.quantised.items():
        if name not in run.roots:
            continue
        seen, ends = _readers(readers, run.roots[name][0])
        fits = all(op.kind in PRODUCTS and op.inputs[1] in seen for op in ends)
        if b.training or dtype not in _NARROW or not fits:
            others += dtype in (*_NARROW, "float32")
            continue
        kept += 1
        for tensor in seen:
            b.tensors[tensor] = b.tensors[tensor]._replace(dtype=dtype)
            maker = b.made_by.get(tensor)
            if maker and maker.kind == "cast":  # the product itself makes numbers of its type
                shape = {"shape": b.shape(tensor)}
                b.ops[places[maker.name]] = replace(maker, kind="reshape", attrs=shape)
        tensors = tuple(_scale(run, one, scales) for one in scaled_by)
        for op in (one for one in ends if one.kind == "linear"):
            b.ops[places[op.name]] = replace(op, inputs=(*op.inputs, *tensors))
    types, what = b.precision, "quantised weight"
    said = []
    if kept:
        said.append(f"{counted(kept, what)} counted as stored, multiplied in {types.compute}")
    if others:
        said.append(f"{counted(others, what)} counted in {types.weights}, not as stored")
    return said


def _readers(readers: Mapping[str, list[Op]], weight: str) -> tuple[list[str], list[Op]]:
    """Return a weight, with its views and casts, and the other ops that read any of them."""
    seen: list[str] = [weight]
    ends: list[Op] = []
    for tensor in seen:
        for op in readers.get(tensor, ()):
            if OPS[op.kind].storage == "view" or op.kind == "cast":
                seen += op.outputs
            else:
                ends.append(op)
    return seen, ends


def _scale(run: Visit, constant: Static, made: dict[str, str]) -> str:
    """Return the buffer of a weight's scales or zero points."""
    if constant.name not in made:
        name = free_name(run.b, cleaned(constant.name) or "scales")
        dtype = "" if constant.is_float else constant.dtype
        made[constant.name] = run.b.buffer(name, constant.shape, dtype)
    return made[constant.name]
