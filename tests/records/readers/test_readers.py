"""ParaDnn's data, pytorch-paradnn's tables, and tables of any columns."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from statistics import fmean, median, pstdev

import pytest

from every import every
from steptime.core.errors import InputError
from steptime.records.readers import READERS, read_path, reader_of
from steptime.records.readers.mapping import read_mapping
from steptime.records.readers.paradnn_json import network
from steptime.reports.charts import draw
from told import device_rows, two_platforms

LABEL = "layer_4-node_32-input_2000-output_1000-bs_64"
GPU, TPU = "v100-sxm2-16gb", "tpu-v2-8"


def _paradnn(shared: Path, name: str) -> Path:
    return shared / "paradnn" / f"{name}.json.gz"


@pytest.mark.slow
def test_speed_ups_of_the_tpu_are_the_published_ones(shared):
    expected = json.loads((shared / "paradnn" / "expected.json").read_text("utf-8"))
    records = [
        record
        for name in ("tpu_fc", "gpu_fc")
        for record in read_path(_paradnn(shared, name)).records
    ]
    found = two_platforms(records, GPU, TPU, "published_examples_per_s", any_dtype=True)
    ratios = [row["ratio"] for row in found.pairs]
    said = expected["speedup_tpu_over_gpu"]
    assert len(ratios) == said["n"] == 176
    got = {"min": min(ratios), "median": median(ratios), "max": max(ratios)}
    got["geomean"] = found.found.summary()["geometric_mean_ratio"]
    for name, value in got.items():
        assert value == pytest.approx(said[name], rel=1e-6), name
    by_batch: dict[str, list[float]] = {}
    for row in found.pairs:
        by_batch.setdefault(str(row["batch"]), []).append(row["ratio"])
    for batch, want in expected["median_speedup_by_batch"].items():
        assert len(by_batch[batch]) == want["n"]
        assert median(by_batch[batch]) == pytest.approx(want["median"], rel=1e-6)
    times = two_platforms(records, TPU, GPU, any_dtype=True).pairs
    assert median(row["ratio"] for row in times) == pytest.approx(said["median"], rel=1e-6)
    assert not two_platforms(records, GPU, TPU).pairs  # bfloat16 is not float32


def test_speeds_and_failures_of_paradnn(shared):
    tpu = read_path(_paradnn(shared, "tpu_fc"))
    gpu = read_path(_paradnn(shared, "gpu_fc"))
    assert tpu.unread == gpu.unread == []
    assert Counter(r.status for r in tpu.records) == {"ok": 1724, "oom": 220}
    assert Counter((r.status, r.cause) for r in gpu.records) == {
        ("ok", ""): 176,
        ("failed", "no error but not finished"): 94,
    }
    lists = json.loads(gzip.decompress(_paradnn(shared, "tpu_fc").read_bytes()))
    index = lists["labels"].index("layer_32-node_512-input_8000-output_200-bs_1024")
    (record,) = [r for r in tpu.records if r.env["source_entry"] == lists["labels"][index]]
    held = {name: quantity.value for name, quantity in record.quantities.items()}
    assert held["published_flop_per_s"] == 8 * lists["flops"][index] * 1e9  # of eight cores
    assert held["published_flop"] == 8 * lists["fl"][index] * 1e9
    assert held["published_flop_per_parameter_byte"] == lists["intensity"][index]
    assert held["step_s"] == 1 / lists["step_per_sec"][index]
    assert "traffic_bytes" not in held  # intensity is no traffic
    assert "published_traffic_bytes" not in held
    workload = record.workload
    assert (workload.dtype, workload.optimizer) == ("bfloat16-mixed", "rmsprop")
    assert (workload.batch_per_replica, dict(workload.params)["nodes"]) == (1024, 512)
    assert {r.workload.dtype for r in gpu.records} == {"float32"}


def test_profiles_of_a_tpu(shared):
    found = read_path(_paradnn(shared, "fc_trace_10sec"))
    lists = json.loads(gzip.decompress(_paradnn(shared, "fc_trace_10sec").read_bytes()))
    assert (len(found.records), found.unread) == (230, [])
    for index, record in enumerate(found.records):
        assert record.env["source_entry"] == lists["labels"][index]
        shares = record.quantities["published_flop_shares"].samples
        best = record.quantities["published_flop_share"].value
        assert best == pytest.approx(max(shares), rel=1e-12)
        # what is not kept follows from the samples
        assert 100 * fmean(shares) == pytest.approx(lists["flops_perc_m"][index], rel=1e-9)
        assert 100 * pstdev(shares) == pytest.approx(lists["flops_perc_std"][index], abs=1e-9)
        infeed = record.quantities["published_infeed_shares"].samples
        assert 100 * fmean(infeed) == pytest.approx(lists["infeed_m"][index], abs=1e-9)
        traffic = record.quantities["published_traffic_bytes"].value
        assert traffic == lists["rawMB"][index] * 1e6


def test_the_name_of_a_file_says_the_kind_of_cell(tmp_path):
    label = "layer_1-maxlength_10-vocabsize_5-embeddingsize_100-batchsize_64"
    lists = {"labels": [label], "flops_perc": [10.0]}
    for name in ("tpu_gru_profile.json", "tpu_profile.json"):
        (tmp_path / name).write_text(json.dumps(lists), encoding="utf-8")
    found = read_path(tmp_path)
    (record,) = found.records
    assert record.workload.params["cell"] == "gru"
    assert found.unread[0].reason == f"{label}: the file's name does not say the cell"


def test_operations_of_a_tpu_are_scopes(shared):
    found = read_path(_paradnn(shared, "fc_trace_10sec_opbreakdown"))
    assert (len(found.records), found.unread) == (2029, [])
    scopes = Counter(record.scope for record in found.records)
    assert {"non-fusion elementwise", "cross-replica-sum", "while", "after-all"} <= set(scopes)
    lacking = [r for r in found.records if "published_intensity_flop_per_byte" not in r.quantities]
    assert len(lacking) == 230  # literal NaN
    assert {record.scope for record in lacking} == {"after-all"}
    assert lacking[0].env["not_given"] == ["published_intensity_flop_per_byte"]


def test_labels():
    assert network(f"{LABEL}-non-fusion elementwise")[2] == "non-fusion elementwise"
    assert network(LABEL)[2] == ""
    choice, batch, _ = network(
        "block_2-filtersz_16-input_100-output_500-batchsize_64", "bottleneck_x"
    )
    assert (choice.settings, batch) == (
        {"blocks": "2", "filters": "16", "image": "100", "classes": "500", "block": "bottleneck"},
        64,
    )
    with pytest.raises(InputError, match="does not say the cell"):
        network("layer_1-maxlength_10-vocabsize_5-embeddingsize_100-batchsize_64", "unnamed")
    for text in (f"{LABEL}0-", f"x{LABEL}", LABEL.replace("node", "nodes"), LABEL + "x"):
        with pytest.raises(InputError, match="no label of ParaDnn"):
            network(text)


def test_a_file_of_speeds_that_contradicts_its_name(tmp_path):
    params = 32 * 32 * 3 + 32 * 3000
    lists = {
        "labels": [LABEL],
        "example_per_sec": [640.0],
        "step_per_sec": [10.0],
        "fl": [6 * 64 * params / 1e9],
        "params": [params],
        "intensity": [6 * 64 / 4],
    }
    for name, said in (("tpu.json", "says tpu"), ("tpu_gpu.json", "says tpu and gpu")):
        (tmp_path / name).write_text(json.dumps(lists), encoding="utf-8")
        (unread,) = read_path(tmp_path / name).unread
        assert said in unread.reason
    (tmp_path / "fc.json").write_text(json.dumps({**lists, "extra": [1]}), encoding="utf-8")
    found = read_path(tmp_path / "fc.json")
    assert found.records[0].platform == GPU
    assert found.unread[0].reason == "list 'extra' is not known"


def test_tables_of_pytorch_paradnn(shared):
    found = read_path(shared / "pytorch-paradnn" / "fc_T4_dev.csv.gz")
    assert (len(found.records), found.unread) == (1989, [])
    pairs = [r for r in found.records if r.quantities["step_s"].samples]
    assert len(pairs) == 11  # of two rows each, which differ in nothing but their time
    assert all(r.quantities["step_s"].runs == (0, 1) for r in pairs)
    assert len({entry for r in pairs for entry in r.env["repeat_entries"]}) == 22
    first = found.records[0]
    assert first.platform == "t4"
    assert first.quantities["step_s"].value == pytest.approx(0.037626912593841553, rel=1e-15)
    assert first.workload.params["layers"] == 129  # 128 square ones, and the input layer
    assert (first.workload.optimizer, first.workload.dtype) == ("adam", "float32")
    a100 = read_path(shared / "pytorch-paradnn" / "fc_A100_dev.csv.gz").records
    assert {record.platform for record in a100} == {"a100-pcie-80gb"}


HEAD = "device,input_type,layers,nodes,batch_size,input_size,output_size,#params,duration,tflops"


def test_faults_of_tables_of_pytorch_paradnn(tmp_path):
    rows = {
        "Tesla T4, f16, 4, 32, 64, 2000, 200, 1, 0, 0": "",
        "Tesla T4, f8, 4, 32, 64, 2000, 200, 1, 1, 0": "unknown dtype 'f8'",
        "Tesla T4, f32, 4, 32, 64, 2000, 200, 1, nan, 0": "duration is no number: 'nan'",
        "Tesla T4, f32, 4, 32, 64, 2000, 200, 1, -1, 0": "step_s must be above 0, not '-0.01'",
        "Tesla T4, f32, 4, 32, 0, 2000, 200, 1, 1, 0": "batch",
        "Tesla T4, f32, x, 32, 64, 2000, 200, 1, 1, 0": "layers is no number: 'x'",
        "Tesla T4, f32, 4, 1e30, 64, 2000, 200, 1, 1, 0": "nodes",
        "Tesla T4, f32, 4, 32, 64, 2000, 200, 1, 1": "9 cells under 10 columns",
    }
    (tmp_path / "t.csv").write_text("\n".join([HEAD, *rows]), encoding="utf-8")
    found = read_path(tmp_path / "t.csv")
    (record,) = found.records
    assert (record.status, record.cause, record.workload.dtype) == ("oom", "duration 0", "float16")
    assert [one.line for one in found.unread] == list(range(3, 10))
    for one, said in zip(found.unread, list(rows.values())[1:], strict=True):
        assert said in one.reason


MAPPING = """name = "mine"
source = "measured by a friend"
model = "fc:layers={depth},nodes={width}"
batch = "{bs}"
dtype = "{type}"
optimizer = "adam"
replicas = "{gpus}"
platform = "{card}"
options = {gpu = "{card}", strategy = "allreduce"}

[words.type]
half = "float16"

[quantities]
step_s = {column = "steps per s", inverse = true}
peak_bytes = {column = "GB", scale = 1e9}

[[status]]
column = "steps per s"
equals = "-"
status = "oom"
cause = "did not fit"
"""
ROW = "V100,4,256,64,half,2,50,1.5\n"
TABLE = """card,depth,width,bs,type,gpus,steps per s,GB
V100,4,256,64,half,2,50,1.5
V100,4,256,640,half,2,-,-
V100,4,256,64,quarter,2,50,1.5
V100,4,256,64,half,2,0,1.5
resnet50,4,"256",64,half,1,25,0.5
"""


def test_a_table_by_a_mapping(tmp_path):
    (tmp_path / "m.toml").write_text(MAPPING, encoding="utf-8")
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    found = read_path(tmp_path / "t.csv", mapping=read_mapping(tmp_path / "m.toml"))
    first, failed, other = found.records
    assert (first.platform, first.workload.dtype, first.workload.plan.data) == (GPU, "float16", 2)
    assert {n: q.value for n, q in first.quantities.items()} == {
        "step_s": 0.02,
        "peak_bytes": 1.5e9,
    }
    assert first.method.options == {"gpu": "V100", "strategy": "allreduce"}
    assert (failed.status, failed.cause, failed.quantities) == ("oom", "did not fit", {})
    assert (other.platform, other.env["source_entry"]) == ("resnet50", 6)
    assert [(one.line, one.reason.partition(";")[0]) for one in found.unread] == [
        (4, "unknown dtype 'quarter'"),
        (5, "steps per s must be above 0, not '0'"),
    ]


@every(
    ("before", "after", "message"),
    [
        ("batch =", "bacth =", "unknown key 'bacth'; did you mean 'batch'?"),
        ("{bs}", "{bs", "batch: is no text with {columns}"),
        ("{bs}", "{}", "batch: a column or a formula stands in braces"),
        ('batch = "{bs}"', "", "quantities of a model need its 'batch'"),
        ('"{bs}"', "[64]", "batch: must be a text"),
        ("step_s", "steps_s", "unknown quantity 'steps_s'; did you mean 'step_s'?"),
        ('"oom"', '"omo"', "unknown status 'omo'; did you mean 'oom'?"),
        ("scale = 1e9", "scale = -1", "quantities.peak_bytes.scale"),
        ("scale = 1e9", "scale = nan", "quantities.peak_bytes.scale"),
        (
            "scale = 1e9",
            "sclae = 1e9",
            "quantities.peak_bytes: unknown key 'sclae'; did you mean 'scale'?",
        ),
        (
            '{column = "GB", scale = 1e9}',
            '"GB +"',
            "quantities.peak_bytes.formula: formula 'GB +'",
        ),
        ('column = "GB", ', "", "quantities.peak_bytes: says a formula or a column"),
        (MAPPING, "name =", "is no TOML"),
    ],
)
def test_faults_of_a_mapping(before, after, message, tmp_path):
    assert before in MAPPING
    (tmp_path / "m.toml").write_text(MAPPING.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_mapping(tmp_path / "m.toml")
    assert message in str(caught.value)


STRATEGY = 'strategy = "allreduce"'


@every(
    ("before", "after", "said"),
    [
        ('strategy = "allreduce"', 'staging = "moon"', "options: unknown staging 'moon'; known: "),
        ('strategy = "allreduce"', 'staging = "{card}"', "options: unknown staging 'V100'"),
        ('"allreduce"', '"alreduce"', "did you mean 'allreduce'?"),
        (STRATEGY, 'device_count = "abc"', "options.device_count: must be a whole number"),
        (STRATEGY, 'device_count = "0"', "options.device_count: must be at least 1"),
        ('platform = "{card}"', 'platform = ""', "device: empty"),
        ('platform = "{card}"', 'platform = " "', "device: empty"),
        (
            'platform = "{card}"',
            'platform = "{car d}"',
            "unknown column 'car d'; did you mean 'card'?",
        ),
        ("layers={depth}", "layers={GB}", "must be a whole number, not '1.5'"),
        ('"fc:layers={depth},nodes={width}"', '"./net.toml"', "'./net.toml': no such file"),
        ('"fc:layers={depth},nodes={width}"', '"NET.prototxt"', "'NET.prototxt': no such file"),
    ],
)
def test_rows_that_a_mapping_makes_senseless(before, after, said, tmp_path):
    assert before in MAPPING
    (tmp_path / "m.toml").write_text(MAPPING.replace(before, after, 1), encoding="utf-8")
    (tmp_path / "t.csv").write_text("\n".join(TABLE.splitlines()[:2]), encoding="utf-8")
    found = read_path(tmp_path / "t.csv", mapping=read_mapping(tmp_path / "m.toml"))
    assert found.records == []
    (one,) = found.unread
    assert said in one.reason


def test_the_options_that_tables_and_plots_read(tmp_path):
    said = 'options = {device_count = "{width}", staging = "local", strategy = "", year = "2023"}'
    text = MAPPING.replace('options = {gpu = "{card}", strategy = "allreduce"}', said)
    (tmp_path / "m.toml").write_text(text, encoding="utf-8")
    (tmp_path / "t.csv").write_text("\n".join(TABLE.splitlines()[:2]), encoding="utf-8")
    (record,) = read_path(tmp_path / "t.csv", mapping=read_mapping(tmp_path / "m.toml")).records
    assert record.method.options == {
        "device_count": 256, "staging": "local", "strategy": "", "year": "2023",
    }  # fmt: skip
    (row,) = device_rows([record])
    assert (row["num_gpu"], row["staged_from"], row["strategy"]) == (256, "$LOCAL", None)
    assert "2 of them work" in json.dumps(draw("devices", [record]))


def test_who_measured_is_no_template(tmp_path):
    text = MAPPING.replace('source = "measured by a friend"', 'source = "{"')
    (tmp_path / "m.toml").write_text(text, encoding="utf-8")
    mapping = read_mapping(tmp_path / "m.toml")
    assert mapping.SOURCE == "{"


def test_every_fault_of_a_mapping_is_named_at_once(tmp_path):
    text = MAPPING.replace('"mine"', "1.5").replace("1e9", "-1").replace("{bs}", "{")
    (tmp_path / "m.toml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"quantities\.peak_bytes.*; batch: .*; name: "):
        read_mapping(tmp_path / "m.toml")


def test_tables_as_windows_writes_them(tmp_path):
    (tmp_path / "m.toml").write_text(MAPPING, encoding="utf-8")
    (tmp_path / "t.csv").write_bytes(TABLE.replace("\n", "\r\n").encode("utf-8-sig"))
    found = read_path(tmp_path / "t.csv", mapping=read_mapping(tmp_path / "m.toml"))
    assert len(found.records) == 3


def test_a_mapping_of_columns_that_a_table_has_not(tmp_path):
    (tmp_path / "m.toml").write_text(MAPPING, encoding="utf-8")
    (tmp_path / "t.csv").write_text(TABLE.replace("depth", "dept", 1), encoding="utf-8")
    found = read_path(tmp_path / "t.csv", mapping=read_mapping(tmp_path / "m.toml"))
    assert found.records == []
    reason = "formula 'depth': unknown name 'depth'; did you mean 'dept'?"
    assert found.unread[0].reason == reason
    (tmp_path / "t.csv").write_text("card,dept,width,bs,type,gpus,steps per s,GB\n" + 2 * ROW)
    found = read_path(tmp_path / "t.csv", mapping=read_mapping(tmp_path / "m.toml"))
    assert [(one.line, one.reason) for one in found.unread] == [(None, reason)]  # of every row


def test_cells_may_be_apart_by_anything(tmp_path):
    for mark in ("\t", ";", "|", "!"):
        said = f'delimiter = "{mark}"\n' if mark == "!" else ""
        (tmp_path / "m.toml").write_text(said + MAPPING, encoding="utf-8")
        (tmp_path / "t.csv").write_text(TABLE.replace(",", mark), encoding="utf-8")
        found = read_path(tmp_path / "t.csv", mapping=read_mapping(tmp_path / "m.toml"))
        assert len(found.records) == 3


def test_every_reader_has_what_a_reader_has():
    for name, reader in zip(READERS, map(reader_of, READERS), strict=True):
        assert callable(reader.recognises), name
        assert callable(reader.read), name
        assert reader.SOURCE
        assert reader.__doc__


@pytest.mark.slow
def test_ten_thousand_rows(tmp_path):
    rows = (f"Tesla T4,f32,4,{32 + i},64,2000,200,1,{1 + i},0" for i in range(10_000))
    (tmp_path / "t.csv").write_text("\n".join([HEAD, *rows]), encoding="utf-8")
    assert len(read_path(tmp_path).records) == 10_000
