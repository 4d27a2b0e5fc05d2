"""Parts of the answers of `serve`: seconds of phases, other stacks, and the load of a server."""

from steptime.core.answer import AnswerRow


class PhaseTimes(AnswerRow, frozen=True, kw_only=True):
    """Seconds of a phase, by kind of work.

    Attributes:
        products_s: seconds of matrix products.
        attention_s: seconds of attention.
        other_s: seconds of norms and other ops that move bytes.
        communication_s: seconds of collectives.
        host_s: seconds in which the device waits for the host.
        prompt_s: seconds of the server's CPU (tokenising, scheduling) before the first token of a
            request; null for a decode step.
    """

    products_s: float
    attention_s: float
    other_s: float
    communication_s: float
    host_s: float
    prompt_s: float | None = None

    @property
    def total_s(self) -> float:
        """The sum of all parts."""
        device_s = self.products_s + self.attention_s + self.other_s + self.communication_s
        return device_s + self.host_s + (self.prompt_s or 0.0)


class PredictDifference(AnswerRow, frozen=True, kw_only=True):
    """Seconds by which a prefill on one device is longer than the step of `predict`.

    Attributes:
        weights_s: due to weights in their stored format.
        merged_s: due to products of one input that run as one kernel.
        attention_s: due to newer attention kernels, and the cache's format.
        last_token_s: due to the output layer, which runs for the last token only.
        rows_s: due to sorting rows by expert, casts, and gaps between kernels.
        host_s: due to waiting for the host.
        server_s: due to the server's own CPU work, which `predict` leaves out.
    """

    weights_s: float
    merged_s: float
    attention_s: float
    last_token_s: float
    rows_s: float
    host_s: float
    server_s: float


class StackTimes(AnswerRow, frozen=True, kw_only=True):
    """Times of a request under another stack.

    Attributes:
        stack: the stack.
        ttft_s: seconds to the first token.
        tpot_s: seconds per further token.
        request_s: seconds of the whole request.
    """

    stack: str
    ttft_s: float
    tpot_s: float
    request_s: float


class RequestSpreads(AnswerRow, frozen=True, kw_only=True):
    """Times of requests under load.

    Attributes:
        ttft_mean_s: seconds to the first token, mean.
        ttft_p50_s: seconds to the first token, median.
        ttft_p90_s: seconds to the first token, 90th percentile.
        ttft_p99_s: seconds to the first token, 99th percentile.
        tpot_mean_s: seconds per further token, mean; null where requests have one token.
        tpot_p50_s: seconds per further token, median; null where requests have one token.
        tpot_p90_s: seconds per further token, 90th percentile; null where requests have one token.
        tpot_p99_s: seconds per further token, 99th percentile; null where requests have one token.
        request_mean_s: seconds of a whole request, mean.
        request_p50_s: seconds of a whole request, median.
        request_p90_s: seconds of a whole request, 90th percentile.
        request_p99_s: seconds of a whole request, 99th percentile.
    """

    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_mean_s: float | None
    tpot_p50_s: float | None
    tpot_p90_s: float | None
    tpot_p99_s: float | None
    request_mean_s: float
    request_p50_s: float
    request_p90_s: float
    request_p99_s: float


class ServerLoad(RequestSpreads, frozen=True, kw_only=True):
    """A server under load.

    Attributes:
        request_count: requests that were simulated.
        counted_requests: requests that count for times and rates; with `--rate` those between
            filling and draining of the server.
        duration_s: seconds until the last request ends.
        requests_per_s: throughput in requests.
        output_tokens_per_s: throughput in tokens.
        in_time_share: share of the simulated requests whose predicted times, without their
            intervals, meet the targets; 1 without targets.
        goodput_per_s: requests a second that meet the targets.
        highest_rate_per_s: the highest rate at which 90 % of requests meet the targets; null if
            there is none, and without targets.
        busy_shares: share of the time in which the servers work, for each pool of replicas.
        running_sequences: mean number of sequences in a step.
        input_tokens: mean tokens of a prompt.
        output_tokens: mean tokens of an answer.
        cache_share: the largest share of the cache in use.
        preemptions: how often a request was preempted and computed again.
        queue_grows: whether more requests arrive than are served.
        varied: the same times if answers are up to a tenth longer or shorter, so that requests do
            not stay synchronised. The intervals cover these times. None for a single user, if
            lengths vary anyway, and if prompts and answers share steps.
    """

    request_count: int
    counted_requests: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    in_time_share: float
    goodput_per_s: float
    highest_rate_per_s: float | None
    busy_shares: tuple[float, ...]
    running_sequences: float
    input_tokens: float
    output_tokens: float
    cache_share: float
    preemptions: int
    queue_grows: bool
    varied: RequestSpreads | None
