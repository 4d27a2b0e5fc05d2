"""The question `plan`: a training of a network, split over many devices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Unpack

import msgspec

from steptime.core.errors import InputError
from steptime.core.files import check_folder
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import File, Kind, text_of
from steptime.core.signatures.signature import option_name
from steptime.core.values import (
    Count,
    Price,
    parse_count,
    parse_counts,
    parse_devices,
    parse_duration,
    parse_models,
    parse_names,
    parse_number,
    parse_price,
)
from steptime.launch.job import Facts
from steptime.planning.answer import time_request
from steptime.planning.faults import refuse_idle
from steptime.planning.ranks.site import MAX_DEVICES, parse_level
from steptime.planning.request import Request
from steptime.questions import kinds
from steptime.questions.launched.question import answer_launched, read_launched
from steptime.questions.options import refuse, set_reading
from steptime.questions.pictures import check_picture
from steptime.questions.plan.answer import PlanAnswer
from steptime.questions.plan.options import PlanKeywords, PlanOptions
from steptime.questions.plan.page import page_words, write_page
from steptime.questions.plan.price import answer_plan, request_of
from steptime.questions.plan.search import search_plans
from steptime.questions.plan.search_answer import PlanPageAnswer, PlanSearchAnswer
from steptime.questions.plan.wording import describe_split_and_size
from steptime.reports.charts.plan import picture
from steptime.reports.files import save

MAX_COUNTS = 32  # numbers of devices that are searched
NODE_OPTIONS = ("per_node", "inside", "link", "links_per_node")
Models = Annotated[
    str | PathLike[str] | Sequence[str],
    Kind("MODEL", is_argument=True, completes="steptime.network.families:list_names"),
]
Levels = Annotated[Sequence[str | tuple[object, ...]], Kind("SIZE:LINK[:N]")]
Lengths = Annotated[int | str | Sequence[int], Kind("S", names=("--length", "--seq-len"))]


def plan(
    model: Models,
    device: kinds.Devices,
    global_batch: Annotated[int | str | Sequence[int], Kind("B")] | None = None,
    device_count: kinds.Counts | None = None,
    level: Levels | None = None,
    max_device_count: kinds.Count | None = None,
    length: Lengths | None = None,
    order: Annotated[str, Kind("NAME")] | None = None,
    budget_per_hour: kinds.Price | None = None,
    days: kinds.Seconds | None = None,
    watts: Annotated[float | str, Kind("W")] | None = None,
    trace: kinds.TraceFile | None = None,
    out: kinds.OutFile | None = None,
    page: Annotated[File, Kind("FILE.html")] | None = None,
    from_: kinds.LaunchFile | None = None,
    emit: kinds.EmittedTool | None = None,
    **plan_options: Unpack[PlanKeywords],
) -> PlanAnswer | PlanSearchAnswer | PlanPageAnswer:
    """Predict a language model trained on many devices.

    Time, memory by stage, exposed communication by link, and cost; or the best split.

    Args:
        model: A family with its hyperparameters (fc:layers=4,nodes=1024), a named network
            (resnet50), a ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or
            code (model.py:NAME); a training command or recipe of another tool.
        device: A name of steptime list devices, FILE.toml, or local (this machine, calibrated).
        global_batch: Sequences of a step, of all replicas. Default: a microbatch for each replica.
        device_count: Search the best split over N devices; what you give of the split stays fixed.
            For a training command or recipe: the number of its devices, without a search.
        level: A level of links between `--inside` and `--link`, as SIZE:LINK or SIZE:LINK:N: SIZE
            nodes are joined by LINK, with N links of each node (default: one per device).
            `4:infiniband-ndr` are 4 nodes. May be repeated, innermost first.
        max_device_count: Search the best split over 1, 2, 4, ... up to N devices.
        length: Tokens of a sequence. Default: the model's.
        order: Nesting of the parallel groups of one plan, innermost first. Default:
            `tensor-context-data-pipeline`.
        budget_per_hour: Only plans whose devices together cost at most this an hour, in the
            currency of `--prices` (the shipped prices: USD).
        days: Only plans that train `--tokens` within these days.
        watts: Only plans whose devices together draw at most these watts.
        trace: Write the pipeline's timeline as JSON for ui.perfetto.dev.
        out: Draw the pipeline and the memory: .png, .svg, .pdf or .html.
        page: Write an .html page to choose plans in: MODEL, --device, --device-count, --length,
            --global-batch and --dtype take lists.
        from_: A training command or recipe of another tool. It replaces MODEL; if its file does not
            say the network, give both.
        emit: Print the plan, or the best of a search, as a command or recipe of a tool: `axolotl`,
            `trl`, `deepspeed`, `accelerate`, `megatron`.
        **plan_options: How the step is split, and what of the network is trained: `PlanOptions`.

    Raises:
        InputError: for a plan that cannot be, with the nearest that can; for unknown names, and
            options that do not go together.
    """
    launched = read_launched("plan", model, from_, _launched_device_count(device_count))
    if launched is not None:  # a training command or recipe: its plan, with these options
        options = {
            "global_batch": global_batch,
            "level": level,
            "length": length,
            "trace": trace,
            "out": out,
            "emit": emit,
            **plan_options,
        }
        return answer_launched(plan, launched, device, options)
    parsed = PlanOptions.from_keywords(plan_options, plan)
    picture_path = check_picture(out)
    limits = _read_limits(budget_per_hour, days, watts)
    device_counts = _read_device_counts(device_count, max_device_count)
    if trace is not None:
        check_folder(Path(trace))
    if device_counts:  # a search: the best of the splits over these numbers of devices
        plan_choices = {"--order": order, "--data": parsed.data, "--trace": trace}
        refuse(
            plan_choices, "a search (--device-count, --max-device-count) chooses it: leave out {}"
        )
    else:
        search_limits = {option_name(name): limit for name, limit in limits.items()}
        refuse(search_limits, "{} goes with --device-count or --max-device-count")
    # One plan has one value of each of these; a page may have several.
    lengths = _read_numbers(length, "--length", page)
    global_batches = _read_numbers(global_batch, "--global-batch", page)
    model_texts = parse_models(model) if page is not None else [str(model)]
    models = [str(set_reading(text, parsed.strict, parsed.batch_axis)) for text in model_texts]
    levels = _level_texts(level)
    site, *further_sites = parsed.sites(
        parse_devices(device), tuple(map(parse_level, levels)), text_of(parsed.host_link)
    )
    request = Request(
        model=models[0],
        site=site,
        global_batch=global_batches[0],
        length=lengths[0],
        device_counts=device_counts,
        order=order,
        limits=limits,
        trace=None if trace is None else Path(trace),
        other_sites=tuple(further_sites),
        trusted=True,  # the user typed the model, so it may be the user's own code
        node_options=frozenset(name for name in NODE_OPTIONS if getattr(parsed, name) is not None),
        **parsed.request_fields,
    )
    if page is None:
        answer = _answer_request(request, picture_path)
        return answer if emit is None else _emit_plan(emit, answer, request)
    # A page: the search of each combination of the values.
    refuse({"--emit": emit, "--out": out}, "{} is of one plan: leave out --page")
    dtypes = _read_dtypes(parsed.dtype)
    sites = (site, *further_sites)
    cells = product(models, sites, device_counts, lengths, global_batches, dtypes)
    words = page_words(parsed, limits, levels)
    return write_page(_requests_of(request, cells), words, Path(page))


def _launched_device_count(device_count: kinds.Counts | None) -> int | None:
    """Return the number of devices of a launched job where one number is given, else None."""
    device_counts = parse_counts(device_count, "--device-count") if device_count else []
    return device_counts[0] if len(device_counts) == 1 else None


def _answer_request(request: Request, out: Path | None) -> PlanAnswer | PlanSearchAnswer:
    """Return one plan, or the best plan of a search, and draw it into a file."""
    answer = answer_request(request)
    if out is not None:
        best = answer.best if isinstance(answer, PlanSearchAnswer) else answer
        _draw_plan(request, best, out)
    return answer


def _emit_plan(
    tool: str, answer: PlanAnswer | PlanSearchAnswer, request: Request
) -> PlanAnswer | PlanSearchAnswer:
    """Return the answer with its plan, or its best one, as a command or recipe of a tool."""
    from steptime.questions.launched.emitted import emit_training

    best = answer.best if isinstance(answer, PlanSearchAnswer) else answer
    emitted = emit_training(tool, best.model, _training_facts(best, request), request.tuning)
    notes = answer.notes
    if best.plan.offload != "none":
        notes = (*notes, f"--emit {tool}: what lies on the host is not written")
    is_priced_as_megatron = best.stack.startswith("megatron")
    if tool == "megatron" and not is_priced_as_megatron:
        notes = (
            *notes,
            "--emit megatron: --stack megatron prices the step as that command runs it",
        )
    return msgspec.structs.replace(answer, emitted=emitted, notes=notes)


def _training_facts(answer: PlanAnswer, request: Request) -> Facts:
    """Return the facts of a plan that the command or recipe of a tool states."""
    split = answer.plan
    degree_names = ("tensor", "pipeline", "context", "data", "virtual", "expert", "expert_tensor")
    facts: Facts = {name: getattr(split, name) for name in degree_names if getattr(split, name) > 1}
    examples_per_pass = answer.microbatch * split.data  # in a microbatch of all replicas
    facts |= {
        "devices": answer.device_count,
        "per_node": min(answer.device_count, request.site.per_node),
        "micro_batch": answer.microbatch,
        "global_batch": answer.global_batch,
        "accumulation": max(1, answer.global_batch // examples_per_pass),
        "zero": split.zero if split.data > 1 else 0,
        "recompute": split.recompute,
        "dtype": answer.dtype,
        "optimizer": request.optimizer or answer.assumed.get("optimizer", "adam"),
        "data": split.data,
    }
    if answer.length:
        facts["length"] = answer.length
    if split.sequence:
        facts["sequence_parallel"] = True
    is_sharded_in_groups = 0 < split.shard < split.data
    if is_sharded_in_groups:
        facts["shard"] = split.shard
    if split.stages:
        facts["stages"] = [str(layer_count) for layer_count in split.stages]
    return facts


def answer_request(request: Request) -> PlanAnswer | PlanSearchAnswer:
    """Return the answer to a request: one plan, or the best of those that it leaves open.

    Raises:
        InputError: for options that do nothing, and for a plan that cannot be.
    """
    is_search = bool(request.device_counts)
    refuse_idle(request.split, is_search)
    if request.other_sites and not is_search:
        raise InputError("plan: several devices go with --device-count or --max-device-count")
    answer = search_plans(request) if is_search else answer_plan(request)
    # Without --offload one plan offloads nothing, while a search may choose to.
    default_offload = "any" if is_search else "none"
    offload = request.split.get("offload", default_offload)
    # Of a plan that does not fit, the answer comes first: its nearest one may offload.
    does_fit = answer.fits if isinstance(answer, PlanAnswer) else True
    if request.site.host_link and offload == "none" and does_fit:
        raise InputError("plan: --host-link goes with --offload; nearest: leave out --host-link")
    return answer


def _read_limits(
    budget_per_hour: Price | None, days: float | str | None, watts: float | str | None
) -> Mapping[str, float | None]:
    limits: dict[str, float | None] = {"budget_per_hour": None, "days": None, "watts": None}
    if budget_per_hour is not None:
        limits["budget_per_hour"] = parse_price(budget_per_hour, "--budget-per-hour")
    if days is not None:
        limits["days"] = parse_duration(days, "--days", "d")
    if watts is not None:
        limits["watts"] = parse_number(watts, "--watts")
    return limits


def _read_device_counts(
    device_count: kinds.Counts | None, max_device_count: Count | None
) -> tuple[int, ...]:
    """Return the numbers of devices that are searched, none for one plan."""
    if device_count is None and max_device_count is None:
        return ()
    if device_count is None:
        largest = parse_count(text_of(max_device_count), "--max-device-count", at_most=MAX_DEVICES)
        powers_of_two = (2**exponent for exponent in range(largest.bit_length()))
        return tuple(powers_of_two)
    refuse({"--max-device-count": max_device_count}, "--device-count and {}: give one of them")
    device_counts = tuple(parse_counts(device_count, "--device-count"))
    if len(device_counts) > MAX_COUNTS:
        count = len(device_counts)
        raise InputError(f"--device-count: {count} numbers, at most {MAX_COUNTS}")
    return device_counts


def _read_numbers(
    value: int | str | Sequence[int] | None, option: str, page: File | None
) -> Sequence[int | None]:
    """Return the numbers of an option, one of a plan and several of a page; None left out."""
    if value is None:
        return [None]
    takes_several = page is not None
    if takes_several:
        return parse_counts(value, option)
    return [parse_count(text_of(value), option)]


def _read_dtypes(text: str | None) -> Sequence[str | None]:
    """Return the data types of a page, only None where none is named."""
    return [None] if text is None else parse_names(text, "--dtype")


def _level_texts(levels: Levels | None) -> list[str]:
    """Return levels as texts, `4:infiniband-ndr` of the tuple `(4, "infiniband-ndr")`."""
    if levels is None:
        return []
    texts = []
    level_list = [levels] if isinstance(levels, str) else levels
    for level in level_list:
        is_size_and_link = isinstance(level, tuple)
        texts.append(":".join(map(str, level)) if is_size_and_link else str(level))
    return texts


def _requests_of(request: Request, cells: Any) -> list[Request]:
    """Return the request of each search of a page."""
    return [
        replace(
            request,
            model=model,
            site=site,
            length=length,
            device_counts=(device_count,),
            global_batch=global_batch,
            dtype=dtype,
            other_sites=(),
        )
        for model, site, device_count, length, global_batch, dtype in cells
    ]


def _draw_plan(request: Request, best: PlanAnswer, out: Path) -> None:
    """Draw the pipeline and the memory of a plan into a file, and say its path."""
    _problem, plan_time = time_request(request_of(request, best))
    is_simulated = plan_time.run is not None
    if not is_simulated:
        parts = "the pipeline has too many parts to be simulated, and drawn, one by one"
        print_note(f"note: {parts}")
    save(picture(best.to_dict(), plan_time, describe_split_and_size(best)), out)
    print_note(f"picture: {out}")
