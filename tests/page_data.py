"""What the script of a page reads."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any


def data_of(page: Path) -> Any:
    """Return the data of a page with a choice, unpacked."""
    packed = re.search(r'id="data" class="packed">([^<]+)<', page.read_text("utf-8"))
    assert packed is not None
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))
