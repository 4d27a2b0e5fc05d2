"""What the TPU compiler counts of a step, beside ours: no TPU is needed, only `libtpu`.

    python benchmarks/tpu_compile.py [TOPOLOGY] [MODEL ...]

For each network and its training step: FLOP, bytes and memory by XLA's cost and memory analysis for
one chip of the topology (`v5e:2x2`, `v4:2x2x1`, `v6e:2x2`, ...), and the same of `steptime count`
under the stack `jax`. XLA counts the body of a loop once, so that a recurrent layer is set beside
one of its steps; and it counts products as its arrays run them, with their padding.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter
from typing import Any

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no metadata server is asked
os.environ.setdefault("JAX_PLATFORMS", "cpu")

MODELS = (
    "fc:layers=2,nodes=256,inputs=256,outputs=128,batch=128",
    "deep_mnist:batch=2",
    "rnn:cell=lstm,layers=1,embedding=128,length=8,vocabulary=256,batch=64",
    "transformer:layers=1,width=128,heads=1,ffn=256,length=128,vocabulary=128,batch=2",
)


def compiled_for(topology: str, model: str, dtype: str = "bfloat16") -> tuple[Any, Any]:
    """Return the training step compiled for a chip of a topology, and the graph it is of."""
    import jax
    from jax.experimental import topologies

    from steptime.build import build, make_workload, read_model
    from steptime.measure.backends.jax.program import Carry, training_step

    jax.config.update("jax_enable_x64", True)  # as the backend does
    graph = build(make_workload(read_model(model), None, dtype, "train", "sgd"))
    described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    chip = jax.sharding.SingleDeviceSharding(described.devices[0])
    specs: dict[str, Any] = {  # shapes stand for the arrays
        name: jax.ShapeDtypeStruct(one.shape, jax.numpy.dtype(one.dtype), sharding=chip)
        for name, one in graph.tensors.items()
    }
    weights, buffers, inputs = (
        {name: specs[name] for name in names}
        for names in (graph.weights, graph.buffers, graph.inputs)
    )
    count = jax.ShapeDtypeStruct((), "int32", sharding=chip)
    carry = Carry(weights, {name: [] for name in weights}, buffers, count)  # sgd has no states
    step = jax.jit(training_step(graph, "sgd"), donate_argnums=0)
    return step.lower(carry, inputs).compile(), graph


def measured(compiled: Any) -> dict[str, float]:
    """Return FLOP, bytes and memory of a compiled step."""
    cost, plan = compiled.cost_analysis(), compiled.memory_analysis()
    memory = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return {
        "flop": cost["flops"],
        "bytes": cost["bytes accessed"],
        "memory_bytes": memory - plan.alias_size_in_bytes,
    }


def ours(graph: Any) -> dict[str, float]:
    """Return the same of `steptime count`."""
    from steptime.hardware import catalog
    from steptime.network.count import count
    from steptime.network.ops.training import training_graph

    found = count(training_graph(graph, "sgd"), catalog.stack("jax"))
    return {
        "flop": found.executed_flop,
        "bytes": found.executed_traffic_bytes,
        "memory_bytes": found.peak_bytes,
    }


def main() -> None:
    """Print a line a network."""
    topology = sys.argv[1] if len(sys.argv) > 1 else "v5e:2x2"
    print(f"{topology}: TPU compiler, ours, ratio")
    for model in sys.argv[2:] or MODELS:
        began = perf_counter()
        compiled, graph = compiled_for(topology, model)
        seconds = perf_counter() - began
        theirs, counted = measured(compiled), ours(graph)
        said = (
            f"{name} {theirs[name]:.4g} {counted[name]:.4g} {theirs[name] / counted[name]:.3f}"
            for name in theirs
        )
        print(f"{model.partition(':')[0]:12} {'  '.join(said)}  compiled in {seconds:.1f} s")


if __name__ == "__main__":
    main()
