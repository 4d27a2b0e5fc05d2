"""Limits of a search that no server holds, changed so far that one does."""

from collections.abc import Iterator, Sequence

from steptime.core.signatures.signature import option_name
from steptime.questions.serve.search_answer import RelaxedLimit, format_split
from steptime.serving.relaxation import Relaxation
from steptime.serving.search import ServerSearch


def make_limit(search: ServerSearch, relaxation: Relaxation) -> RelaxedLimit:
    """Return a changed limit as a part of the answer."""
    service = relaxation.kind.service
    option = relaxation.option
    limit_by_option = {
        "ttft": search.demand.ttft,
        "tpot": search.demand.tpot,
        "rate": search.demand.rate,
        "max_device_count": float(search.max_device_count),
    }
    ranks = {name: count for name, count in service.split.items() if name != "replicas"}
    return RelaxedLimit(
        option=option_name(option),
        value=relaxation.value,
        factor=relaxation.value / limit_by_option[option],
        device=relaxation.kind.phases.problem.device.name,
        device_count=relaxation.kind.device_count * relaxation.replicas,
        servers=format_split(relaxation.replicas, ranks),
        is_joint=relaxation.is_joint,
    )


def describe_limits(limits: Sequence[RelaxedLimit]) -> Iterator[str]:
    """Describe changed limits: `with --ttft 120ms (2.4x) 8 h100-sxm5 hold (2 x tensor 4)`."""
    if limits and limits[0].is_joint:
        texts = " and ".join(map(_format_limit, limits))
        yield f"with {texts} together {_format_servers(limits[0])}"
        return
    for limit in limits:
        yield f"with {_format_limit(limit)} {_format_servers(limit)}"


def _format_limit(limit: RelaxedLimit) -> str:
    """Format a changed limit: `--ttft 120ms (2.4x)`."""
    is_time = limit.option in {"--ttft", "--tpot"}
    value = f"{limit.value * 1000:g}ms" if is_time else f"{limit.value:g}"
    return f"{limit.option} {value} ({limit.factor:.3g}x)"


def _format_servers(limit: RelaxedLimit) -> str:
    return f"{limit.device_count} {limit.device} hold ({limit.servers})"
