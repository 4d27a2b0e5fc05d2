"""ResNet-like convolutional networks, as ParaDnn sweeps them (Wang, Wei, Brooks 2019)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from steptime.core.workload import Value
from steptime.network.families.family import Family, read_parameters
from steptime.network.layers.blocks import conv_norm, residual_block
from steptime.network.layers.dense import classify, linear
from steptime.network.layers.image import max_pool
from steptime.network.ops.builder import Builder

GROUPS = 4
Layers = Callable[[int, int], Sequence[tuple[int, int, int]]]
BLOCKS: Mapping[str, Layers] = {  # convolutions of a width and stride: channels, kernel, stride
    "residual": lambda width, stride: ((width, 3, stride), (width, 3, 1)),
    "bottleneck": lambda width, stride: ((width, 1, 1), (width, 3, stride), (4 * width, 1, 1)),
}


def read_blocks(text: str) -> Value:
    """Return blocks a group: one number for all four groups, or four such as `3-4-6-3`."""
    counts = [int(part) for part in text.split("-")]
    return counts[0] if len({*counts}) == 1 else "-".join(map(str, counts))


def build_residual(
    b: Builder,
    p: Mapping[str, Any],
    batch: int,
    *,
    projects_all_groups: bool = True,
    stride_first: bool = False,
) -> str:
    """Return stem, four groups of blocks, global pooling and a classifier.

    All groups begin with a projection shortcut unless `projects_all_groups` is false, where
    only a change of shape asks for one. With `stride_first` the first convolution has the stride.
    """
    blocks = [int(n) for n in str(p["blocks"]).split("-")]
    if len(blocks) == 1:
        blocks *= GROUPS
    x = b.input("image", (batch, 3, p["image"], p["image"]))
    x = conv_norm(b, x, p["filters"], 7, "stem", stride=2)
    x = max_pool(b, x, 3, 2, "stem/pool", padding=1)
    for group, repeats in enumerate(blocks):
        width = p["filters"] * 2**group
        for i in b.repeat(repeats):
            stride = 2 if group > 0 and i == 0 else 1
            layers = BLOCKS[p["block"]](width, stride)
            if stride_first:
                layers = [(n, k, 1 if i else stride) for i, (n, k, _) in enumerate(layers)]
            changes = stride > 1 or b.shape(x)[1] != layers[-1][0]
            project = i == 0 and (projects_all_groups or changes)
            name = f"group{group + 1}/block{i + 1}"
            x = residual_block(b, x, layers, name, project)
    x = b.op("global_avg_pool", x, name="pool")
    return classify(b, linear(b, x, p["classes"], "output"))


FAMILY = Family(
    "cnn",
    build_residual,
    read_parameters("cnn", block={"choices": (*BLOCKS,)}, blocks={"read": read_blocks}),
    "Wang, Wei, Brooks 2019, table 2; He et al. 2015",
    batch_sweep="64..1024 x2",
)
