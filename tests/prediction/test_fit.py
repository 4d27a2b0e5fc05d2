"""The largest batch that fits, the best one, what memory is for; devices side by side; prices."""

from __future__ import annotations

import pytest

from every import every
from steptime.build import build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.workload import Workload
from steptime.grids.batches import find_knee, growth_for, largest_batch, list_doubling_batches
from steptime.grids.grid import grid
from steptime.hardware import catalog
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device
from steptime.hardware.prices import Offer, Training, cheapest, read_offers
from steptime.network.count import peak_bytes
from steptime.prediction.memory import Sharding, rank_peak_bytes, worst_moment
from steptime.prediction.steps.allocator import blocks_bytes
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.choose.device_choices import compare_devices, sort_rows
from steptime.questions.fit.memory_savings import list_savings

FC = "fc:layers=1,nodes=64,inputs=32,outputs=8"


def toy(name: str = "toy", memory: float | None = None, peak: float = 1e12) -> Device:
    return Device(
        name, "gpu", Datasheet({"float32": peak}, 1e9, "made up", memory_bytes=memory, peak_w=100)
    )


@every(("has", "batch"), [(100, 30), (99, 29), (13, 1), (12.9, 0), (1e9, 1024)])
def test_the_largest_batch_that_fits(has, batch):
    assert largest_batch(lambda n: 10 + 3 * n, has, max_batch=1024) == batch


@every(("has", "batch"), [(100, 30), (99, 29), (13, 1), (12.9, 0), (1e9, 1000)])
def test_a_search_in_larger_steps_ends_at_the_same_batch(has, batch):
    assert largest_batch(lambda n: 10 + 3 * n, has, max_batch=1000, growth=16) == batch


@every(("op_count", "growth"), [(1_000, 2), (1_900, 2), (6_400, 16), (12_800, 1024), (10**6, 1024)])
def test_a_table_of_many_ops_has_few_batches(op_count, growth):
    assert growth_for(op_count) == growth


def test_the_largest_batch_of_memory_that_bends():
    """Below 50 examples the update is the worst moment, above the activations."""
    asked: list[int] = []

    def memory(batch: int) -> float:
        asked.append(batch)
        return max(500, 10 * batch)

    assert largest_batch(memory, 9_995) == 999
    assert len(asked) < 20


def test_the_largest_batch_of_a_network():
    model = StepModel(FC, toy(memory=1e6), method="analytic")

    def needs(batch: int) -> int:
        return model.predict(batch).peak_bytes

    batch = largest_batch(needs, 1e6)
    assert needs(batch) <= 1e6 < needs(batch + 1)


def test_the_best_batch_is_the_knee():
    assert list_doubling_batches(11) == [1, 2, 4, 8, 11]
    assert list_doubling_batches(100, growth=16) == [1, 16, 100]
    assert find_knee([1, 2, 4, 8], [1, 1, 2, 4]) == 2  # 1, then 2 examples a second
    assert find_knee([1, 2, 4], [1, 1.2, 1.3]) == 4  # 1, 1.7, 3.1 examples a second
    assert find_knee([8, 16], [0, 0]) == 8


@pytest.mark.parametrize("batch", [1, 256])
def test_parts_of_memory_add_up(batch):
    workload = make_workload(read_model(FC), batch, "float32", "train", "adam")
    graph, stack = build_step(workload), catalog.stack()
    peak = peak_bytes(graph, stack)
    parts = worst_moment(graph, stack).bytes_by_purpose
    weights = 4 * (32 * 64 + 64 + 64 * 8 + 8)
    assert parts["weights"] == weights
    assert parts["state"] == pytest.approx(2 * weights, abs=64)  # two moments, and counters
    assert parts["inputs"] == 4 * batch * 32 + (graph.tensors[graph.inputs[1]].size_bytes)
    assert sum(parts.values()) == peak
    assert all(part >= 0 for part in parts.values())


@every("text", ["rnn", "bert_base", "gpt2", "resnet18", "transformer"])
@every("dtype", ["float32", "bfloat16", "bfloat16-mixed"])
def test_no_part_of_memory_is_larger_than_the_whole(text, dtype):
    workload = make_workload(read_model(text), 2, dtype, "train", "adam")
    graph, stack = build_step(workload), catalog.stack()
    parts = worst_moment(graph, stack).bytes_by_purpose
    assert sum(parts.values()) == peak_bytes(graph, stack)
    assert all(part >= 0 for part in parts.values())


def test_temporaries_of_an_optimizer_are_no_activations():
    """Foreach Adam makes one tensor of each weight: 4 of the 20 bytes a parameter."""
    workload = make_workload(read_model("gpt2_xl"), 1, "float32", "train", "adam")
    graph = build_step(workload)
    moment = worst_moment(graph, catalog.stack())
    assert moment.name == "at the optimizer step"
    assert (
        moment.bytes_by_purpose["temporaries"]
        == moment.bytes_by_purpose["gradients"]
        == 4 * graph.parameters
    )
    assert moment.bytes_by_purpose["activations"] < 100


def test_what_helps_is_counted():
    """Of 20 bytes a parameter: 4 of temporaries, 6 of 8 of states, 7/8 of what is shared out."""
    workload = make_workload(read_model("llama_7b"), 1, "float32", "train", "adam")
    model = StepModel(workload, "h100")
    n = build_step(workload).parameters
    saved = {saving.change: saving.saves_bytes for saving in list_savings(model)}
    assert saved["8-bit optimizer"] == pytest.approx(6 * n, rel=0.01)
    assert saved["ZeRO 1 over 8 devices"] == pytest.approx(12 * n * 7 / 8, rel=0.01)
    assert saved["fused optimizer"] == pytest.approx(4 * n, rel=0.15)  # or the backward pass is
    assert list(saved.values()) == sorted(saved.values(), reverse=True)


def test_a_rank_under_zero_holds_its_share():
    graph = build_step(make_workload(read_model("gpt2_xl"), 1, "bfloat16", "train", "adam"))
    stack, n = catalog.stack(), graph.parameters
    assert rank_peak_bytes(graph, stack) == peak_bytes(graph, stack)
    shared = rank_peak_bytes(graph, stack, Sharding(1, 2))
    assert shared == pytest.approx((2 + 2 + (4 + 2) / 2) * n, rel=0.01)
    assert rank_peak_bytes(graph, stack, Sharding(3, 64)) < shared / 3


def test_blocks_of_the_allocator():
    """Segments of 2 MiB for what is small, of 20 for up to 10 MiB, multiples of 2 beyond."""
    mib = 2**20

    def blocks(batch: int, inputs: int) -> int:
        text = f"fc:layers=1,nodes=4,inputs={inputs},outputs=4"
        graph = build_step(make_workload(read_model(text), batch, phase="infer"))
        return blocks_bytes(graph, catalog.stack(), 0)

    assert blocks(1, 8) == 2 * mib  # nothing but small tensors
    assert blocks(1024, 1024) == 22 * mib  # an input of 4 MiB in 20, the rest in 2
    assert blocks(1000, 3000) == 14 * mib  # 11.44 MiB are 12


def test_what_a_gpu_holds_beside_tensors():
    """cuBLAS: (2 x 4096 + 8 x 16) KiB a handle, 32 MiB from Hopper on; training has two."""
    infer = make_workload(read_model("resnet18"), 8, phase="infer")
    for name, phase, workspace, context in (
        ("A100", infer, 8320 * 1024, 400e6),
        ("A100", "resnet18", 2 * 8320 * 1024, 400e6),
        ("RTX 5090", infer, 32 * 2**20, 400e6),
        ("H100", "resnet18", 64 * 2**20, 400e6),
        ("MI300X", infer, 128 * 2**20, None),
        ("xeon-platinum-8280", infer, None, None),
    ):
        made = StepModel(phase, name).predict()
        assert (made.needs.workspace_bytes, made.needs.context_bytes) == (workspace, context), name
        assert made.peak_bytes < made.needs.total_bytes or context is None
    old = StepModel(infer, "V100", options={"stack": "torch-eager-1"}).needs()
    assert (old.workspace_bytes, old.context_bytes) == (None, 1e9)


def test_what_does_not_fit_by_the_context_alone():
    made = StepModel("resnet18", "A100").predict(64)
    toy_maker = catalog.device("A100").with_figures(usable_share=1.0)
    own = toy_maker.with_figures(memory_bytes=made.peak_bytes + 1e8)
    assert not StepModel("resnet18", own).predict(64).fits
    (cell,) = grid([lambda _: made_of("resnet18", 64)], [own], [64], [1], None, "analytic", {})
    assert cell.status == "oom"
    (row,) = compare_devices(StepModel("resnet18", own), [own], Training(1000), batch=64)
    assert (row.status, row.batch) == ("ok", 64)  # by gradients that are added up
    assert row.microbatch * row.accumulation == 64 > row.microbatch


def made_of(text: str, batch: int) -> Workload:
    return make_workload(read_model(text), batch)


def test_devices_side_by_side():
    model = StepModel(FC, toy(), method="roofline", dtype="float32")
    tpu = Device("tpu", "tpu", Datasheet({"bfloat16": 1e12}, 1e9, "made up"))
    offer = Offer("slow", 2.0, "USD", "second", "an offer", "today", verified=True, source="me")
    devices = [toy("small", memory=1e3), tpu, toy("slow", peak=1e6), toy("fast", peak=2e6)]
    found = compare_devices(model, devices, Training(1000, 3), {"slow": offer}, batch=10)
    assert [one.status for one in found] == ["oom", "unsupported", "ok", "ok"]
    assert "no peak is known for float32" in found[1].notes[0]
    slow, fast = found[2:]
    assert slow.step_s is not None
    assert slow.train_s == pytest.approx(300 * slow.step_s)  # 3 x 1000 examples / 10
    assert slow.cost_total == pytest.approx(2 * 300 * slow.step_s / 3600)
    assert slow.energy_max_j == pytest.approx(100 * 300 * slow.step_s)
    assert fast.cost_total is None
    assert [one.device for one in sort_rows(found, "time")] == ["fast", "slow", "small", "tpu"]
    assert [one.device for one in sort_rows(found, "cost")] == ["slow", "fast", "small", "tpu"]


def test_devices_are_compared_at_one_global_batch():
    """A small device adds up the gradients of microbatches: n of them, and one update."""
    workload = make_workload(read_model("resnet18"), None, "float32", "train", "adam")
    model = StepModel(workload, toy(), method="analytic")
    roomy, tight = compare_devices(model, [toy(), toy(memory=1e9)], Training(1000))
    assert roomy.batch == tight.batch == workload.batch_per_replica == 64
    assert (roomy.microbatch, roomy.accumulation) == (64, 1)
    micro, times = tight.microbatch, tight.accumulation
    assert micro * times == 64
    assert tight.needed_bytes <= 1e9
    one = model.timeline(micro)
    assert tight.step_s == pytest.approx(times * (one.step_s - one.update_s) + one.update_s)
    graph = model.graph(2 * micro)  # twice as many do not fit
    assert rank_peak_bytes(graph, catalog.stack(), accumulates=True) > 1e9


def test_each_device_has_its_best_batch_beside():
    model = StepModel(FC, toy(), method="analytic")
    (roomy,) = compare_devices(model, [toy()], Training(1000))
    (tight,) = compare_devices(model, [toy(memory=100e3)], Training(1000))
    assert roomy.best_batch > tight.best_batch >= 1
    steps = [model.timeline(batch).step_s for batch in list_doubling_batches(1 << 16)]
    best = find_knee(list_doubling_batches(1 << 16), steps)
    assert roomy.best_batch == best
    assert roomy.best_examples_per_s == pytest.approx(best / model.timeline(best).step_s)


def test_gradients_that_are_added_up_live_all_the_time():
    """At the worst moment of one forward pass all gradients of the one before are held."""
    graph = build_step(make_workload(read_model("fc"), 64, "float32", "train", "sgd"))
    peak, stack = peak_bytes(graph, catalog.stack()), catalog.stack()
    more = rank_peak_bytes(graph, stack, accumulates=True) - peak
    assert 0 <= more <= 4 * graph.parameters


def test_shipped_prices_are_dated_and_of_known_devices():
    found = read_offers()
    assert {one.currency for one in found} == {"USD"}
    assert all(one.date and 0.1 < one.price < 20 for one in found)
    g5 = next(one for one in found if one.name.endswith("g5.xlarge"))
    assert (g5.device, g5.price, g5.verified) == ("a10g", 1.006, True)
    p5 = next(one for one in found if one.name.endswith("p5.48xlarge"))
    assert p5.price == pytest.approx(55.04 / 8)
    assert cheapest(found)["l4"].price == min(one.price for one in found if one.device == "l4")


GOOD = """
name = "mine"
date = "2026-11-22"
currency = "EUR"
billing = "second"
source = "my contract"
[[offers]]
name = "a node"
devices = ["Tesla T4"]
per_hour = 4.0
number = 8
"""


def test_a_price_file_of_a_user(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    (one,) = read_offers(path)
    assert (one.device, one.price, one.currency) == ("t4", 0.5, "EUR")


@every(
    ("old", "new", "says"),
    [
        ("date =", "when =", "unknown key 'when'"),
        ('date = "2026-11-22"\n', "", "'date' is missing"),
        ('"second"', '"minute"', "unknown billing 'minute'"),
        ("per_hour = 4.0", "per_hour = -4.0", "'offers[0].per_hour' must be positive"),
        ("Tesla T4", "Tesla T44", "offer 1: unknown device 'Tesla T44'"),
        ('["Tesla T4"]', "[]", "offer 1 ('a node') has no device"),
        ("number = 8", "number = 0", "offer 1 ('a node') has no device"),
        ("number = 8", f"number = 1{'0' * 400}", "'offers[0].number' must be a whole number"),
        ("[[offers]]", "[offers]", "'offers' must be a list, not"),
    ],
)
def test_a_wrong_price_file_is_told_in_one_line(tmp_path, old, new, says):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as error:
        read_offers(path)
    assert str(error.value).startswith(f"{path}: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)
