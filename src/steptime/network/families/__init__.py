"""Families and named networks, by name; each is loaded when it is used."""

import re
from collections.abc import Mapping
from functools import lru_cache

from steptime.core import registry
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.toml_files import read_packaged_toml
from steptime.network.families import language
from steptime.network.families.family import Family

_PACKAGE = "steptime.network.families"
FAMILIES = {
    **{name: f"{_PACKAGE}.{name}:FAMILY" for name in ("fc", "cnn", "rnn", "transformer")},
}
ZOO = {
    **{
        name: f"{_PACKAGE}.convolutional:{name}"
        for name in read_packaged_toml("convolutional_networks.toml")
    },
    **{name: f"{_PACKAGE}.densenet:{name}" for name in ("densenet121", "densenet_cifar")},
    **dict.fromkeys(("bert_base", "gpt2", "llama_7b"), ""),  # rows of `language`
}

SHORT: Mapping[str, str] = read_packaged_toml("other_names.toml")

_OTHER_FILES = (".py", ".pt", ".pth", ".pb", ".h5", ".safetensors", ".ckpt", ".tflite")
YOUR_NETWORK_HINT = (
    "a network of your own is a PyTorch module (model.py:NAME, or a .pt2 of torch.export), a "
    "config.json of Hugging Face, a GGUF file, an ONNX file (.onnx), a .keras archive, a file of "
    "Caffe (.prototxt), of Paleo or a native graph (.json), a family's settings (a .toml file), or "
    "a new family (docs/cookbook.md)"
)


def find_network_name(text: str) -> str:
    """Return the name of the family or network that a text names, in any case: `ResNet-50`.

    Names on Hugging Face are read too: `meta-llama/Llama-3.1-8B-Instruct` is `llama3_8b`. An
    unknown text is returned as it is.

    Raises:
        InputError: for the name of a file that is not read.
    """
    if text.lower().endswith(_OTHER_FILES):
        raise InputError(f"unknown model {shorten(text)}; {YOUR_NETWORK_HINT}")
    # compared without case and marks: "ResNet-50" is resnet50
    name_by_plain = {_plain(name): name for name in (*SHORT, *ZOO, *FAMILIES)}
    name = name_by_plain.get(_plain(text))
    if name:  # found without reading the large table of language models
        return SHORT.get(name, name)  # `SHORT` maps other names of a network to its own
    name_by_plain = {_plain(name): name for name in language.rows()} | name_by_plain
    # "meta-llama/Llama-3-8B-Instruct": drop one affix after the other until a name fits
    candidate = text
    while True:
        name = name_by_plain.get(_plain(candidate))
        if name:
            return SHORT.get(name, name)
        shorter = _AFFIX.sub("", candidate, count=1)
        if shorter == candidate:  # no affix left to drop
            return text
        candidate = shorter


# affixes that say nothing of a network's sizes, among them data types of weights
_SUFFIX = r"instruct|chat|thinking|base|hf|it|(nv|mx)?fp[48]|bf16|0528|2507|v0\.\d|(un)?cased"
_AFFIX = re.compile(rf"^(\S*/|meta-)|[-_]({_SUFFIX})$", re.IGNORECASE)


@lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    return name.lower().translate({ord(mark): None for mark in "-_ ./"})


def family(name: str, context: str = "") -> Family:
    """Return a family or named network.

    Args:
        name: its name.
        context: the start of messages.

    Raises:
        InputError: for an unknown name.
    """
    built_in = FAMILIES | ZOO  # the module of each
    is_built_in = bool(built_in.get(name))
    if not is_built_in:
        if name in language.rows():
            return language.model(name)
        all_names = list_names()  # with those of other packages
        if name not in all_names:
            raise unknown("model", name, all_names, context)
    result: Family = registry.resolve(built_in, "models", "model", name, context)
    return result


def list_names() -> list[str]:
    """Return the names of families and named networks, those of other packages last."""
    return registry.list_names(FAMILIES | ZOO | dict.fromkeys(language.rows(), ""), "models")
