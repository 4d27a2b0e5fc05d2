"""The op table and the numpy reference agree: shapes and types, initial values, updates by hand.

Its values and gradients are held against those of torch and JAX in `test_backend_values.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from every import every
from reference.backend import RUNS, execute, initial_values
from reference.kinds import ALSO_GIVEN
from steptime.build import build, make_workload, read_model
from steptime.core.graph import TensorSpec, freeze_attrs
from steptime.network.ops import OPS, communication, opaque, outputs_of, saved_of
from steptime.network.ops.sequence import GATES

# one process has nobody to exchange with; of an opaque op only the shapes are known
LEFT_OUT = {*communication.KINDS, *opaque.KINDS}


def drawn(spec: TensorSpec, rng: np.random.Generator, most: int = 3) -> np.ndarray:
    """Positive numbers, so that roots and powers of a row's example are defined."""
    if spec.dtype.startswith("int"):
        return rng.integers(0, most, spec.shape).astype(spec.dtype)
    return rng.uniform(0.5, 1.5, spec.shape).astype(spec.dtype)


def test_every_kind_of_one_process_has_a_row():
    assert RUNS.keys() == OPS.keys() - LEFT_OUT


@every("kind", [kind for kind in OPS if kind not in {*LEFT_OUT, *GATES}])
def test_example_runs_to_the_shapes_and_types_of_its_row(kind):
    row, rng = OPS[kind], np.random.default_rng(0)
    attrs: dict[str, Any] = dict(row.example.attrs)
    if attrs.get("dtype") == "bfloat16":
        attrs["dtype"] = "float16"  # numpy has no bfloat16
    also = {name: {"rng": rng, "step": 1}[name] for name in ALSO_GIVEN.get(kind, ())}
    made = RUNS[kind](*(drawn(spec, rng) for spec in row.example.specs), **attrs, **also)
    arrays = made if isinstance(made, tuple) else (made,)
    wanted = outputs_of(kind, row.example.specs, freeze_attrs(attrs))
    if kind in GATES:  # the reference's gradient runs the layer again: it saves nothing
        arrays = arrays[:1]
    else:
        wanted += saved_of(kind, row.example.specs, freeze_attrs(attrs))
    assert [(a.shape, a.dtype.name) for a in arrays] == [(s.shape, s.dtype) for s in wanted]


def test_update_rules_by_hand():
    w, g = np.array([1.0]), np.array([2.0])
    zero = np.zeros(1)
    np.testing.assert_allclose(RUNS["sgd"](w, g), 1 - 1e-4 * 2)
    np.testing.assert_allclose(RUNS["momentum"](w, np.ones(1), g)[0], 1 - 1e-4 * (0.9 + 2))
    # the first step of RMSProp: s = 0.01 * 4, w -= lr * 2 / (0.2 + 1e-8)
    np.testing.assert_allclose(RUNS["rmsprop"](w, zero, g)[0], 1 - 1e-4 * 2 / (0.2 + 1e-8))
    # the first step of Adam moves by the learning rate, whatever the gradient
    np.testing.assert_allclose(RUNS["adam"](w, zero, zero, g, step=1)[0], 1 - 1e-4, atol=1e-11)
    # that of AdamW by a hundredth of it more: 1 - 1e-4 * 0.01 - 1e-4
    np.testing.assert_allclose(RUNS["adamw"](w, zero, zero, g, step=1)[0], 1 - 1.01e-4, atol=1e-11)


def workload(text: str, **how: str) -> Any:
    return make_workload(read_model(text), None, **how)  # type: ignore[arg-type]


def test_ids_stay_below_the_table_they_index_and_labels_below_the_classes():
    work = workload("transformer:layers=1,width=8,heads=2,length=4,vocabulary=3,batch=64")
    graph = build(work)
    values = initial_values(graph, 0)
    assert set(np.unique(values["tokens"])) == {0, 1, 2}
    assert set(np.unique(values["labels"])) == {0, 1, 2}


def test_activations_stay_near_1_in_a_deep_network():
    graph = build(workload("fc:layers=64,nodes=64,inputs=64,outputs=5,batch=16", phase="infer"))
    (out,) = graph.outputs
    logits = execute(graph, initial_values(graph, 0))[out]
    assert 0.05 < float(np.sqrt((logits**2).mean())) < 20
