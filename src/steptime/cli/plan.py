"""The command `plan`: a training of a language model, split over many devices."""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from steptime.build import family_of, make_tuning, read_model
from steptime.cli.picture import drawn, picture
from steptime.core.errors import InputError
from steptime.core.files import check_ending, check_folder
from steptime.core.question import (
    File,
    Text,
    choice,
    flag,
    named,
    number,
    optional,
    price_option,
    question,
    time_option,
    whole,
)
from steptime.core.table import Answer
from steptime.core.values import parse_count, parse_counts, parse_devices, parse_models
from steptime.core.workload import CONTEXT_METHODS, OFFLOADS, RECOMPUTES, SCHEDULES
from steptime.planning.answer import asking, timed
from steptime.planning.best import answer
from steptime.planning.request import MOST_DEVICES, Request, cluster_of, level_of
from steptime.planning.tables import search_tables, split_and_size, tables
from steptime.prediction import DEFAULT
from steptime.questions import options

MOST_NUMBERS = 32  # of devices that are searched
MOST_SEARCHES = 400  # on a page


def _stages(text: str, where: str) -> tuple[int, ...]:
    return tuple(parse_count(one, where, 0) for one in text.split(","))


@dataclass(frozen=True)
class SplitOptions:
    """The options that say how a step is split, by the fields of `Plan`."""

    tensor: int | None = whole("T", "Devices that share each product. Default: 1.")
    pipeline: int | None = whole("P", "Stages of the pipeline. Default: 1.")
    virtual: int | None = whole("V", "Stages of a device, interleaved. Default: 1.")
    data: int | None = whole("N", "Replicas. Default: 1.")
    context: int | None = whole("C", "Devices that share a sequence. Default: 1.")
    context_method: Text = choice(
        CONTEXT_METHODS,
        "How they see each other's keys and values: gather (default), ring (beside attention) or "
        "all-to-all (each has all tokens for some heads).",
    )
    expert: int | None = whole("E", "Devices that share the experts. Default: 1.")
    expert_tensor: int | None = whole(
        "T", "1: tensor-parallel devices have whole experts. Default: these are split, too."
    )
    imbalance: float | None = number(
        "X", "Tokens of the busiest of these devices over the mean. Default: 1.", at_least=1.0
    )
    expert_overlap: bool = flag("Tokens are sent beside another microbatch's products.")
    recompute: Text = choice(RECOMPUTES, "none, selective (attention) or full. Default: none.")
    recompute_layers: int | None = whole(
        "N", "In the first N layers of each stage alone. Default: all."
    )
    zero: int | None = whole(
        "N",
        "Shared out over the replicas: 1 states, 2 gradients too, 3 weights too. Default: 0.",
        at_least=0,
    )
    shard: int | None = whole(
        "N", "Replicas that share these; the others are copies. Default: all."
    )
    sequence_parallel: bool = flag("Tensor-parallel devices share what lies between products too.")
    schedule: Text = choice(
        SCHEDULES, "1f1b (default), gpipe, interleaved, zero-bubble or dualpipe."
    )
    stages: Text = optional(
        "N,...", "Layers of each stage, in order. Default: shared out evenly.", parser=_stages
    )
    offload: Text = choice(
        OFFLOADS, "What lies on the host: none (default), optimizer, activations or both."
    )


@dataclass(frozen=True)
class PlanOptions:
    """The options of a training, by the fields of `Request`."""

    microbatch: int | None = whole("B", "Sequences that pass at once. Default: 1.")
    dtype: Text = optional(
        "NAME",
        "bfloat16-mixed (default; states in float32), float16-mixed; float8 or float4 for the "
        "layers' products; bfloat16, float16, float32 for all. Of other networks: float32.",
    )
    optimizer: Text = optional(
        "NAME",
        "sgd, momentum, rmsprop, adam, adamw, adam8bit. Default: sgd; language models: adam.",
    )
    lora: options.Lora = None
    weights: options.Weights = None
    train: options.Train = None
    packed: options.Packed = None
    padded: options.Padded = None
    update_early: options.UpdateEarly = False
    gradients: int | None = whole("BITS", "Bits: 16 or 32. Default: the stack's.")
    tokens: float | None = number("N", "Tokens of a training: shows hours and cost.")
    prices: options.Prices = None
    stack: Text = optional(
        "NAME",
        "The software: a name, a family (fsdp, megatron: its newest) or a year (2023). Default: "
        "what runs such a plan; the interval then holds the others that could be meant.",
    )
    method: options.Method = DEFAULT


OF_TUNING = ("lora", "weights", "train", "packed", "padded", "update_early")


@question(long="pricing the layers of the network")
def plan(
    model: options.Model,
    device: options.Device,
    global_batch: Text = optional(
        "B", "Sequences of a step, of all replicas. Default: a microbatch each."
    ),
    device_count: Text = optional(
        "N,...", "Search the best split of so many, of what is not given here."
    ),
    *,
    nodes: options.NodeOptions,
    split: SplitOptions,
    how: PlanOptions,
    level: list[str] | None = optional(
        "SIZE:LINK",
        "Between --inside and --link: so many nodes that a link joins; SIZE:LINK:LINKS with "
        "the links of a node. Repeatable, from the inside out.",
    ),
    host_link: Text = optional("LINK", "With --offload: what joins a device to its host."),
    max_device_count: int | None = whole(
        "N", "Search over 1, 2, 4, ... devices.", at_most=MOST_DEVICES
    ),
    length: Text = optional("--length --seq-len S", f"{options.LENGTH}."),
    order: Text = optional(
        "NAME", "How groups lie, from the inside out. Default: tensor-context-data-pipeline."
    ),
    budget_per_hour: float | None = price_option("P", "Search: all devices cost less."),
    days: float | None = time_option("N", "Search: the training (--tokens) takes less.", unit="d"),
    watts: float | None = number("W", "Search: all devices draw less."),
    trace: File = optional("FILE", "Write the pipeline's run as JSON for ui.perfetto.dev."),
    out: File = picture("Draw the pipeline and the memory"),
    page: File = optional(
        "FILE.html",
        "A page to choose in: MODEL, --device, --device-count, --length and --global-batch "
        "take lists.",
    ),
    option_: options.Settings = None,
) -> Answer:
    """Predict a language model trained on many devices.

    Time, memory by stage, exposed communication by link, and cost; or the best split.
    """
    if trace is not None:
        check_folder(trace)
    limits = {"budget_per_hour": budget_per_hour, "days": days, "watts": watts}
    numbers_ = [2**k for k in range((max_device_count or 0).bit_length())]
    if device_count is not None:
        options.refuse(
            {"--max-device-count": max_device_count}, "--device-count and {}: give one of them"
        )
        numbers_ = parse_counts(device_count, "--device-count")
    if len(numbers_) > MOST_NUMBERS:
        raise InputError(f"--device-count: {len(numbers_)} numbers, at most {MOST_NUMBERS}")
    if not numbers_:
        options.refuse(
            {named(name): one for name, one in limits.items()},
            "{} goes with --device-count or --max-device-count",
        )
    else:
        options.refuse(
            {"--order": order, "--data": split.data, "--trace": trace},
            "a search (--device-count, --max-device-count) chooses it: leave out {}",
        )
    chosen = options.given(split)
    if chosen.pop("sequence_parallel", False):
        chosen["sequence"] = True
    lengths, batches = (
        [None] if text is None else parse_counts(text, name) if page else [parse_count(text, name)]
        for text, name in ((length, "--length"), (global_batch, "--global-batch"))
    )
    models = parse_models(model) if page else [model]
    further = tuple(map(level_of, level or ())), host_link
    asked = dict(vars(how))
    of_tuning = {name: asked.pop(name) for name in OF_TUNING}
    tuning = make_tuning(**of_tuning, optimizer=how.optimizer or "")
    site, *others = nodes.sites(parse_devices(device), *further)
    request = Request(
        models[0], site, batches[0], length=lengths[0], split=chosen,
        device_counts=tuple(numbers_), order=order, options=options.pairs(option_, "option"),
        limits=limits, trace=trace, others=tuple(others), trusted=True, tuning=tuning, **asked,
    )  # fmt: skip
    if page is not None:
        options.refuse({"--out": out}, "{} is of one plan: leave out --page")
        each = {**vars(nodes), "inside": None, "link": None, "level": level, "option": option_}
        each |= {"host_link": host_link, **vars(split), **vars(how), **limits}
        cells = product(models, (site, *others), numbers_, lengths, batches)
        searches = [
            replace(
                request, model=m, site=at, others=(), device_counts=(n,), length=s, global_batch=b
            )
            for m, at, n, s, b in cells
        ]
        return _page(searches, options.words_of(each), page)
    told = answer(request)
    best = told["best"] if numbers_ else told
    shown_ = [*tables(best)[:1], *search_tables(told)] if numbers_ else tables(best)
    notes = [f"note: {said}" for said in best["notes"]]
    if out is not None:
        notes += _draw(request, best, out)
    return Answer(told, shown_, notes)


def _draw(request: Request, best: dict[str, Any], out: Path) -> list[str]:
    from steptime.reports.charts.plan import picture

    _, found = timed(asking(request, best))
    left = "note: the pipeline has too many parts to be simulated, and drawn, one by one"
    chart = picture(best, found, split_and_size(best))
    return [*([left] if found.flow is None else []), drawn(chart, out)]


def _page(asked: list[Request], words: list[str], page: Path) -> Answer:
    """Write the page of searches; `words` are their options beside the page's own choices."""
    from steptime.reports.plans import write_plans

    check_ending(page, (".html",), "ending of a page")
    if not asked:
        raise InputError("--page needs --device-count N,..., the numbers to choose among")
    if len(asked) > MOST_SEARCHES:
        said = f"{len(asked)} searches (models x devices x numbers x lengths x batches)"
        raise InputError(f"--page: {said}, at most {MOST_SEARCHES}")
    for model in {one.model: None for one in asked}:
        family_of(read_model(model, trusted=True))
    for one in asked:  # what is misspelt is no search that finds nothing
        cluster_of(one.site, one.device_counts[0])
    told = write_plans(asked, words, page)
    return Answer(told, notes=[f"{told['found']} of {told['searches']} searches: {page}"])
