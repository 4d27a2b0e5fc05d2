"""Where a window fits: positions, padding and reach along one axis."""


def positions(
    size: int,
    kernel: int,
    stride: int,
    padding: tuple[int, int] = (0, 0),
    dilation: int = 1,
    ceil: bool = False,
    in_padding: bool = False,
) -> int:
    """Return how often a window fits into `size`, padded before and after; below 1 if never.

    `ceil` lets a last window hang over the end. One that would begin behind the map, in the padding
    or after it, is left out unless `in_padding`.
    """
    span = size + sum(padding) - reach(1, kernel, stride, dilation)
    if not ceil:
        return span // stride + 1
    count = -(-span // stride) + 1
    begins_behind = (count - 1) * stride >= size + padding[0]
    return count - 1 if begins_behind and not in_padding else count


def reach(count: int, kernel: int, stride: int, dilation: int = 1) -> int:
    """Return the size that `count` windows cover, from the start of the first to the last's end."""
    return (count - 1) * stride + dilation * (kernel - 1) + 1


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return what TensorFlow's SAME adds before and after: `size -> ceil(size / stride)`.

    As little as gives so many positions, the odd one after.
    """
    total = max(reach(-(-size // stride), kernel, stride) - size, 0)
    return total // 2, total - total // 2
