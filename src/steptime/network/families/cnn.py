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
        width = p["filters"] * 2**group
        for i in b.repeat(block_count):
            is_first_block = i == 0
            stride = 2 if group > 0 and is_first_block else 1
            layers = BLOCKS[p["block"]](width, stride)
            if stride_first:  # as in He et al. 2015; later networks have it on the 3x3 layer
                strides = [stride] + [1] * (len(layers) - 1)
                layers = [
                    (channels, kernel, layer_stride)
                    for (channels, kernel, _), layer_stride in zip(layers, strides, strict=True)
                ]
            output_channels, _kernel, _stride = layers[-1]
            # where the input cannot be added as it is, a 1x1 convolution projects the shortcut
            changes_shape = stride > 1 or b.shape(x)[1] != output_channels
            project = is_first_block and (projects_all_groups or changes_shape)
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
