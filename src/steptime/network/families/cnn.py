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
    # equal groups are written as one number, the form of the default
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
    block_counts = [int(count) for count in str(p["blocks"]).split("-")]
    if len(block_counts) == 1:  # one number stands for all groups
        block_counts *= GROUPS
    x = b.input("image", (batch, 3, p["image"], p["image"]))
    x = conv_norm(b, x, p["filters"], kernel=7, name="stem", stride=2)
    x = max_pool(b, x, kernel=3, stride=2, name="stem/pool", padding=1)
    for group, block_count in enumerate(block_counts):
        for i in b.repeat(block_count):
            is_first_block = i == 0
            layers = _list_layers(p, group, is_first_block, stride_first)
            projects = is_first_block and (projects_all_groups or _changes_shape(b, x, layers))
            x = residual_block(b, x, layers, f"group{group + 1}/block{i + 1}", projects)
    x = b.op("global_avg_pool", x, name="pool")
    return classify(b, linear(b, x, p["classes"], "output"))


def _list_layers(
    p: Mapping[str, Any], group: int, is_first_block: bool, stride_first: bool
) -> Sequence[tuple[int, int, int]]:
    """Return channels, kernel and stride of the convolutions of a block.

    Each group has twice the channels of the one before, and but for the first it halves the image.
    """
    width = p["filters"] * 2**group
    stride = 2 if group > 0 and is_first_block else 1
    layers = BLOCKS[p["block"]](width, stride)
    if not stride_first:
        return layers
    # as in He et al. 2015; later networks have the stride on the 3x3 layer
    (channels, kernel, _), *further_layers = layers
    return [(channels, kernel, stride), *((c, k, 1) for c, k, _ in further_layers)]


def _changes_shape(b: Builder, x: str, layers: Sequence[tuple[int, int, int]]) -> bool:
    """Whether the result of a block's layers has another shape than `x [n, c, h, w]`."""
    _, input_channels, _, _ = b.shape(x)
    output_channels, _kernel, _stride = layers[-1]
    has_stride = any(stride > 1 for _, _, stride in layers)
    return has_stride or input_channels != output_channels


FAMILY = Family(
    "cnn",
    build_residual,
    read_parameters("cnn", block={"choices": (*BLOCKS,)}, blocks={"read": read_blocks}),
    "Wang, Wei, Brooks 2019, table 2; He et al. 2015",
    batch_sweep="64..1024 x2",
)
