"""Write networks of timm as `torch.export` graphs, for the stage `image` of the fit.

    python -m validation.fitting.export_timm DATA FOLDER

Names and image sizes are those of DATA/measured/timm.

Needs timm and PyTorch; weights are on no device. `STEPTIME_TIMM_GRAPHS=FOLDER` names them to the
fit.
"""

import csv
import gzip
import sys
from pathlib import Path

import timm
import torch


def main(data: Path, folder: Path) -> None:
    """Write what is not there yet; say what cannot be written."""
    with gzip.open(data / "measured/timm/networks.csv.gz", "rt", encoding="utf-8") as file:
        wanted = {
            (row["network"].partition(".")[0], int(row["image"])) for row in csv.DictReader(file)
        }
    folder.mkdir(parents=True, exist_ok=True)
    for name, side in sorted(wanted):
        path = folder / f"{name}-{side}.pt2"
        if path.exists():
            continue
        try:
            with torch.device("meta"), torch.no_grad():
                try:
                    network = timm.create_model(name, img_size=side)
                except TypeError:  # of one that takes any
                    network = timm.create_model(name)
                images = torch.zeros(2, 3, side, side)
                batch = ({0: torch.export.Dim("batch", min=1, max=4096)},)
                torch.export.save(
                    torch.export.export(network.eval(), (images,), dynamic_shapes=batch), path
                )
        except Exception as error:  # noqa: BLE001  # whatever a network fails with, others go on
            print(f"{name}: {str(error).partition(chr(10))[0]}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
