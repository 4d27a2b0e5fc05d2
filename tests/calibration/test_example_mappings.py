from importlib import metadata

import pytest

from places import ROOT
from steptime.calibration.mapped import cases_of
from steptime.core.errors import InputError
from steptime.records.readers.mapping import read_mapping

TABLES = {
    "convolutions": {
        "table.csv": "batch,c_in,c_out,size,kernel,stride,pad,card,forward_us,grad_input_us,"
        "grad_weight_us\n8,16,32,28,3,1,1,v100,41,55,\n"
    },
    "networks": {
        "table.csv": "network,batch,precision,card,images_per_s\nresnet18,32,amp,v100,1500\n"
    },
    "images": {
        "table.csv": "network,image,batch,layout,mode,card,images_per_s\n"
        "resnet18,160,8,nhwc,train,v100,900\n"
        "resnet18,160,8,nchw,infer,v100,2900\n"
    },
    "listed": {
        "runs.csv": "network,card,ms\nsmall,t4,0.4\n",
        "ops.csv": "network,op,sizes,count\nsmall,linear,64 32 16,2\nsmall,add,64 32,3\n",
    },
}
EXAMPLES = sorted((ROOT / "docs/examples").glob("*.toml"))


def cases(name, folder, refusals=None):
    for file, text in TABLES[name].items():
        (folder / file).write_text(text)
    path = folder / "table.csv" if "table.csv" in TABLES[name] else folder
    said = read_mapping(ROOT / f"docs/examples/{name}.toml")
    return list(cases_of(path, said, refusals=refusals))


def test_every_example_is_tried_and_named_in_the_page():
    assert [path.stem for path in EXAMPLES] == sorted(TABLES)
    page = (ROOT / "docs/evaluating.md").read_text("utf-8")
    assert all(f"examples/{path.name}" in page for path in EXAMPLES)


def test_convolutions_with_gradients(tmp_path):
    forward, backward = cases("convolutions", tmp_path)  # the third has no time
    assert [one.kind for one in forward.kernels] == ["conv2d"]
    assert [one.kind for one in backward.kernels] == ["conv_transpose2d"]
    assert (backward.kind, backward.seconds) == ("gradient of the input", pytest.approx(55e-6))


def test_networks_by_name(tmp_path):
    (case,) = cases("networks", tmp_path)
    assert (case.workload.label, case.workload.dtype) == ("resnet18", "float16-mixed")
    assert case.seconds == pytest.approx(32 / 1500)
    assert (case.condition, case.family) == ("step", "resnet18")


def test_networks_listed_op_by_op(tmp_path):
    (case,) = cases("listed", tmp_path)
    assert [one.kind for one in case.kernels] == ["linear"] * 2 + ["add"] * 3


def test_networks_that_cannot_be_built_are_counted_by_their_cause(tmp_path, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    refusals = []
    assert cases("images", tmp_path, refusals) == []
    causes = [(place.rpartition(":")[2], cause) for place, cause in refusals]
    assert causes == [("2", "timm is not installed"), ("3", "timm is not installed")]
    with pytest.raises(InputError, match=r"table.csv:2: timm:resnet18: timm is not installed"):
        cases("images", tmp_path)


@pytest.mark.slow
@pytest.mark.framework
def test_networks_of_timm_are_built_at_the_size_and_in_the_layout_of_the_table(
    tmp_path, monkeypatch
):
    pytest.importorskip("timm")
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    first, second = cases("images", tmp_path)
    convolutions = [one for one in first.kernels if one.kind == "conv2d"]
    assert sum(one.flop for one in convolutions) == pytest.approx(2 * 0.93e9 * 8, rel=0.01)
    assert {one.channels_last for one in convolutions} == {True}
    assert not any(one.channels_last for one in second.kernels)
    assert [path.name for path in (tmp_path / "networks").iterdir()] == [
        "timm.resnet18-2x3x160x160.pt2"
    ]
