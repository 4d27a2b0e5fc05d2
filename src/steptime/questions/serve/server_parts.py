"""Parts of the answers of `serve`: seconds of phases, other stacks, and the load of a server."""

from steptime.core.answer import AnswerRow


class PhaseTimes(AnswerRow, frozen=True, kw_only=True):
    """Seconds of a phase by what takes them.

    Attributes:
        products_s: seconds of matrix products.
        attention_s: seconds of attention.
        other_s: seconds of norms and other ops that move bytes.
        communication_s: seconds of collectives.
        host_s: seconds in which the device waits for the host.
        prompt_s: seconds that the server adds to a request before its first token; null for a
            decode step.
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
        weights_s: of weights in their stored format.
        merged_s: of products of one input that run as one.
        attention_s: of newer attention, and the cache's format.
        last_token_s: of the head, which is for the last token alone.
        rows_s: of rows that are sorted by experts, casts, and gaps between kernels.
        host_s: of waiting for the host.
        server_s: of the server itself.
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
        request_count: requests of the run.
        counted_requests: requests that times and rates are of.
        duration_s: seconds until the last request ends.
        requests_per_s: throughput in requests.
        output_tokens_per_s: throughput in tokens.
        in_time_share: share of requests that hold the targets; 1 without targets.
        goodput_per_s: requests in time, a second.
        highest_rate_per_s: the highest rate at which 90 % of requests hold the targets; null where
            none does, and without targets.
        busy_shares: share of the time in which servers work, by pool.
        running_sequences: sequences of a step in the mean.
        input_tokens: tokens of a prompt in the mean.
        output_tokens: tokens of an answer in the mean.
        cache_share: the largest share of the cache in use.
        preemptions: times that a request was sent back and computed again.
        queue_grows: whether more requests come than are served.
        varied: times with answers of varied length; null where that is the same run.
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
