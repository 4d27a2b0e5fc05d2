"""From the words of others for a device to the name of a platform."""

from __future__ import annotations

import functools
import re

from steptime import catalog


@functools.lru_cache(maxsize=1024)
def platform_of(product: str) -> str:
    """Give the device in data/ that `product` is: a driver's name, a device's name or short name.

    `Tesla T4` is t4, `k80` is tesla-k80, `V100` the variant that the short name stands for. What
    no device data know stays the word itself, in small letters.
    """
    for word in (product, f"Tesla {product}"):
        known = catalog.platform_of_product(word)
        if known:
            return known
    short = {alias.lower(): name for alias, name in catalog.aliases().items()}
    word = re.sub(r"[^a-z0-9._]+", "-", product.lower()).strip("-")
    return short.get(word, word) or "unknown"
