"""Whole image networks (timm's benchmark): autocast to float16, of which only sums are known."""

from collections.abc import Iterator
from pathlib import Path
from string import digits

from fitting.rows import rows
from steptime import catalog
from steptime.calibration.cases import Case
from steptime.predict.described import described

TRANSFORMERS = (  # attention and linear layers alone, by the first word of their names
    *("beit", "beitv", "cait", "convit", "crossvit", "deit", "eva", "flexivit", "hiera", "mixer"),
    *("naflexvit", "pit", "samvit", "tnt", "twins", "vit", "vitamin", "volo"),
)


def networks(data: Path) -> Iterator[Case]:
    """Yield steps of networks whose multiply-adds and activations were counted."""
    for row in rows(data / "measured/timm/networks.csv.gz"):
        sizes = [float(row[name] or 0) for name in ("gmac", "mact", "params_M", "batch", "step_ms")]
        macs, activations, parameters, batch, milliseconds = sizes
        if not all(sizes):
            continue
        family = row["network"].partition(".")[0]
        attention = "plain" if row["torch"].startswith("1.") else "fused"
        kernels = described(
            macs * 1e9,
            activations * 1e6,
            parameters * 1e6,
            int(batch),
            "float16-mixed",
            "train" if row["mode"] == "train" else "infer",
            attention=attention if family.partition("_")[0].rstrip(digits) in TRANSFORMERS else "",
            channels_last=row["layout"] == "nhwc",
            compiled=row["compiled"] == "1",
        )
        device = catalog.device(row["device"])
        kind = f"{row['mode']} {row['layout']}"
        yield Case(kernels, device, milliseconds / 1e3, kind, "step", family)
