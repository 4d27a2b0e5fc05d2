"""The file of a module of torch, which every question takes as its network."""

import warnings
from pathlib import Path
from typing import Any

from steptime.hardware import item_files


def from_module(module: Any, inputs: Any, path: str | Path | None = None) -> str:
    """Return the `.pt2` file that a `torch.nn.Module` is exported to, which is a MODEL.

    `inputs` are what the module is given, tensors or `(shape, type)`: a list, or a mapping by the
    names of `forward`. Their first size is the batch, which is left open where that works. Nothing
    is computed. Without `path` it lies in the user's folder of networks, under the class's name and
    what tells it from others. Raises `InputError`.
    """
    from steptime.build import read_model
    from steptime.core import registry

    native_package = "steptime.measure.backends.native"  # imports PyTorch, thus loaded by name
    file_name = f"{type(module).__name__}.pt2"
    folder = item_files.user_folder("networks")
    folder.mkdir(parents=True, exist_ok=True)
    export_path = folder / file_name if path is None else Path(path)
    make_specs = registry.load(f"{native_package}.inputs:specs_of")
    export_module = registry.load(f"{native_package}.export:export")
    fixed_batch_reason = export_module(module, make_specs(inputs), export_path, {})
    if fixed_batch_reason:
        warnings.warn(f"{file_name}: its batch is fixed: {fixed_batch_reason}", stacklevel=2)
    if path is None:  # modules of one class may differ: a folder for each content
        hash_folder = folder / read_model(str(export_path)).sha256
        hash_folder.mkdir(exist_ok=True)
        export_path = export_path.replace(hash_folder / file_name)
    return str(export_path)
