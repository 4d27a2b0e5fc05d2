"""The version of a backend's framework is that of the package that its module came in."""

from importlib import metadata

from steptime.measure import registry


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
