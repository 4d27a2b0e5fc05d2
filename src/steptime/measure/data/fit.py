"""Which input of a network takes a data set's images and which its labels, if they fit."""

from dataclasses import dataclass
from typing import Any

from steptime.core.graph import Graph
from steptime.measure.contract import Arrays, UnsupportedError


@dataclass(frozen=True)
class Fit:
    """Names of the inputs for images and labels ("" in inference), and the shape of the images."""

    images: str
    labels: str
    shape: tuple[int, ...]

    def arrays(self, images: Any, labels: Any) -> Arrays:
        """Return a batch, images `[n, c, h, w]` and labels `[n]`, by the names of the inputs."""
        found = {self.images: images.reshape(self.shape)}
        return found | {self.labels: labels} if self.labels else found


def fit(graph: Graph, shape: tuple[int, ...], classes: int) -> Fit:
    """Return how images of `shape` (c, h, w) with labels of so many `classes` fit a forward graph.

    A network fits if its one input beside the labels is `[n, c, h, w]`, or `[n, c * h * w]`, which
    takes them flattened, and it tells at least as many classes. Raises `UnsupportedError`.
    """
    heads = [op for op in graph.ops if op.kind == "cross_entropy"]
    labels = [name for op in heads for name in op.inputs[1:2] if name in graph.inputs]
    images = [name for name in graph.inputs if name not in labels]
    if len(images) != 1 or len(labels) > 1:
        names = ", ".join(graph.inputs)
        raise UnsupportedError(f"a data set feeds images and labels; the network takes: {names}")
    (name,) = images
    spec = graph.tensors[name]
    batch = spec.shape[0]
    c, h, w = shape
    if spec.shape not in {(batch, c, h, w), (batch, c * h * w)} or spec.dtype.startswith("int"):
        raise UnsupportedError(
            f"input '{name}' is {spec.dtype} {list(spec.shape)}; the data set's images are "
            f"{[batch, c, h, w]}, flattened {[batch, c * h * w]}"
        )
    told = graph.tensors[heads[0].inputs[0] if heads else graph.outputs[0]].shape
    if len(told) != 2 or told[0] != batch:
        raise UnsupportedError(
            f"the network's output is {list(told)}; the data set's labels need [{batch}, classes]"
        )
    if told[1] < classes:
        raise UnsupportedError(
            f"the network tells {told[1]} classes apart, the data set has {classes}"
        )
    return Fit(name, labels[0] if labels else "", spec.shape)
