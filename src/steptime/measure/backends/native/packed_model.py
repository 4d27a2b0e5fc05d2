"""Models whose examples are images of patches, of which grids say where each begins and ends."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steptime.measure.backends.native.inputs import Spec, missing_arguments
from steptime.measure.backends.native.known_values import KnownValues
from steptime.measure.backends.native.model_inputs import CHANNELS, find_setting

IMAGE_SIDE, PATCH_SIDE = 448, 14  # pixels of an image and a patch, where a configuration says none
GRID_ENDINGS = ("grid_thw", "grid_hw", "spatial_shapes", "target_sizes")  # of names of arguments
MERGE_ENDING = "merge_sizes"  # of an argument that says how patches of each image are merged
MASK_ENDING = "mask"
TIME_AXIS_ENDING = "thw"  # of a grid that has the number of frames first


class Packing(NamedTuple):
    """How the patches of all examples become one input.

    Attributes:
        joins_examples: whether the axis of examples is joined with that of patches.
        has_leading_axis: whether an axis of size 1 leads.
    """

    joins_examples: bool
    has_leading_axis: bool


FLAT_PACKING = Packing(joins_examples=True, has_leading_axis=False)
LEADING_AXIS_PACKING = Packing(joins_examples=True, has_leading_axis=True)
SEPARATE_PACKING = Packing(joins_examples=False, has_leading_axis=False)


GridRow = tuple[int, ...] | int  # what an argument says of an image: sizes, or one number


class PackedModel(nn.Module):
    """A model that is given one axis of examples, and makes the grids of them by itself.

    All images have one size. Grids have values while the model is traced (`keep_small_values`).
    """

    def __init__(
        self,
        model: nn.Module,
        main_input: str,
        packing: Packing,
        grids: Mapping[str, GridRow],
    ) -> None:
        """Keep the model and its grids.

        Args:
            model: the model.
            main_input: the name of the argument that the patches are.
            packing: how patches are given to the model.
            grids: the row of each example in each further argument.
        """
        super().__init__()
        self.model = model
        self.main_input = main_input
        self.packing = packing
        self.grids = dict(grids)

    def forward(self, **inputs: Tensor) -> Any:
        """Run the model on patches `[examples, patches, ...]`."""
        patches = inputs[self.main_input]
        is_traced = type(patches) is not Tensor
        with KnownValues() if is_traced else contextlib.nullcontext():
            return self._run(patches, inputs)

    def _run(self, patches: Tensor, inputs: Mapping[str, Tensor]) -> Any:
        example_count = int(patches.shape[0])
        if self.packing.joins_examples:
            patches = patches.flatten(0, 1)
        if self.packing.has_leading_axis:
            patches = patches.unsqueeze(0)
        grids = {
            name: torch.tensor([row] * example_count, device=patches.device)
            for name, row in self.grids.items()
        }
        return self.model(**{**inputs, self.main_input: patches}, **grids)

    @property
    def assumptions(self) -> list[str]:
        """The assumed sizes of images: `grid_thw is taken to be 1x32x32 of each example`."""
        return [
            f"{name} is taken to be {_format_row(row)} of each example"
            for name, row in self.grids.items()
        ]


def propose_packed_models(
    model: nn.Module, main_input: str, config: Any, batch: int
) -> Iterator[tuple[PackedModel, dict[str, Spec]]]:
    """Yield forms of a model that takes grids of images, each with its inputs; none for others.

    Args:
        model: the model.
        main_input: the name of its first input.
        config: its configuration, which says the sizes of images and patches.
        batch: the size of the first axis.
    """
    needed_names = missing_arguments(model, {})
    grid_names = [name for name in needed_names if name.endswith(GRID_ENDINGS)]
    mask_names = [name for name in needed_names if name.endswith(MASK_ENDING)]
    merge_names = [name for name in needed_names if name.endswith(MERGE_ENDING)]
    image_names = (*grid_names, *mask_names, *merge_names)
    patch_names = [name for name in needed_names if name not in image_names]
    if not grid_names or len(patch_names) > 1:
        return
    main_name = patch_names[0] if patch_names else main_input
    side = _find_grid_side(config)
    patch_count = side * side
    # Each image has a row of a grid: its patches by (time,) height and width.
    grids: dict[str, GridRow] = {name: _make_grid_row(name, side) for name in grid_names}
    grids.update(dict.fromkeys(merge_names, _find_merge(config)))
    masks = dict.fromkeys(mask_names, ((batch, patch_count), "int64"))
    for shape, packing in _list_patch_shapes(config):
        packed = PackedModel(model, main_name, packing, grids)
        yield packed, {main_name: ((batch, patch_count, *shape), "float32"), **masks}


def _make_grid_row(name: str, side: int) -> tuple[int, ...]:
    """Return the row of an image of so many patches by so many."""
    return (1, side, side) if name.endswith(TIME_AXIS_ENDING) else (side, side)


def _format_row(row: GridRow) -> str:
    return str(row) if isinstance(row, int) else "x".join(map(str, row))


def _find_merge(config: Any) -> int:
    """Return the number of patches along a side that become one."""
    merge_names = ("spatial_merge_size", "merge_size", "merge_kernel_size")
    return _first_number(find_setting(config, *merge_names), 1)


def _find_grid_side(config: Any) -> int:
    """Return the patches along a side of an image: a multiple of those that are merged."""
    patch = _first_number(find_setting(config, "patch_size"), PATCH_SIDE)
    merge = _find_merge(config)
    window = _first_number(find_setting(config, "window_kernel_size"), 1)
    image = _first_number(find_setting(config, "image_size"), IMAGE_SIDE)
    # A side must divide into windows of merged patches, and be even.
    unit = math.lcm(merge * window, 2)
    return max(1, image // (patch * unit)) * unit


def _list_patch_shapes(config: Any) -> Iterator[tuple[tuple[int, ...], Packing]]:
    """Yield the shape of a patch and how patches are packed, the likeliest first."""
    patch = _first_number(find_setting(config, "patch_size"), PATCH_SIDE)
    channels = _first_number(find_setting(config, "in_channels", "num_channels"), CHANNELS)
    frames = _first_number(find_setting(config, "temporal_patch_size"), 1)
    flat = (channels * frames * patch * patch,)
    image = (channels, patch, patch)
    # The likeliest pair of a shape and a packing comes first.
    yield flat, FLAT_PACKING
    yield image, FLAT_PACKING
    yield image, LEADING_AXIS_PACKING
    yield flat, LEADING_AXIS_PACKING
    yield flat, SEPARATE_PACKING


def _first_number(setting: Any, default: int) -> int:
    """Return a setting that is a number or a list of equal ones."""
    first = setting[0] if isinstance(setting, list | tuple) and setting else setting
    return first if isinstance(first, int) else default
