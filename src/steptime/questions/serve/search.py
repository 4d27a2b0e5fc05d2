"""The search for servers that hold targets: rows, the front, and devices without a server."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice, product
from math import inf
from pathlib import Path
from statistics import fmean

from msgspec.structs import asdict

from steptime.core.progress import print_note
from steptime.core.registry import load as load_name
from steptime.core.signatures.signature import option_name
from steptime.core.units import format_count, format_seconds
from steptime.hardware import catalog
from steptime.planning.answer import fit_notes
from steptime.planning.ranks.site import Site
from steptime.prediction.kernel import Interval
from steptime.questions.serve.options import ServeOptions
from steptime.questions.serve.relaxed_limits import describe_limits, make_limit
from steptime.questions.serve.search_answer import (
    FrontPoint,
    SearchAnswer,
    SearchRow,
    describe_servers,
    describe_split,
)
from steptime.questions.serve.server_fields import (
    interval_fields,
    price_tokens,
    request_spreads,
    stack_times,
)
from steptime.serving.demand import Demand
from steptime.serving.load import TimeSpread, run_requests
from steptime.serving.queueing import Load
from steptime.serving.relaxation import find_relaxations
from steptime.serving.search import DOES_NOT_FIT, Candidate, ServerSearch, ServiceKind
from steptime.serving.service import Service
from steptime.serving.times import (
    StackedTimes,
    average_service,
    predict_times,
    run_service,
    widen_over_stacks,
)

USERS = tuple(4**k for k in range(5))  # at once, of the points of a front
MAX_FRONT_REQUESTS = 1000  # of a point
MIN_FRONT_REQUESTS = 16
MAX_FRONT_KINDS = 8  # of a device
CONDITIONS = {  # by the arrangement of a row
    "together": "if each server reads prompts and writes answers",
    "apart": "if some servers only read prompts and the others write answers",
}
_CHARTS = "steptime.reports.charts.serving:front"
_SAVE = "steptime.reports.files:save"


def answer_search(
    service: Service, sites: Sequence[Site], options: ServeOptions, picture: Path | None
) -> SearchAnswer:
    """Search the servers that hold targets, and draw their front into a file if there is one.

    Raises:
        InputError: without arrivals and a target, and for options that the search chooses.
    """
    search = ServerSearch(service, sites, options.searched_device_count)
    rows: list[SearchRow] = []
    points: list[FrontPoint] = []
    notes: list[str] = []
    kinds_of_sites: list[ServiceKind] = []
    for site in search.resolved_sites:
        # A kind is a server with one replica, split over devices in one of the possible ways.
        kinds = search.list_kinds(site)
        kinds_of_sites += kinds
        candidates = [*search.find_colocated(kinds), *search.find_disaggregated(kinds)]
        rows += [_make_row(search, candidate) for candidate in candidates]
        points += _front_points(search, _front_kinds(kinds, candidates))
        if kinds:  # all run the same stack on the same device
            notes += fit_notes(kinds[0].phases.problem)
    rows.sort(key=lambda row: (_cost(row), row.device_count))
    smallest = min(rows, key=_size_order, default=None)
    relaxations = [] if rows else find_relaxations(search, kinds_of_sites)
    limits = tuple(make_limit(search, relaxation) for relaxation in relaxations)
    answer = SearchAnswer(
        model=service.model,
        requests_per_s=search.rate,
        input_tokens=round(fmean(search.load.inputs)),
        output_tokens=round(fmean(search.load.outputs)),
        ttft_target_s=options.ttft_s,
        tpot_target_s=options.tpot_s,
        max_device_count=search.max_device_count,
        candidate_count=search.candidate_count,
        run_count=search.run_count,
        assumed=_assumed(search, rows, options),
        best=rows[0] if rows else None,
        smallest=smallest,
        rows=tuple(rows),
        front=tuple(drop_dominated(points)),
        relaxed_limits=limits,
        missing=tuple(_describe_missing(search, rows)),
        headline=(*_describe_best(rows, smallest), *describe_limits(limits)),
        notes=tuple(dict.fromkeys(notes)),
    )
    if picture is not None:
        _draw_front(answer, picture)
    return answer


def _make_row(search: ServerSearch, candidate: Candidate) -> SearchRow:
    """Return a candidate as a row: the values of the answer that its command gives."""
    kind = candidate.kind
    problem = kind.phases.problem
    service = replace(kind.service, replicas=candidate.replicas)
    reader: Service | None = None  # the replicas that read prompts, where these are apart
    if candidate.readers is not None:
        reader = replace(candidate.readers.kind.service, replicas=candidate.readers.replicas)
    run = candidate.run
    tokens_per_s = run.output_tokens_per_s
    stacked = _predict_times(search, kind, service, reader)
    times = stacked.times
    any_stack = stacked.any_stack  # these times, widened over all possible stacks
    # A run gives the 90th percentiles; their intervals are as wide as those of the mean times.
    ttft_p90 = _scale_to_p90(run.ttft, times.ttft)
    tpot_p90 = _scale_to_p90(run.tpot, times.tpot)
    any_ttft_p90 = _scale_to_p90(run.ttft, any_stack.ttft)
    any_tpot_p90 = _scale_to_p90(run.tpot, any_stack.tpot)
    offer = search.offers.get(problem.device.name)
    return SearchRow(
        device=problem.device.name,
        device_count=candidate.device_count,
        arrangement="together" if reader is None else "apart",
        **service.split,
        prefill_tensor=reader.tensor if reader else None,
        prefill_pipeline=reader.pipeline if reader else None,
        prefill_data=reader.data if reader else None,
        prefill_expert=reader.expert if reader else None,
        prefill_replicas=reader.replicas if reader else None,
        **asdict(request_spreads(run)),
        **interval_fields(stacked),
        ttft_p90_low_s=ttft_p90.low,
        ttft_p90_high_s=ttft_p90.high,
        tpot_p90_low_s=tpot_p90.low,
        tpot_p90_high_s=tpot_p90.high,
        any_stack_ttft_p90_low_s=any_ttft_p90.low,
        any_stack_ttft_p90_high_s=any_ttft_p90.high,
        any_stack_tpot_p90_low_s=any_tpot_p90.low,
        any_stack_tpot_p90_high_s=any_tpot_p90.high,
        running_sequences=run.running_sequences,
        busy_shares=run.busy_shares,
        output_tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=tokens_per_s / candidate.device_count,
        tokens_per_s_per_user=1 / times.tpot.value,
        bounded_by=candidate.bounded_by,
        **price_tokens(offer, candidate.device_count, tokens_per_s),
        dtype=problem.rank.dtype,
        stack=problem.method.settings.stack,
        nearest_stack=stacked.nearest,
        other_stacks=stack_times(stacked),
        command=_format_command(search, service, reader),
    )


def _predict_times(
    search: ServerSearch, kind: ServiceKind, service: Service, reader: Service | None
) -> StackedTimes:
    """Return the mean times of requests, with intervals over all possible stacks."""
    demand = search.demand
    if reader is not None:
        demand = replace(
            demand,
            prefill_replicas=reader.replicas,
            prefill_tensor=reader.tensor,
            prefill_data=reader.data,
            prefill_expert=reader.expert,
        )
    # The command of the row asks this question, so that its answer has the row's times.
    row_service = replace(service, demand=demand)
    run = run_service(row_service, search.load, kind.phases, run_requests)
    times = predict_times(average_service(row_service, run), kind.phases, run)
    return widen_over_stacks(row_service, search.load, kind.phases, times)


def _scale_to_p90(spread: TimeSpread | None, mean: Interval) -> Interval:
    """Return the 90th percentile with the relative interval of the mean."""
    if spread is None:
        # All requests have one token, so there is no time between tokens.
        return Interval(0.0)
    if mean.low is None or mean.high is None:
        return Interval(spread.p90_s)
    p90_over_mean = spread.p90_s / mean.value
    return Interval(spread.p90_s, p90_over_mean * mean.low, p90_over_mean * mean.high)


def _format_command(search: ServerSearch, service: Service, reader: Service | None) -> str:
    """Format the command line of the same server alone."""
    words = ["steptime", "serve", service.model]
    for name, value in _command_options(search, service, reader).items():
        words += [option_name(name), _format_value(value)]
    for name, text in service.options.items():
        words += ["--option", f"{name}={text}"]
    return shlex.join(words)


def _command_options(
    search: ServerSearch, service: Service, reader: Service | None
) -> dict[str, object]:
    """Return the options of a server by name, those with their defaults left out."""
    default_service = Service(model="", site=service.site)
    demand, default_demand = search.demand, Demand()
    # A value and the default of its option, which needs no words.
    values_and_defaults = {
        "input": (search.service.input, default_service.input),
        "output": (search.service.output, default_service.output),
        **{name: (ranks, 1) for name, ranks in service.split.items()},
        "dtype": (service.dtype, None),
        "weights": (service.weights, None),
        "kv": (service.kv, None),
        "stack": (service.stack, None),
        "method": (getattr(service.method, "name", service.method), default_service.method),
        "prefix": (service.prefix, default_service.prefix),
        "prices": (service.prices, None),
        "concurrency": (demand.concurrency, default_demand.concurrency),
        "rate": (demand.rate, default_demand.rate),
        "requests": (demand.requests, None),
        "count": (demand.count, default_demand.count),
        "seed": (demand.seed, default_demand.seed),
        "ttft": (demand.ttft, default_demand.ttft),
        "tpot": (demand.tpot, default_demand.tpot),
        "max_running_sequences": (demand.max_running_sequences, 0),
    }
    options: dict[str, object] = {"device": catalog.device(service.site.device).name}
    for name, link in (("inside", service.site.inside), ("link", service.site.link)):
        if link is not None:
            options[name] = getattr(link, "name", link)
    for name, (value, default) in values_and_defaults.items():
        if value != default:
            options[name] = value
    if reader is not None:
        options["prefill_replicas"] = reader.replicas
        for name in ("tensor", "data", "expert"):
            if reader.split[name] != service.split[name]:
                options[f"prefill_{name}"] = reader.split[name]
    return options


def _format_value(value: object) -> str:
    """Format the value of an option so that it reads back alike: `0.5`, `10`, `nvlink-4`."""
    is_short = isinstance(value, float) and float(f"{value:g}") == value
    return f"{value:g}" if is_short else str(value)


def _front_kinds(
    kinds: Sequence[ServiceKind], candidates: Sequence[Candidate]
) -> list[ServiceKind]:
    """Return the kinds of a front, each once: those that hold the targets, then the smallest."""
    holding_kinds = [candidate.kind for candidate in candidates if candidate.readers is None]
    smallest_first = sorted(kinds, key=lambda kind: kind.device_count)
    unique_kinds = {id(kind): kind for kind in (*holding_kinds, *smallest_first)}.values()
    return list(unique_kinds)[:MAX_FRONT_KINDS]


def _front_points(search: ServerSearch, kinds: Sequence[ServiceKind]) -> Iterator[FrontPoint]:
    """Yield the throughput for the user and of a device, of servers with numbers of users."""
    for kind, users in product(kinds, USERS):
        # Each user sends two requests at least.
        request_count = max(2 * users, MIN_FRONT_REQUESTS)
        max_users = kind.pool.cache_tokens // kind.service.length
        if users > max_users or request_count > MAX_FRONT_REQUESTS:
            continue
        # Repeat the requests of the load until there are enough.
        inputs = list(islice(cycle(search.load.inputs), request_count))
        outputs = list(islice(cycle(search.load.outputs), request_count))
        load = Load(inputs, outputs, arrivals_s=(), concurrency=users)
        pool = kind.pool._replace(max_running=users)
        run = run_requests(Demand(concurrency=users), load, [pool])
        search.run_count += 1
        if run.tpot is not None:
            yield FrontPoint(
                device=kind.phases.problem.device.name,
                **kind.service.split,
                concurrency=users,
                tokens_per_s_per_user=1 / run.tpot.mean_s,
                tokens_per_s_per_device=run.output_tokens_per_s / kind.device_count,
                ttft_s=run.ttft.mean_s,
            )


def drop_dominated(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the Pareto front of each device: faster for the user, or more of a device."""
    front: list[FrontPoint] = []
    best_per_device: dict[str, float] = {}  # tokens/s of a device, by its name

    def speeds(point: FrontPoint) -> tuple[float, float]:
        return point.tokens_per_s_per_user, point.tokens_per_s_per_device

    # From the fastest for a user on, a point counts only if its devices do more than all before.
    for point in sorted(points, key=speeds, reverse=True):
        if point.tokens_per_s_per_device > best_per_device.get(point.device, 0.0):
            best_per_device[point.device] = point.tokens_per_s_per_device
            front.append(point)
    return front


def _cost(row: SearchRow) -> float:
    """Return the cost of a row, infinity without a price."""
    return inf if row.cost_per_million_tokens is None else row.cost_per_million_tokens


def _size_order(row: SearchRow) -> tuple[int, bool, float]:
    """Return the order of size: devices, together before apart, the time of a request."""
    return row.device_count, row.prefill_replicas is not None, row.request_mean_s


def _assumed(
    search: ServerSearch, rows: Sequence[SearchRow], options: ServeOptions
) -> dict[str, str]:
    """Return the values of options that were not given and decide the answer."""
    settings = {
        "max_device_count": str(search.max_device_count),
        "count": str(len(search.load.inputs)),
    }
    if search.demand.rate:
        settings["seed"] = str(search.demand.seed)
    # Servers may differ in type and stack: then no option sets all of them.
    has_single_dtype = len({row.dtype for row in rows}) == 1
    has_single_stack = len({row.stack for row in rows}) == 1
    if has_single_dtype and len(search.sites) == 1:
        settings["dtype"] = rows[0].dtype
    if has_single_stack:
        settings["stack"] = rows[0].stack
    return options.keep_unstated(settings)


def _describe_missing(search: ServerSearch, rows: Sequence[SearchRow]) -> Iterator[str]:
    """Yield a line for each device on which no server holds the targets, with the reason."""
    devices_with_server = {row.device for row in rows}
    limit = f"at most {format_count(search.max_device_count, 'device')}"
    for site in search.sites:
        name = catalog.device(site.device).name
        if name in devices_with_server:
            continue
        # A model that fits the device was run there; else the refusals say why none does.
        if name in search.isolated_times_s:
            ttft, tpot = map(format_seconds, search.isolated_times_s[name])
            yield (
                f"{name}: no server of {limit} holds the targets; "
                f"a request alone has its TTFT of {ttft} at best, and a TPOT of {tpot}"
            )
            continue
        refusals = [reason for device, reason in search.refusal_counts if device == name]
        reasons = [f"out of memory on {limit}"] if DOES_NOT_FIT in refusals else []
        faults = [reason for reason in refusals if reason != DOES_NOT_FIT]
        reasons += faults[:1]  # one example
        yield f"{name}: {'; '.join(reasons)}"


def _describe_best(rows: Sequence[SearchRow], smallest: SearchRow | None) -> list[str]:
    """Describe the cheapest server, the smallest, and together or apart."""
    if not rows or smallest is None:
        return ["no server holds the targets"]
    best = rows[0]
    best_text = f"{best.device_count} {best.device} ({describe_servers(best)})"
    if best.cost_per_million_tokens is None:  # rows without a price are in order of size
        facts = [f"fewest: {best_text}"]
    else:
        cost = f"{best.cost_per_million_tokens:,.2f} {best.currency}"
        facts = [f"cheapest: {best_text}", f"{cost} a million tokens"]
    if smallest.device_count < best.device_count:
        servers = describe_servers(smallest)
        facts.append(f"fewest: {smallest.device_count} {smallest.device} ({servers})")
    return [*facts, *_describe_arrangements(rows, best.device)]


def _describe_arrangements(rows: Sequence[SearchRow], device: str) -> list[str]:
    """Describe the smallest servers together and apart; nothing where there is only one."""
    largest_first = [row for row in reversed(rows) if row.device == device]
    largest_first.sort(key=lambda row: -row.device_count)
    # Later rows replace earlier ones: what stays is the smallest, of equal ones the cheapest.
    smallest_rows = {row.arrangement: row for row in largest_first}
    if len(smallest_rows) < 2:  # all servers have the same arrangement
        return []
    smaller, larger = sorted(smallest_rows.values(), key=lambda row: row.device_count)
    reason = ""
    if larger.bounded_by and smaller.device_count < larger.device_count:
        reason = f" (one server fewer would miss the {larger.bounded_by} target)"
    smaller_text = f"{smaller.device_count} devices {CONDITIONS[smaller.arrangement]}"
    larger_text = f"{larger.device_count} {CONDITIONS[larger.arrangement]}{reason}"
    return [f"{device}: {smaller_text}; {larger_text}"]


def _draw_front(answer: SearchAnswer, path: Path) -> None:
    """Draw the front into a file, and say its path to people; raises `InputError`."""
    points = [point.to_dict() | {"servers": describe_split(point)} for point in answer.front]
    chart = load_name(_CHARTS)(answer.model, points, answer.tpot_target_s)
    load_name(_SAVE)(chart, path)
    print_note(f"picture: {path}")
