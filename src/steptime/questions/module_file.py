"""The file of a module of torch, which every question takes as its network."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

from steptime.hardware import item_files


def from_module(module: Any, inputs: Any, path: str | Path | None = None) -> str:
    """Export a `torch.nn.Module` to a `.pt2` file and return its path, which is a MODEL.

    Nothing is computed. The first size of the inputs is the batch, which stays open if the module
    allows it. Several processes may export modules of one class at once.

    Args:
        module: the network.
        inputs: tensors or `(shape, type)`: a list, or a mapping by the names of `forward`.
        path: the file to write. Default: in the user's folder of networks, in a folder for each
            content, because modules of one class may differ.

    Raises:
        InputError: if the module cannot be exported.
    """
    from steptime.build import read_model
    from steptime.core import registry

    native_package = "steptime.measure.backends.native"  # imports PyTorch, thus loaded by name
    make_specs = registry.load(f"{native_package}.inputs:specs_of")
    export_module = registry.load(f"{native_package}.export:export")
    input_specs = make_specs(inputs)
    file_name = f"{type(module).__name__}.pt2"

    def export_to(export_path: Path) -> None:
        fixed_batch_reason = export_module(module, input_specs, export_path, about={})
        if fixed_batch_reason:
            warnings.warn(f"{file_name}: its batch is fixed: {fixed_batch_reason}", stacklevel=3)

    if path is not None:
        export_to(Path(path))
        return str(path)
    folder = item_files.user_folder("networks")
    folder.mkdir(parents=True, exist_ok=True)
    # The hash of the content names the folder, and is known only after the export.
    with tempfile.TemporaryDirectory(dir=folder) as temporary_folder:
        export_path = Path(temporary_folder) / file_name
        export_to(export_path)
        hash_folder = folder / read_model(str(export_path)).sha256
        hash_folder.mkdir(exist_ok=True)
        return str(export_path.replace(hash_folder / file_name))
