"""From the words of others for a device to the name of a platform."""

import functools
import re

from steptime import catalog


@functools.lru_cache(maxsize=1024)
def platform_of(product: str) -> str:
    """Return the device that the catalog knows by a word, else the word itself in small letters."""
    word = re.sub(r"[^a-z0-9._]+", "-", product.lower()).strip("-")
    return catalog.platform_of(product) or word or "unknown"
