"""ONNX files against independent counts: torch's own, and the shapes that ONNX Runtime makes.

    python benchmarks/onnx_witness.py FOLDER [MODEL ...]     networks of torchvision, exported there
    python benchmarks/onnx_witness.py --files FILE.onnx ...  other people's files

Needs torch, torchvision, onnxscript, onnx and onnxruntime, of which steptime reads by onnx alone.
FLOP are those of products and convolutions, a multiply-add being 2.
"""

import math
import re
import sys
from pathlib import Path
from typing import Any

from steptime.build import build_step, make_workload, read_model
from steptime.network.count import count
from steptime.network.ops import OPS

NETWORKS = (
    "resnet50",
    "mobilenet_v2",
    "efficientnet_b0",
    "densenet121",
    "vit_b_16",
    "convnext_tiny",
)


def ours(path: str, batch: int) -> tuple[int, int]:
    """Return FLOP of products, and parameters."""
    found = count(build_step(make_workload(read_model(path), batch, "float32", "infer")))
    return sum(op.flop for op in found.ops if OPS[op.kind].work), found.parameters


def exported(folder: Path, name: str) -> tuple[str, int, int]:
    """Write a network of torchvision; return its file, and torch's FLOP and parameters."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from steptime.measure.backends.native.module import without_operators

    with without_operators():
        from torchvision import models

    network = getattr(models, name)(weights=None).train(False)
    for parameter in network.parameters():  # equal weights would be stored once
        torch.nn.init.normal_(parameter.data)
    image = torch.zeros(2, 3, 224, 224)
    path = str(folder / f"{name}.onnx")
    sizes = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(network, (image,), path, dynamo=True, dynamic_shapes=sizes, verbose=False)
    network.train()  # the fast path of attention hides its products
    for part in network.modules():
        if isinstance(part, torch.nn.BatchNorm2d | torch.nn.Dropout):
            part.train(False)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        network(image[:1])
    return path, counter.get_total_flops(), sum(p.numel() for p in network.parameters())


def run_by_onnxruntime(path: str, sizes: dict[str, int]) -> int:
    """Return the FLOP of a file's products and convolutions by the shapes that it makes."""
    import numpy as np
    import onnx
    import onnxruntime

    model = onnx.load(path)
    wanted = [
        n for n in model.graph.node if n.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
    ]
    known = {value.name for value in model.graph.output}
    for node in wanted:
        for name in (*node.input[:2], *node.output[:1]):
            if name not in known:
                known.add(name)
                model.graph.output.append(onnx.ValueInfoProto(name=name))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feed: dict[str, Any] = {}
    for one in session.get_inputs():
        words = [n if isinstance(n, int) else re.sub(r"\W+", "_", str(n)) for n in one.shape]
        shape = [n if isinstance(n, int) else sizes.get(n, 1) for n in words]
        kind = one.type.removeprefix("tensor(").removesuffix(")").replace("float", "float32")
        feed[one.name] = np.zeros(shape, kind.replace("float3232", "float32"))
    names = [value.name for value in session.get_outputs()]
    shapes = {n: np.shape(v) for n, v in zip(names, session.run(None, feed), strict=True)}
    weights = {w.name: tuple(w.dims) for w in model.graph.initializer}
    total = 0
    for node in wanted:
        left, right = (shapes.get(n) or weights[n] for n in node.input[:2])
        out = shapes[node.output[0]]
        if node.op_type == "Conv":
            total += 2 * math.prod(out) * math.prod(right[1:])
        elif node.op_type == "ConvTranspose":
            total += 2 * math.prod(left) * math.prod(right[1:])
        else:
            turned = any(a.name == "transA" and a.i for a in node.attribute)
            total += 2 * math.prod(out) * (left[0] if turned else left[-1])
    return total


def main(arguments: list[str]) -> int:
    """Print the table; 1 where two counts differ."""
    rows: list[tuple[str, int, int, int, int | None]] = []
    if arguments[:1] == ["--files"]:
        for text in arguments[1:]:
            path, _, given = text.partition(".onnx:")
            path = path if not given else f"{path}.onnx"
            sizes = {k: int(v) for k, v in (s.split("=") for s in given.split(",") if given)}
            flop, parameters = ours(text, 1)
            rows.append((Path(path).name, flop, run_by_onnxruntime(path, sizes), parameters, None))
    else:
        folder = Path(arguments[0])
        for name in arguments[1:] or NETWORKS:
            path, witness_flop, witness_weights = exported(folder, name)
            flop, parameters = ours(path, 1)
            rows.append((name, flop, witness_flop, parameters, witness_weights))
    print(f"{'network':28} {'FLOP here':>16} {'witness':>16} {'parameters':>12} {'witness':>12}")
    for name, flop, theirs, parameters, weights in rows:
        said = "" if weights is None else f"{weights:,}"
        print(f"{name:28} {flop:16,} {theirs:16,} {parameters:12,} {said:>12}")
    return int(any(row[1] != row[2] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
