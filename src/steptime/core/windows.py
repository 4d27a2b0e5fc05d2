"""Windows of convolutions and pools along one axis: positions, padding and reach."""


def positions(
    size: int,
    kernel: int,
    stride: int,
    padding: tuple[int, int] = (0, 0),
    dilation: int = 1,
    ceil: bool = False,
    in_padding: bool = False,
) -> int:
    """Return the number of positions of a window in a padded `size`; below 1 if it does not fit.

    With `ceil` the last window may exceed the end. A window that would begin in the padding behind
    the map, or after it, is not counted unless `in_padding`.
    """
    padding_before, padding_after = padding
    window_size = reach(1, kernel, stride, dilation)
    max_start = padding_before + size + padding_after - window_size  # of a window that lies inside
    if not ceil:
        return max_start // stride + 1
    count = -(-max_start // stride) + 1  # rounded up
    last_start = (count - 1) * stride
    begins_behind_map = last_start >= padding_before + size
    return count - 1 if begins_behind_map and not in_padding else count


def reach(count: int, kernel: int, stride: int, dilation: int = 1) -> int:
    """Return the size that `count` windows cover, from the start of the first to the last's end."""
    return (count - 1) * stride + dilation * (kernel - 1) + 1


def tensorflow_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return TensorFlow's SAME padding before and after: `size -> ceil(size / stride)`.

    It is the smallest padding with that number of positions; an odd element goes after.
    """
    total = max(reach(-(-size // stride), kernel, stride) - size, 0)
    return total // 2, total - total // 2
