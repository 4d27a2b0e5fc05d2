"""Compare a measured step of `--backend jax` with a training loop in JAX written by hand.

Four networks, each written as one would in `jax.numpy`, jitted whole, its weights `[out, in]` as
those of steptime are. They run in one process on the same CPUs, in short blocks in turns A B A B:
see `measuring_overhead.py`. One thread is timed by the CPU time of the process, which no other work
lengthens by waiting. Prints a line a network: the median of the ratios of paired medians (steptime
/ by hand), and the ratio of the minima.

    python benchmarks/jax_loop.py --pairs 20 --threads 1
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter, process_time
from typing import Any

BLOCK_S = 0.8
MODELS = {
    "fc": "fc:layers=4,nodes=1024,inputs=2000,outputs=200,batch=64",
    "cnn": "deep_mnist:batch=8",
    "rnn": "rnn:cell=lstm,layers=1,embedding=256,length=20,vocabulary=512,batch=16",
    "transformer": "transformer:layers=2,width=256,heads=4,ffn=1024,length=64,vocabulary=512,"
    "batch=4",
}


def by_hand() -> dict[str, tuple[dict[str, tuple[int, ...]], Callable[..., Any]]]:
    """Return for each network the shapes of its parameters, and its loss."""
    import jax
    from jax import lax, nn
    from jax import numpy as jnp

    def loss_of(logits: Any, labels: Any) -> Any:
        picked = jnp.take_along_axis(nn.log_softmax(logits), labels[..., None], -1)
        return -picked.mean()

    def fc(p: Any, x: Any, labels: Any, key: Any) -> Any:
        for i in range(4):
            x = nn.relu(x @ p[f"w{i}"].T + p[f"b{i}"])
        return loss_of(x @ p["w4"].T + p["b4"], labels)

    def conv(x: Any, w: Any, b: Any) -> Any:
        y = nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME") + b[:, None, None])
        return lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def cnn(p: Any, x: Any, labels: Any, key: Any) -> Any:
        x = conv(conv(x, p["c0"], p["d0"]), p["c1"], p["d1"])
        x = nn.relu(x.reshape(x.shape[0], -1) @ p["w0"].T + p["b0"])
        x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * 2, 0)
        return loss_of(x @ p["w1"].T + p["b1"], labels)

    def rnn(p: Any, x: Any, labels: Any, key: Any) -> Any:
        given = (p["table"][x] @ p["wx"].T + p["bx"]).swapaxes(0, 1)

        def step(state: Any, now: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(now + h @ p["wh"].T + p["bh"], 4, -1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[0], p["wh"].shape[1]), given.dtype)
        made = lax.scan(step, (zeros, zeros), given)[1].swapaxes(0, 1)
        return loss_of(made @ p["w"].T + p["b"], labels)

    def norm(x: Any, w: Any, b: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred * lax.rsqrt(variance + 1e-5) * w + b

    def transformer(p: Any, x: Any, labels: Any, key: Any) -> Any:
        x = p["table"][x] + p["place"]
        n, length, width = x.shape
        for i in range(2):
            q = norm(x, p[f"n{i}"], p[f"m{i}"])
            heads = [
                (q @ p[f"{name}{i}"].T + p[f"{name}b{i}"]).reshape(n, length, 4, width // 4)
                for name in ("q", "k", "v")
            ]
            y = nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape)
            x = x + y @ p[f"o{i}"].T + p[f"ob{i}"]
            y = norm(x, p[f"r{i}"], p[f"s{i}"])
            y = nn.gelu(y @ p[f"up{i}"].T + p[f"ub{i}"], approximate=False)
            x = x + y @ p[f"down{i}"].T + p[f"db{i}"]
        return loss_of(norm(x, p["n"], p["m"]) @ p["table"].T, labels)

    widths = [2000, *[1024] * 4, 200]
    layers = {f"w{i}": (n, k) for i, (k, n) in enumerate(pairwise(widths))}
    blocks: dict[str, tuple[int, ...]] = {}
    for i in range(2):
        blocks |= {f"{name}{i}": (256, 256) for name in ("q", "k", "v", "o")}
        vectors = ("qb", "kb", "vb", "ob", "n", "m", "r", "s", "db")
        blocks |= {f"{name}{i}": (256,) for name in vectors}
        blocks |= {f"up{i}": (1024, 256), f"ub{i}": (1024,), f"down{i}": (256, 1024)}
    images = {"c0": (32, 1, 5, 5), "d0": (32,), "c1": (64, 32, 5, 5), "d1": (64,)}
    dense = {"w0": (1024, 3136), "b0": (1024,), "w1": (10, 1024), "b1": (10,)}
    cell = {"table": (512, 256), "wx": (1024, 256), "bx": (1024,), "wh": (1024, 256)}
    ends = {"table": (512, 256), "place": (64, 256), "n": (256,), "m": (256,)}
    return {
        "fc": (layers | {f"b{i}": (n,) for i, n in enumerate(widths[1:])}, fc),
        "cnn": (images | dense, cnn),
        "rnn": (cell | {"bh": (1024,), "w": (512, 256), "b": (512,)}, rnn),
        "transformer": (blocks | ends, transformer),
    }


def main() -> None:
    """Alternate both for each network, and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20, help="blocks of each side")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of both sides")
    chosen = parser.parse_args()
    from steptime.measure.cpus import bind_threads

    bind_threads(chosen.threads)
    clock = process_time if chosen.threads == 1 else perf_counter
    import jax
    import numpy as np

    from steptime.build import build, make_workload, read_model
    from steptime.measure.backends.jax import backend
    from steptime.measure.contract import Options

    def block(step: Callable[[], object], sync: Callable[[], object]) -> list[float]:
        times: list[float] = []
        began = perf_counter()
        while perf_counter() - began < BLOCK_S:
            start = clock()
            step()
            sync()
            times.append(clock() - start)
        return times[len(times) // 3 :]  # the first third warms up

    for name, (shapes, loss_of) in by_hand().items():
        workload = make_workload(read_model(MODELS[name]), None, "float32", "train", "sgd")
        graph = build(workload)
        ready = backend.prepare(graph, workload, Options(threads=chosen.threads))
        rng = np.random.default_rng(0)
        held: dict[str, Any] = {
            "weights": {
                key: jax.device_put(rng.standard_normal(shape, np.float32) * 0.05)
                for key, shape in shapes.items()
            },
            "key": jax.random.key(0),
        }
        count = sum(w.size for w in held["weights"].values())
        if count != graph.parameters:
            raise SystemExit(f"{name} by hand has {count} parameters, not {graph.parameters}")
        fed = ready.trace.args[0].inputs.values() if isinstance(ready.trace, partial) else ()

        def step(
            weights: Any, key: Any, x: Any, labels: Any, loss_of: Callable[..., Any] = loss_of
        ) -> Any:
            own, following = jax.random.split(key)
            loss, grads = jax.value_and_grad(loss_of)(weights, x, labels, own)
            return loss, {w: weights[w] - 1e-4 * grads[w] for w in weights}, following

        jitted = jax.jit(step, donate_argnums=(0, 1))

        def hand(jitted: Any = jitted, held: dict[str, Any] = held, fed: Any = fed) -> None:
            made = jitted(held["weights"], held["key"], *fed)
            held["loss"], held["weights"], held["key"] = made

        def wait(held: dict[str, Any] = held) -> None:
            jax.block_until_ready(held)

        ratios, least = [], [float("inf")] * 2
        for _ in range(chosen.pairs):
            blocks = block(hand, wait), block(ready.step, ready.sync)
            ratios.append(median(blocks[1]) / median(blocks[0]))
            least = [min(old, *new) for old, new in zip(least, blocks, strict=True)]
        print(
            f"{name:12} by hand {least[0] * 1e3:8.3f} ms  steptime {least[1] * 1e3:8.3f} ms  "
            f"minima {least[1] / least[0]:.3f}  median of paired ratios {median(ratios):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
