"""Families and named networks, by name; each is loaded when it is asked for."""

import re
from collections.abc import Mapping
from functools import lru_cache

from steptime.core import registry
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.toml_files import packaged
from steptime.network.families import language
from steptime.network.families.family import Family

_HERE = "steptime.network.families"
FAMILIES = {
    **{name: f"{_HERE}.{name}:FAMILY" for name in ("fc", "cnn", "rnn", "transformer")},
}
ZOO = {
    **{name: f"{_HERE}.convolutional:{name}" for name in packaged("convolutional_networks.toml")},
    **{name: f"{_HERE}.densenet:{name}" for name in ("densenet121", "densenet_cifar")},
    **dict.fromkeys(("bert_base", "gpt2", "llama_7b"), ""),  # rows of `language`
}

SHORT: Mapping[str, str] = packaged("other_names.toml")

_OTHER_FILES = (".py", ".pt", ".pth", ".pb", ".h5", ".safetensors", ".ckpt", ".tflite")
BRING_YOUR_OWN = (
    "a network of your own is a PyTorch module (model.py:NAME, or a .pt2 of torch.export), a "
    "config.json of Hugging Face, a GGUF file, an ONNX file (.onnx), a .keras archive, a file of "
    "Caffe (.prototxt), of Paleo or a native graph (.json), a family's settings (a .toml file), or "
    "a new family (docs/cookbook.md)"
)


def named(text: str) -> str:
    """Return the name of a family or network that a text says, in any case: `ResNet-50`, `gpt-2`.

    So does a name on Hugging Face, `meta-llama/Llama-3.1-8B-Instruct`.
    Raises `InputError` for the name of a file that is not read; another unknown text stays.
    """
    if text.lower().endswith(_OTHER_FILES):
        raise InputError(f"unknown model {shorten(text)}; {BRING_YOUR_OWN}")
    plain_names = {_plain(name): name for name in (*SHORT, *ZOO, *FAMILIES)}
    if name := plain_names.get(_plain(text)):  # the large table of language models is not read
        return SHORT.get(name, name)
    known = {_plain(name): name for name in language.rows()} | plain_names
    bare, dressed = text, ""
    while bare != dressed:
        if name := known.get(_plain(bare)):
            return SHORT.get(name, name)
        bare, dressed = _DRESSED.sub("", bare, count=1), bare
    return text


# besides, of weights
_DRESS = r"instruct|chat|thinking|base|hf|it|(nv|mx)?fp[48]|bf16|0528|2507|v0\.\d|(un)?cased"
_DRESSED = re.compile(rf"^(\S*/|meta-)|[-_]({_DRESS})$", re.IGNORECASE)


@lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    return name.lower().translate({ord(mark): None for mark in "-_ ./"})


def family(name: str, where: str = "") -> Family:
    """Return the family or named network; raises `InputError` for an unknown name."""
    if not (FAMILIES | ZOO).get(name) and name in language.rows():
        return language.model(name)
    if not (FAMILIES | ZOO).get(name) and name not in (known := names()):
        raise unknown("model", name, known, where)
    result: Family = registry.resolve(FAMILIES | ZOO, "models", "model", name, where)
    return result


def names() -> list[str]:
    """Return the names of families and named networks, those of other packages last."""
    return registry.names(FAMILIES | ZOO | dict.fromkeys(language.rows(), ""), "models")
