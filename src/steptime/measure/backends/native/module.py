"""A user's module: found in a file or a package, and put on the meta device."""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import nn

from steptime.core.errors import InputError, shorten, unknown
from steptime.measure.backends.native.diffusers_models import make_diffusers
from steptime.measure.backends.native.making import META, describe_fault, make_module
from steptime.measure.backends.native.transformers_models import make_transformers


def module_of(
    source: str, name: str, device: str = META, inputs: Mapping[str, Any] | None = None
) -> tuple[nn.Module, Any]:
    """Return the module that a name stands for, and its stated inputs (None: nothing states them).

    `source` is a Python file, whose code is run, or one of `LIBRARIES`. A class or a function is
    called without arguments; a network of timm is made for images of the size of its `inputs`.
    Raises `InputError` for what is not there or is no module.
    """
    if source in LIBRARIES:
        try:
            with without_operators():  # timm imports torchvision, too
                library = importlib.import_module(source)
        except ImportError as error:
            place = f"{source}:{shorten(name)[1:-1]}"  # without its quotes
            raise InputError(f"{place}: {source} is not installed ({error})") from None
        return LIBRARIES[source](library, name, device, inputs)
    item: Any = _execute_file(Path(source))
    # `INPUTS` of the class, else of the file around it
    stated_inputs = getattr(item, "INPUTS", None)
    for part in name.split("."):
        if not hasattr(item, part):
            names = [key for key, value in vars(item).items() if callable(value)]
            raise unknown("name", part, names, source)
        item = getattr(item, part)
        stated_inputs = getattr(item, "INPUTS", stated_inputs)
    if not isinstance(item, nn.Module):
        if not callable(item):
            raise InputError(f"{source}: {name} is a {type(item).__name__}, not a module")
        item = make_module(item, device, f"{source}: {name}")
    if not isinstance(item, nn.Module):
        raise InputError(f"{source}: {name}() is a {type(item).__name__}, not a torch.nn.Module")
    return item, stated_inputs


class _UncachedLoader(SourceFileLoader):
    """Compile the source each time.

    Python takes cached bytecode for current if the file has the size and the second of its last
    version, so that an edit can go unnoticed.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _execute_file(path: Path) -> ModuleType:
    """Run a Python file as a module, with its folder importable as for a script."""
    spec = importlib.util.spec_from_file_location(
        path.stem, path, loader=_UncachedLoader(path.stem, str(path))
    )
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # as for an import: dataclasses and pickle look there
    try:
        with without_operators():
            spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path}: {describe_fault(error)}") from error
    return module


@contextlib.contextmanager
def without_operators() -> Iterator[None]:
    """Let torchvision be imported where its compiled operators are missing, beside a CPU torch."""
    register = torch.library.register_fake

    def register_but_torchvision(op: Any, *args: Any, **kwargs: Any) -> Any:
        # Registering for an operator that is missing would raise: ignore the function.
        if isinstance(op, str) and op.startswith("torchvision::"):
            return lambda function: function
        return register(op, *args, **kwargs)

    torch.library.register_fake = register_but_torchvision
    try:
        yield
    finally:
        torch.library.register_fake = register


def _of_torchvision(
    library: Any, name: str, device: str, _: Mapping[str, Any] | None
) -> tuple[nn.Module, Any]:
    models = library.models
    if name not in models.list_models():
        raise unknown("network of torchvision", name, models.list_models())
    options = {"weights": None}
    # Networks for segmentation load weights of their backbone by default.
    if name.startswith(("deeplab", "fcn", "lraspp")):
        options["weights_backbone"] = None
    size = 299 if name == "inception_v3" else 224  # of the images that the papers train on
    network = make_module(lambda: models.get_model(name, **options), device, f"torchvision:{name}")
    frames = (16,) if "models.video" in type(network).__module__ else ()
    # "" is the first argument, here images [batch, channels, (frames,) height, width]. The batch
    # is 2, as `torch.export` takes a size of 1 for fixed.
    return network, {"": ((2, 3, *frames, size, size), "float32")}


def _of_timm(
    library: Any, name: str, device: str, inputs: Mapping[str, Any] | None
) -> tuple[nn.Module, Any]:
    if not library.is_model(name):
        raise unknown("network of timm", name, library.list_models())
    make = partial(library.create_model, name, pretrained=False)

    def make_for_inputs() -> Any:
        first_spec = next(iter((inputs or {}).values()))
        (*_, image_width), _dtype = first_spec
        try:
            return make(img_size=image_width)
        except TypeError:  # a network that takes images of any size has no `img_size`
            return make()

    network = make_module(make_for_inputs if inputs else make, device, f"timm:{name}")
    return network, {"": ((2, *network.default_cfg["input_size"]), "float32")}


LIBRARIES = {
    "torchvision": _of_torchvision,
    "timm": _of_timm,
    "transformers": make_transformers,
    "diffusers": make_diffusers,
}
