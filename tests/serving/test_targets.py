"""Servers that hold targets: against all single answers, by hand, as text, JSON and picture."""

import json
import re
import shlex
from functools import cache
from itertools import product
from math import inf
from typing import Any

import pytest

import steptime
from every import every
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.planning.ranks.site import Site
from steptime.questions.serve import search as questions_search
from steptime.questions.serve.search import drop_dominated
from steptime.questions.serve.search_answer import FrontPoint, SearchRow
from steptime.questions.serve.server_parts import RequestSpreads
from steptime.serving import relaxation
from steptime.serving import search as server_search
from steptime.serving.load import LoadRun, run_requests
from steptime.serving.service import Service

H100: dict[str, Any] = {"device": "h100-sxm5", "inside": "nvlink-4"}
ASKED: dict[str, Any] = {"input": 1000, "output": 50, "rate": 40, "count": 200}


@cache
def load_of(*split: tuple[str, int]) -> Any:
    return steptime.serve("llama3_8b", **H100, **ASKED, **dict(split)).load


@cache
def searched(ttft: float, tpot: float, most: int = 5) -> Any:
    return steptime.serve(
        "llama3_8b", **H100, **ASKED, ttft=ttft, tpot=tpot, search=True, max_device_count=most
    )


@pytest.mark.parametrize(
    ("ttft", "output"),
    [
        (0.5, 1),  # without a TPOT
        pytest.param(0.5, 50, marks=pytest.mark.slow),  # with a front
        pytest.param(0.07, 50, marks=pytest.mark.slow),  # with relaxed limits
    ],
)
def test_each_run_of_the_event_loop_is_counted(ttft, output, monkeypatch):
    calls: list[object] = []

    def count_run(*arguments: Any) -> LoadRun:
        calls.append(arguments[0])
        return run_requests(*arguments)

    for module in (relaxation, server_search, questions_search):
        monkeypatch.setattr(module, "run_requests", count_run)
    asked = ASKED | {"output": output, "count": 50}
    answer = steptime.serve(
        "llama3_8b", **H100, **asked, ttft=ttft, search=True, max_device_count=2
    )
    assert bool(answer.rows) == (ttft == 0.5)
    # each row is run once more for its times, which is no part of the search
    assert answer.run_count == len(calls) - len(answer.rows) > 10


def cards(devices: int, ttft: float, tpot: float) -> dict[str, int]:
    """Return the fewest devices that hold, together and apart, by one answer after the other."""
    fewest: dict[str, int] = {}
    sizes = [(t, p) for t, p in product((1, 2, 4, 8), (1, 2, 4)) if t * p <= devices]
    splits: list[tuple[int, dict[str, int]]] = []
    for tensor, pipeline in sizes:
        for replicas in range(1, devices // (tensor * pipeline) + 1):
            plan = {"tensor": tensor, "pipeline": pipeline, "replicas": replicas}
            used = tensor * pipeline * replicas
            splits.append((used, plan))
            for other, more in product((1, 2, 4, 8), range(1, devices)):
                if (whole := used + other * pipeline * more) <= devices:
                    ahead = {"prefill_tensor": other, "prefill_replicas": more}
                    splits.append((whole, plan | ahead))
    for number, split in sorted(splits, key=lambda one: one[0]):
        way = "apart" if "prefill_tensor" in split else "together"
        if way not in fewest:
            load = load_of(*split.items())
            both = load.ttft_p90_s <= ttft and load.tpot_p90_s <= tpot
            if both and not load.queue_grows:
                fewest[way] = number
    return fewest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ttft", "tpot"),
    [
        (0.2, 0.02),
        pytest.param(0.1, 0.011, marks=pytest.mark.rare),
        pytest.param(0.5, 0.1, marks=pytest.mark.rare),
    ],
)
def test_the_fewest_devices_are_those_of_all_single_answers(ttft, tpot):
    told = searched(ttft, tpot)
    fewest: dict[str, int] = {}
    for row in told.rows:
        fewest[row.arrangement] = min(row.device_count, fewest.get(row.arrangement, 5))
    assert fewest == cards(5, ttft, tpot)
    assert told.smallest.device_count == min(fewest.values())


OF_A_SEARCH = re.compile("arrangement|bounded_by|command|prefill_|_p90_(low|high)_s").search
OF_LOAD = {"busy_shares", "running_sequences", *RequestSpreads.__struct_fields__}


def hold_row(row: SearchRow, capsys: pytest.CaptureFixture[str]) -> None:
    """Hold that the command of a row prints the row, key by key."""
    assert run([*shlex.split(row.command)[1:], "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for key, value in json.loads(json.dumps(row.to_dict())).items():
        if not OF_A_SEARCH(key):
            assert (printed["load"] if key in OF_LOAD else printed)[key] == value, key


@pytest.mark.slow
def test_a_row_is_one_answer(capsys):
    """The command of a row prints its times, intervals, stacks, rate and cost."""
    told = searched(0.2, 0.02, 3)
    ways = {row.arrangement: row for row in reversed(told.rows)}
    assert set(ways) == {"together", "apart"}
    for row in ways.values():
        assert row.other_stacks
        assert row.ttft_p90_low_s < row.ttft_p90_s < row.ttft_p90_high_s
        assert row.tpot_p90_low_s < row.tpot_p90_s < row.tpot_p90_high_s
        hold_row(row, capsys)


@pytest.mark.rare
def test_a_row_is_one_answer_under_options_too(capsys):
    how: dict[str, Any] = {"stack": "sglang-2025", "kv": "float8", "options": {"host": "slow"}}
    told = steptime.serve(
        "llama3_8b",
        ["l40s", "h100"],
        rate=7 / 3,
        count=150,
        ttft=2,
        tpot=0.05,
        output=64,
        search=True,
        **how,
    )
    for row in told.rows:
        assert not row.other_stacks
        hold_row(row, capsys)


def ways_of(**how: Any) -> dict[str, Any]:
    told = steptime.serve(
        "llama3_70b", **H100, rate=10, output=256, search=True, max_device_count=16, **how
    )
    best: dict[str, Any] = {}
    for row in sorted(told.rows, key=lambda one: one.device_count):
        best.setdefault(row.arrangement, row)
    return best | {"told": told}


@pytest.mark.rare  # the fewest devices are those of all answers, apart among them
def test_apart_wins_where_prompts_stretch_the_tokens_of_others():
    """A step that reads 2,048 tokens of prompts takes longer than a token may."""
    ways = ways_of(ttft=1.0, tpot=0.025)
    assert ways["apart"].device_count < ways["together"].device_count
    assert ways["together"].bounded_by == "TPOT"
    phases = Service("llama3_70b", Site("h100-sxm5", 8, "nvlink-4"), tensor=4).phases()
    assert (
        phases.price_mixed_step(8, 1100, 2, 1024).seconds
        > 0.025
        > phases.price_decode(8, 1100).seconds
    )
    assert "one server fewer would miss the TPOT target" in "; ".join(ways["told"].headline)


@pytest.mark.rare
def test_together_wins_where_prompts_are_short():
    """Two devices that hold the weights wait half of the time for prompts of 128 tokens."""
    ways = ways_of(input=128, ttft=1.0, tpot=0.04)
    assert ways["together"].device_count < ways["apart"].device_count
    assert ways["apart"].busy_shares[0] < 0.6


@pytest.mark.slow
def test_what_holds_nothing_is_said_first(capsys):
    words = "serve llama3_70b --device t4,h100 --rate 1 --ttft 0.5 --tpot 0.05 --search"
    words += " --max-device-count 4 --count 100 --output 32"
    assert run(words.split()) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("t4: out of memory on at most 4 devices")
    assert second.startswith("llama3_70b, 1 requests/s of ")
    assert any(line.startswith("steptime serve ") for line in rest)
    told = steptime.serve(
        "llama3_8b", "h100", rate=1, ttft=0.001, output=32, search=True, max_device_count=2
    )
    assert told.best is None
    assert told.headline[0] == "no server holds the targets"
    assert told.relaxed_limits
    assert "TTFT of" in told.missing[0]


@pytest.mark.rare
def test_a_device_without_a_price_stays_in_the_list(tmp_path):
    prices = tmp_path / "own.toml"
    prices.write_text(
        'name = "own"\ndate = "2026-11-01"\ncurrency = "USD"\nbilling = "second"\nsource = "me"\n'
        '[[offers]]\nname = "one"\ndevices = ["h100-sxm5"]\nper_hour = 3.6\n'
    )
    how: dict[str, Any] = {
        "ttft": 0.5,
        "tpot": 0.05,
        "search": True,
        "max_device_count": 2,
        "prices": prices,
    }
    told = steptime.serve("llama3_8b", ["h100", "h200"], rate=2, count=100, output=32, **how)
    cost = {row.device: row.cost_per_million_tokens for row in told.rows}
    assert cost["h200-sxm"] is None
    best = told.best
    hour = 3.6 * best.device_count / 3600
    assert best.cost_per_million_tokens == pytest.approx(1e6 / best.output_tokens_per_s * hour)
    assert best.price_date == "2026-11-01"


@pytest.mark.slow
def test_devices_that_nothing_joins_serve_together_alone():
    told = steptime.serve(
        "llama3_8b",
        ["rtx-3090"],
        rate=2,
        ttft=1.0,
        tpot=0.1,
        search=True,
        max_device_count=2,
        input=64,
        output=16,
    )
    assert told.rows
    assert {row.arrangement for row in told.rows} == {"together"}


@pytest.mark.slow
def test_a_front_has_no_point_that_another_beats(tmp_path):
    out = tmp_path / "front.svg"
    words = "serve llama3_8b --device h100 --rate 4 --tpot 0.02 --output 32 --count 100"
    assert run([*words.split(), "--search", "--max-device-count", "2", "--out", str(out)]) == 0
    assert "tokens/s of a device" in out.read_text()
    points = [
        FrontPoint(
            device="a", tensor=1, pipeline=1, data=1, expert=1, replicas=1, concurrency=1,
            tokens_per_s_per_user=user, tokens_per_s_per_device=owner, ttft_s=1.0,
        )
        for user, owner in [(9, 1), (8, 3), (7, 2), (6, 4), (6, 5)]
    ]  # fmt: skip
    front = drop_dominated(points)
    left = [(point.tokens_per_s_per_user, point.tokens_per_s_per_device) for point in front]
    assert left == [(9, 1), (8, 3), (6, 5)]


def test_a_front_tries_each_server_once(monkeypatch):
    tried = []
    monkeypatch.setattr(
        questions_search, "_front_points", lambda _, kinds: tried.append(kinds) or ()
    )
    answer = steptime.serve(
        "gpt2",
        "l4",
        input=200,
        output=20,
        rate=1,
        count=30,
        tpot=0.1,
        search=True,
        max_device_count=2,
    )
    (kinds,) = tried
    assert answer.rows
    assert len({id(kind) for kind in kinds}) == len(kinds)


def test_prompts_that_the_cache_has_in_part():
    """Of 1,000 tokens 600 are there: 400 are read, which see them."""
    told = steptime.serve("llama3_8b", **H100, input=1000, output=8, prefix=0.6)
    phases = Service("llama3_8b", Site("h100-sxm5", 8, "nvlink-4")).phases()
    server_s = phases.constant("prompt_s")
    assert told.ttft_s == pytest.approx(phases.price_prefill(1, 400, 600).seconds + server_s)
    loaded = [
        steptime.serve("llama3_8b", **H100, input=1000, output=8, concurrency=1, prefix=share)
        for share in (0.0, 0.6, 1.0)
    ]
    assert loaded[1].ttft_s == pytest.approx(told.ttft_s, rel=1e-3)
    assert loaded[0].ttft_s > loaded[1].ttft_s > loaded[2].ttft_s > server_s


def test_weights_of_4_bit_without_its_arithmetic_are_weights_alone():
    low = steptime.serve("llama3_8b", "h100", 4, 512, 32, dtype="float4")
    same = steptime.serve("llama3_8b", "h100", 4, 512, 32, weights="float4")
    assert {**low.to_dict(), "notes": 0, "assumed": 0} == {
        **same.to_dict(),
        "notes": 0,
        "assumed": 0,
    }
    assert "h100-sxm5 has no arithmetic of float4: weights alone are kept so" in low.notes
    assert steptime.serve("llama3_8b", "b200", 4, 512, 32, dtype="float4").dtype == "float4"


def test_eager_decoding_is_bound_by_the_host_and_says_so():
    eager = steptime.serve("llama3_8b", "h100", 1, 128, 16, stack="torch-eager")
    said = [note for note in eager.headline if "bound by the host" in note]
    assert len(said) == 1
    assert eager.decode.host_s > 0.25 * eager.tpot_s
    both = [steptime.serve("llama3_8b", "a100", stack=stack) for stack in ("hf", "vllm")]
    assert ["bound by the host" in told.tables()[0].title for told in both] == [True, False]
    graphs = steptime.serve("llama3_8b", "h100", 1, 128, 16)
    assert not any("bound by the host" in note for note in graphs.headline)


@every(
    ("how", "said"),
    [
        ({"search": True, "ttft": 0.5}, "needs --rate R or --requests FILE"),
        ({"search": True, "ttft": 0.5, "concurrency": 2}, "needs --rate R or --requests FILE"),
        ({"search": True, "rate": 1}, "holds --ttft S, --tpot S or both"),
        ({"search": True, "rate": 1, "tpot": 0.1, "tensor": 2}, "leave out --tensor"),
        ({"search": True, "rate": 1, "tpot": 0.1, "prefill_replicas": 2}, "chooses --prefill-repl"),
        ({"rate": 1, "tpot": inf}, "tpot"),
        ({"device": ["h100", "h200"]}, "several devices"),
        ({"prefix": 1.5}, "is a share such as 5% or 0.05"),
    ],
)
def test_what_a_search_cannot_be_asked(how, said):
    with pytest.raises(InputError, match=said):
        steptime.serve("llama3_8b", **{"device": "h100", **how})
