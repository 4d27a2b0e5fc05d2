"""What a backend is asked by: the version of its framework, and a device as people name it."""

import math
from importlib import metadata

import pytest

from every import every
from steptime.core.errors import InputError
from steptime.measure import registry
from steptime.measure.contract import pick_device

HERE = {"cpu": 1, "cuda": 2, "tpu": math.inf}
PICKED = {"cpu": ("cpu", 0), "cpu:0": ("cpu", 0), "cuda": ("cuda", 0), "cuda:1": ("cuda", 1),
          "tpu:7": ("tpu", 7)}  # fmt: skip


@every("name", PICKED)
def test_a_device_is_a_kind_and_a_number(name):
    assert pick_device(name, HERE) == PICKED[name]


@every("name", ["cpu:1", "cuda:2", "cuda:", "cuda:x", "cuda:-1", "cuda:1:1", "gpu", "mps", ""])
def test_a_device_that_is_not_here_is_told_which_are(name):
    with pytest.raises(InputError) as caught:
        pick_device(name, HERE, "to it")
    assert str(caught.value) == f"'{name}' is not available to it; there is: cpu, cuda:0..1, tpu"


def test_a_module_may_come_in_a_package_of_another_name(monkeypatch):
    """`pip install onnxruntime-gpu` makes the module `onnxruntime`, and no package of that name."""

    def version(name: str) -> str:
        if name != "onnxruntime-gpu":
            raise metadata.PackageNotFoundError(name)
        return "1.31.1+cu13"

    monkeypatch.setattr(metadata, "version", version)
    given = {"onnxruntime": ["onnxruntime-gpu"]}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: given)
    assert registry.version("onnxruntime") == "1.31.1"
    assert registry.version("jax") is None
