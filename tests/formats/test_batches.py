"""Views that a file has for its own batch, followed to another one: which size grows."""

import pytest

from steptime.formats.batches import reseen

L, H, D = 12, 4, 8  # tokens, heads, width of a head


@pytest.mark.parametrize("own", [1, 2])
def test_views_of_attention_with_the_length_first_follow_the_batch(own):
    e, b = H * D, 6  # torch's MultiheadAttention takes the tokens first, and joins the batch
    steps = [
        ((L, own, e), (L, own * H, D), (L, b * H, D)),  # to the heads
        ((own * H, L, D), (own, H, L, D), (b, H, L, D)),
        ((L, own, H, D), (L * own, e), (L * b, e)),  # to the tokens
        ((L * own, e), (L, own, e), (L, b, e)),
    ]
    grown = [(L, b, e), (b * H, L, D), (L, b, H, D), (L * b, e)]
    for (before, told, wanted), actual in zip(steps, grown, strict=True):
        assert reseen(before, actual, told, own) == wanted


def test_views_of_windows_and_flat_images_grow_in_their_first_size():
    assert reseen((1, 8, 7, 8, 7, 3), (5, 8, 7, 8, 7, 3), (64, 49, 3), 1) == (320, 49, 3)
    assert reseen((64, 49, 3), (320, 49, 3), (1, 8, 8, 7, 7, 3), 1) == (5, 8, 8, 7, 7, 3)
    assert reseen((2, 256, 6, 6), (5, 256, 6, 6), (2, 9216), 2) == (5, 9216)
    assert reseen((1, 512, 1, 1), (5, 512, 1, 1), (1, 512), 1) == (5, 512)


def test_what_does_not_depend_on_the_batch_stays_and_what_does_not_fit_is_none():
    assert reseen((4, 6), (4, 6), (24,), 4) == (24,)
    assert reseen((4, 6), (8, 6), (23,), 4) is None
