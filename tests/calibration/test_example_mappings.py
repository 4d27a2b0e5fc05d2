import pytest

from places import ROOT
from steptime.calibration.mapping import cases_of, read_mapping

TABLES = {
    "convolutions": {
        "table.csv": "batch,c_in,c_out,size,kernel,stride,pad,card,forward_us,grad_input_us,"
        "grad_weight_us\n8,16,32,28,3,1,1,v100,41,55,\n"
    },
    "networks": {
        "table.csv": "network,batch,precision,card,images_per_s\nresnet18,32,amp,v100,1500\n"
    },
    "listed": {
        "runs.csv": "network,card,ms\nsmall,t4,0.4\n",
        "ops.csv": "network,op,sizes,count\nsmall,linear,64 32 16,2\nsmall,add,64 32,3\n",
    },
}
EXAMPLES = sorted((ROOT / "docs/examples").glob("*.toml"))


def cases(name, folder):
    for file, text in TABLES[name].items():
        (folder / file).write_text(text)
    path = folder / "table.csv" if "table.csv" in TABLES[name] else folder
    return list(cases_of(path, read_mapping(ROOT / f"docs/examples/{name}.toml")))


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
