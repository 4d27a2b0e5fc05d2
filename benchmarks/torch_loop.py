"""Compare measured steps of torch, torch-compile and onnxruntime with loops written by hand.

Four networks as `jax_loop.py` has them, each a module as one would write it; ONNX Runtime gets the
file that PyTorch's own exporter makes of that module. Both sides run in one process on the same
CPUs, in short blocks in turns A B A B, A first in one pair and B in the next. One thread is timed
by the CPU time of the process, which no other work lengthens by waiting. Prints a line a network
and stack: the median of the ratios of paired medians (steptime / by hand), the quartiles of these
ratios, and the ratio of the minima.

    python benchmarks/torch_loop.py --pairs 20 --stacks torch,torch-compile,onnxruntime
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

from jax_loop import MODELS

STACKS = ("torch", "torch-compile", "onnxruntime")
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**25)}

Step = Callable[[], object]


def modules() -> dict[str, Callable[[], Any]]:
    """Return what makes the module of each network, logits out."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(512, 256)
            self.cell = nn.LSTM(256, 256, batch_first=True)
            self.out = nn.Linear(256, 512)

        def forward(self, x: Any) -> Any:
            return self.out(self.cell(self.table(x))[0])

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(256), nn.LayerNorm(256)
            self.q, self.k, self.v, self.o = (nn.Linear(256, 256) for _ in range(4))
            self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

        def forward(self, x: Any) -> Any:
            n, length, width = x.shape
            y = self.before(x)
            heads = [
                one(y).view(n, length, 4, width // 4).transpose(1, 2)
                for one in (self.q, self.k, self.v)
            ]
            query, key, value = heads
            y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.after(x))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(512, 256)
            self.place = nn.Parameter(torch.randn(64, 256))
            self.blocks = nn.Sequential(Block(), Block())
            self.norm = nn.LayerNorm(256)

        def forward(self, x: Any) -> Any:
            x = self.norm(self.blocks(self.table(x) + self.place))
            return functional.linear(x, self.table.weight)

    def fc() -> Any:
        layers: list[nn.Module] = []
        for i in range(4):
            layers += [nn.Linear(1024 if i else 2000, 1024), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(1024, 200))

    def cnn() -> Any:
        first = (nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
        second = (nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        dense = (nn.Linear(3136, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 10))
        return nn.Sequential(*first, *second, *dense)

    return {"fc": fc, "cnn": cnn, "rnn": Recurrent, "transformer": Decoder}


def by_hand(stack: str, make: Callable[[], Any], given: list[Any], threads: int) -> Step:
    """Return the step of a module: of ONNX Runtime inference, else training with SGD."""
    import torch
    from torch.nn import functional

    network = make()
    if stack == "onnxruntime":
        import onnxruntime as ort

        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network.eval(),
                (given[0],),
                file,  # type: ignore[arg-type]  # this exporter takes an open file, too
                dynamo=False,
                input_names=["x"],
                output_names=["y"],
            )
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(file.getvalue(), options, ["CPUExecutionProvider"])
        told = {"x": given[0].numpy()}
        return lambda: session.run(None, told)
    x, labels = given

    def loss_of() -> Any:
        return functional.cross_entropy(network(x).flatten(0, -2), labels.flatten())

    if stack == "torch-compile":
        loss_of = torch.compile(loss_of, dynamic=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)

    def step() -> None:
        loss_of().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compared(stack: str, name: str, make: Callable[[], Any], chosen: Any) -> str:
    """Return a line about one network under one stack."""
    import importlib

    import torch

    from steptime.build import build, make_workload, read_model
    from steptime.measure import registry
    from steptime.measure.contract import Options

    row = registry.stack(stack)
    backend = importlib.import_module(registry.backend(row.backend).module)
    phase = "infer" if stack == "onnxruntime" else "train"
    workload = make_workload(read_model(MODELS[name]), None, "float32", phase, "sgd")
    graph = build(workload)
    ready = backend.prepare(graph, workload, Options(threads=chosen.threads, compile=row.compile))
    mine = sum(one.numel() for one in make().parameters())
    if mine != graph.parameters:
        raise SystemExit(f"{name} by hand has {mine} parameters, not {graph.parameters}")
    given = []
    for tensor in graph.inputs:
        spec = graph.tensors[tensor]
        whole = torch.randint(0, 10, spec.shape)
        given.append(torch.randn(spec.shape) if "float" in spec.dtype else whole)
    hand = by_hand(stack, make, given, chosen.threads)
    clock = process_time if chosen.threads == 1 else perf_counter

    def block(step: Step) -> list[float]:
        times: list[float] = []
        began = perf_counter()
        while perf_counter() - began < chosen.block or len(times) < 6:
            start = clock()
            step()
            times.append(clock() - start)
        return times[len(times) // 3 :]  # the first third warms up

    sides, ratios, least = (hand, ready.step), [], [float("inf")] * 2
    for one in sides:
        for _ in range(3):
            one()
    for number in range(chosen.pairs):
        found: list[list[float]] = [[], []]
        for i in (0, 1) if number % 2 else (1, 0):
            found[i] = block(sides[i])
        ratios.append(median(found[1]) / median(found[0]))
        least = [min(old, *new) for old, new in zip(least, found, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return (
        f"{stack:14} {name:12} by hand {least[0] * 1e3:8.3f} ms  steptime {least[1] * 1e3:8.3f} ms"
        f"  minima {least[1] / least[0]:.3f}  paired {median(ratios):.3f} ({low:.3f} .. {high:.3f})"
    )


def main() -> None:
    """Compare what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20, help="blocks of each side")
    parser.add_argument("--block", type=float, default=0.8, help="seconds of a block")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of both sides")
    parser.add_argument("--stacks", default=",".join(STACKS))
    parser.add_argument("--networks", default=",".join(MODELS))
    chosen = parser.parse_args()
    if not KEEP_MEMORY.items() <= os.environ.items():  # the C library reads them when it starts
        again = [sys.executable, *sys.argv]
        sys.exit(subprocess.run(again, env={**os.environ, **KEEP_MEMORY}, check=False).returncode)
    from steptime.measure.cpus import bind_threads

    bind_threads(chosen.threads)
    import torch

    torch.set_num_threads(chosen.threads)
    for stack in chosen.stacks.split(","):
        for name in chosen.networks.split(","):
            print(compared(stack, name, modules()[name], chosen), flush=True)


if __name__ == "__main__":
    main()
