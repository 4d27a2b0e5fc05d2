"""Windows of convolutions and pools along one axis: positions, padding and reach."""


def count_positions(
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
    window_size = covered_size(1, kernel, stride, dilation)
    max_start = padding_before + size + padding_after - window_size  # of a window that lies inside
    if not ceil:
        steps = max_start // stride
        return steps + 1
    steps_rounded_up = -(-max_start // stride)
    last_start = steps_rounded_up * stride
    begins_behind_map = last_start >= padding_before + size
    # PyTorch's `ceil_mode` leaves out a window that would begin in the padding; others count it
    # (`in_padding`).
    if begins_behind_map and not in_padding:
        return steps_rounded_up  # without the last window
    return steps_rounded_up + 1


def covered_size(count: int, kernel: int, stride: int, dilation: int = 1) -> int:
    """Return the size that `count` windows cover, from the start of the first to the last's end."""
    return (count - 1) * stride + dilation * (kernel - 1) + 1


def tensorflow_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return TensorFlow's SAME padding before and after: `size -> ceil(size / stride)`.

    It is the smallest padding with that number of positions; an odd element goes after.
    """
    position_count = -(-size // stride)  # rounded up
    total_padding = max(covered_size(position_count, kernel, stride) - size, 0)
    padding_before = total_padding // 2
    return padding_before, total_padding - padding_before
