"""The answer of `serve --search`: servers that hold targets, and what each can give."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from steptime.core.answer import AnswerRow
from steptime.core.assumed import assumed_line, assumed_text
from steptime.core.tables.table import Column, Printout, Table
from steptime.hardware.prices import NO_PRICE, format_offer
from steptime.questions.launched.answer import LaunchedAnswer
from steptime.questions.serve.server_parts import RequestSpreads, StackTimes

SERVER_COLUMNS = (
    Column("device_count", "devices", is_answer=True),
    Column("cost_text", "cost of 1M tokens", is_answer=True),
    Column("device"),
    Column("servers", is_answer=True),
    Column(
        "ttft_p90_s", "TTFT p90", ends=("any_stack_ttft_p90_low_s", "any_stack_ttft_p90_high_s")
    ),
    Column(
        "tpot_p90_s", "TPOT p90", ends=("any_stack_tpot_p90_low_s", "any_stack_tpot_p90_high_s")
    ),
    Column("bounded_by", "bottleneck", is_spare=True),
)
PLAIN_COLUMNS = (  # of CSV: the price as a number
    SERVER_COLUMNS[0],
    Column("cost_per_million_tokens"),
    Column("currency"),
    *SERVER_COLUMNS[2:],
)
FRONT_COLUMNS = (
    Column("device"),
    Column("servers"),
    Column("concurrency", "users"),
    Column("tokens_per_s_per_user", "tokens/s a user", form=",.1f"),
    Column("tokens_per_s_per_device", "tokens/s a device", form=",.1f"),
    Column("ttft_s", "TTFT"),
)
MAX_FRONT_ROWS = 40  # that people see
NO_SPLIT = "1 device"


class FrontPoint(AnswerRow, frozen=True, kw_only=True):
    """A server at a number of users that no other server on its device beats.

    Attributes:
        device: the device.
        tensor: devices that split each matrix product (tensor parallelism).
        pipeline: stages of the pipeline.
        data: ranks that divide the sequences (and experts).
        expert: data ranks that divide the experts (expert parallelism).
        replicas: independent copies of the server.
        concurrency: users, each of whom asks again when the answer is complete.
        tokens_per_s_per_user: output tokens that one user gets a second: 1 / TPOT.
        tokens_per_s_per_device: throughput of a device in tokens.
        ttft_s: mean seconds to the first token.
    """

    device: str
    tensor: int
    pipeline: int
    data: int
    expert: int
    replicas: int
    concurrency: int
    tokens_per_s_per_user: float
    tokens_per_s_per_device: float
    ttft_s: float


class SearchRow(RequestSpreads, frozen=True, kw_only=True):
    """The fewest replicas of a split that meet the targets.

    Attributes:
        device: the device.
        device_count: devices of all replicas.
        arrangement: `together`, or `apart` if other replicas read the prompts.
        tensor: devices that split each matrix product (tensor parallelism).
        pipeline: stages of the pipeline.
        data: ranks that divide the sequences (and experts).
        expert: data ranks that divide the experts (expert parallelism).
        replicas: independent copies of the server.
        prefill_tensor: `tensor` of the replicas that only read prompts; null without such replicas.
        prefill_pipeline: `pipeline` of the replicas that only read prompts; null without such
            replicas.
        prefill_data: `data` of the replicas that only read prompts; null without such replicas.
        prefill_expert: `expert` of the replicas that only read prompts; null without such replicas.
        prefill_replicas: number of replicas that only read prompts; null without such replicas.
        ttft_low_s: lower end of the 80 % interval of `ttft_mean_s`; null where there is none.
        ttft_high_s: upper end of the 80 % interval of `ttft_mean_s`; null where there is none.
        tpot_low_s: lower end of the 80 % interval of `tpot_mean_s`; null where there is none.
        tpot_high_s: upper end of the 80 % interval of `tpot_mean_s`; null where there is none.
        request_low_s: lower end of the 80 % interval of `request_mean_s`; null where there is none.
        request_high_s: upper end of the 80 % interval of `request_mean_s`; null where there is
            none.
        ttft_p90_low_s: lower end of the 80 % interval of `ttft_p90_s`; null where there is none.
        ttft_p90_high_s: upper end of the 80 % interval of `ttft_p90_s`; null where there is none.
        tpot_p90_low_s: lower end of the 80 % interval of `tpot_p90_s`; null where there is none.
        tpot_p90_high_s: upper end of the 80 % interval of `tpot_p90_s`; null where there is none.
        any_stack_ttft_low_s: lower end of the 80 % interval of `ttft_mean_s` that covers `stack`
            and `other_stacks`.
        any_stack_ttft_high_s: upper end of the 80 % interval of `ttft_mean_s` that covers `stack`
            and `other_stacks`.
        any_stack_tpot_low_s: lower end of the 80 % interval of `tpot_mean_s` that covers `stack`
            and `other_stacks`.
        any_stack_tpot_high_s: upper end of the 80 % interval of `tpot_mean_s` that covers `stack`
            and `other_stacks`.
        any_stack_request_low_s: lower end of the 80 % interval of `request_mean_s` that covers
            `stack` and `other_stacks`.
        any_stack_request_high_s: upper end of the 80 % interval of `request_mean_s` that covers
            `stack` and `other_stacks`.
        any_stack_ttft_p90_low_s: lower end of the 80 % interval of `ttft_p90_s` that covers `stack`
            and `other_stacks`.
        any_stack_ttft_p90_high_s: upper end of the 80 % interval of `ttft_p90_s` that covers
            `stack` and `other_stacks`.
        any_stack_tpot_p90_low_s: lower end of the 80 % interval of `tpot_p90_s` that covers `stack`
            and `other_stacks`.
        any_stack_tpot_p90_high_s: upper end of the 80 % interval of `tpot_p90_s` that covers
            `stack` and `other_stacks`.
        running_sequences: mean number of sequences in a step.
        busy_shares: share of the time in which the servers work, for each pool of replicas.
        output_tokens_per_s: throughput of all replicas in tokens.
        tokens_per_s_per_device: throughput of a device in tokens.
        tokens_per_s_per_user: output tokens that one user gets a second: 1 / TPOT.
        bounded_by: the target that one replica less would miss; "" for a single replica.
        cost_per_hour: price of all devices for an hour; null without a price.
        cost_per_million_tokens: price of all devices for a million output tokens; null without a
            price.
        currency: the currency of the price; null without a price.
        offer: the offer that the price is from; null without a price.
        price_date: the date of the price; null without a price.
        dtype: data type of matrix products.
        stack: the software.
        nearest_stack: the newest of `other_stacks`; null without any.
        other_stacks: mean times under the other candidate stacks, which the `any_stack` intervals
            cover.
        command: the command line that predicts this server by itself.
    """

    device: str
    device_count: int
    arrangement: str
    tensor: int
    pipeline: int
    data: int
    expert: int
    replicas: int
    prefill_tensor: int | None
    prefill_pipeline: int | None
    prefill_data: int | None
    prefill_expert: int | None
    prefill_replicas: int | None
    ttft_low_s: float | None
    ttft_high_s: float | None
    tpot_low_s: float | None
    tpot_high_s: float | None
    request_low_s: float | None
    request_high_s: float | None
    ttft_p90_low_s: float | None
    ttft_p90_high_s: float | None
    tpot_p90_low_s: float | None
    tpot_p90_high_s: float | None
    any_stack_ttft_low_s: float | None
    any_stack_ttft_high_s: float | None
    any_stack_tpot_low_s: float | None
    any_stack_tpot_high_s: float | None
    any_stack_request_low_s: float | None
    any_stack_request_high_s: float | None
    any_stack_ttft_p90_low_s: float | None
    any_stack_ttft_p90_high_s: float | None
    any_stack_tpot_p90_low_s: float | None
    any_stack_tpot_p90_high_s: float | None
    running_sequences: float
    busy_shares: tuple[float, ...]
    output_tokens_per_s: float
    tokens_per_s_per_device: float
    tokens_per_s_per_user: float
    bounded_by: str
    cost_per_hour: float | None
    cost_per_million_tokens: float | None
    currency: str | None
    offer: str | None
    price_date: str | None
    dtype: str
    stack: str
    nearest_stack: str | None
    other_stacks: tuple[StackTimes, ...]
    command: str


class RelaxedLimit(AnswerRow, frozen=True, kw_only=True):
    """The smallest change of one option with which a server meets the targets.

    Attributes:
        option: the option to relax: `--ttft`, `--tpot`, `--rate` or `--max-device-count`.
        value: its new value: seconds, requests a second, or devices.
        factor: the new value over the given one.
        device: the device of that server.
        device_count: devices of all its replicas.
        servers: the replicas of that server and their split.
        is_joint: whether all rows of `relaxed_limits` must change together; if false, each row by
            itself is enough.
    """

    option: str
    value: float
    factor: float
    device: str
    device_count: int
    servers: str
    is_joint: bool


class SearchAnswer(LaunchedAnswer, frozen=True, kw_only=True):
    """Servers that meet targets for 90 % of requests, the cheapest first.

    Attributes:
        model: the network.
        requests_per_s: requests a second.
        input_tokens: mean tokens of a prompt.
        output_tokens: mean tokens of an answer.
        ttft_target_s: target of the time to the first token; null without one.
        tpot_target_s: target of the time per output token; null without one.
        max_device_count: the most devices of a server.
        candidate_count: servers that the search considers.
        run_count: simulations of servers: of the search, of the front and of relaxed limits.
        assumed: settings that were not given and decide the answer, by the option that changes
            them.
        best: the cheapest row; null where no server meets the targets.
        smallest: the row with the fewest devices; null where no server meets the targets.
        rows: for each split, the fewest replicas that meet the targets; the cheapest first.
        front: the Pareto front of each device: servers that no other beats in tokens/s of a user
            and of a device.
        relaxed_limits: where no server meets the targets: for each option (target, rate, number of
            devices) the smallest change with which one does; all rows together where no single
            change is enough.
        missing: for each device on which no server meets the targets, the reason.
        headline: the cheapest server, the smallest, and prompts and decoding together or apart.
        notes: remarks that change how the answer is read.
    """

    has_details: ClassVar[bool] = True

    model: str
    requests_per_s: float
    input_tokens: int
    output_tokens: int
    ttft_target_s: float | None
    tpot_target_s: float | None
    max_device_count: int
    candidate_count: int
    run_count: int
    assumed: dict[str, str]
    best: SearchRow | None
    smallest: SearchRow | None
    rows: tuple[SearchRow, ...]
    front: tuple[FrontPoint, ...]
    relaxed_limits: tuple[RelaxedLimit, ...]
    missing: tuple[str, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the best servers of each device as a table, and their front as another."""
        return [_server_table(self), _front_table(self)]

    def printout(self) -> Printout:
        """Return the answer as the command line prints it: the headline stands in the title."""
        return replace(super().printout(), text="")


def describe_servers(row: SearchRow) -> str:
    """Describe the servers of a row: `2 x tensor 4 prefill, 1 x tensor 8 decode`."""
    if row.prefill_replicas is None:
        return describe_split(row)
    prefill = {
        "tensor": row.prefill_tensor or 1,
        "pipeline": row.prefill_pipeline or 1,
        "data": row.prefill_data or 1,
        "expert": row.prefill_expert or 1,
    }
    return f"{format_split(row.prefill_replicas, prefill)} prefill, {describe_split(row)} decode"


def describe_split(split: SearchRow | FrontPoint) -> str:
    """Describe replicas and their ranks: `2 x tensor 4`, or `2 x 1 device`."""
    ranks = {
        "tensor": split.tensor,
        "pipeline": split.pipeline,
        "data": split.data,
        "expert": split.expert,
    }
    return format_split(split.replicas, ranks)


def format_split(replicas: int, ranks: Mapping[str, int]) -> str:
    """Format replicas and their ranks: `2 x tensor 4`, or `2 x 1 device`."""
    degrees = [f"{name} {rank_count}" for name, rank_count in ranks.items() if rank_count > 1]
    return f"{replicas} x {' '.join(degrees) or NO_SPLIT}"


def _server_table(answer: SearchAnswer) -> Table:
    """Return the best servers of each device, together and apart."""
    best: dict[tuple[str, str], SearchRow] = {}  # by device and arrangement; the best come first
    for row in answer.rows:
        best.setdefault((row.device, row.arrangement), row)
    rows = [
        row.to_dict() | {"servers": describe_servers(row), "cost_text": _format_cost(row)}
        for row in best.values()
    ]
    title = _describe_search(answer)
    lines = _lines_below(answer, best)
    return Table(SERVER_COLUMNS, rows, title, lines, csv_columns=PLAIN_COLUMNS)


def _format_cost(row: SearchRow) -> str:
    """Format the cost of a million tokens: `90.25 USD`."""
    if row.cost_per_million_tokens is None:
        return NO_PRICE
    return f"{row.cost_per_million_tokens:,.2f} {row.currency}"


def _describe_search(answer: SearchAnswer) -> str:
    """Describe the devices without a server, the requests, and the headline, a fact a line."""
    rate = f"{answer.model}, {answer.requests_per_s:,.4g} requests/s"
    tokens = f"{answer.input_tokens:,.4g} tokens in, {answer.output_tokens:,.4g} out"
    software = dict.fromkeys(f"{row.dtype}, {row.stack}" for row in answer.rows)
    question = "; ".join([f"{rate} of {tokens}", *software])
    return "\n".join([*answer.missing, question, *answer.headline])


def _lines_below(answer: SearchAnswer, best: Mapping[tuple[str, str], SearchRow]) -> list[str]:
    """Return the assumed settings, the sources of prices, and the command of the first row."""
    offer_by_device = {
        row.device: format_offer(row.offer, row.price_date or "")
        for row in best.values()
        if row.offer
    }
    lines = assumed_line([(answer.model, assumed_text(answer.assumed))])
    if offer_by_device:
        offers = "; ".join(f"{device}: {offer}" for device, offer in offer_by_device.items())
        lines.append(f"prices: {offers}")
    hidden_row_count = len(answer.rows) - len(best)
    hidden_rows = f"; --json has {hidden_row_count} more rows" if hidden_row_count > 0 else ""
    lines.append(
        f"the best of {answer.candidate_count:,} services of at most "
        f"{answer.max_device_count} devices, by {answer.run_count:,} simulations{hidden_rows}"
    )
    if answer.best is not None:
        lines += ["command of the first row:", answer.best.command]
    return lines


def _front_table(answer: SearchAnswer) -> Table:
    """Return the front as a table, a device after the other."""
    rows = [point.to_dict() | {"servers": describe_split(point)} for point in answer.front]
    rows.sort(key=_front_order)
    title = "tokens/s of a device over tokens/s of a user" if rows else ""
    return Table(FRONT_COLUMNS, rows, title, max_rows=MAX_FRONT_ROWS, is_detail=True)


def _front_order(row: Mapping[str, Any]) -> tuple[str, float]:
    return row["device"], -row["tokens_per_s_per_user"]
