"""The page of plans to choose in: network, device, number, length, batch -> the best plan."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from steptime.build import family_of, read_model
from steptime.core.errors import InputError
from steptime.core.files import check_ending
from steptime.planning.answer import time_request
from steptime.planning.ranks.site import build_cluster
from steptime.planning.request import Request
from steptime.questions.options import words_of
from steptime.questions.plan.options import PlanOptions
from steptime.questions.plan.price import request_of
from steptime.questions.plan.search import search_plans
from steptime.questions.plan.search_answer import PlanPageAnswer
from steptime.questions.plan.wording import PART_WORDS
from steptime.reports.plans import PlanPage, SearchResult, write_plans

MAX_SEARCHES = 400  # on a page


def write_page(requests: Sequence[Request], words: Sequence[str], path: Path) -> PlanPageAnswer:
    """Write the page of searches, and return what there is to choose from.

    Args:
        requests: the searches.
        words: their options beside the choices of the page, as a user types them.
        path: the file of the page.

    Raises:
        InputError: for no or too many searches, and where none of them finds a plan.
    """
    check_ending(path, (".html",), "ending of a page")
    if not requests:
        raise InputError("--page needs --device-count N,..., the numbers to choose among")
    if len(requests) > MAX_SEARCHES:
        count = f"{len(requests)} searches (models x devices x numbers x lengths x batches x types)"
        raise InputError(f"--page: {count}, at most {MAX_SEARCHES}")
    # Names and links that are wrong are refused: they are no searches that find nothing. The user
    # typed the models, so they may be the user's own code (trusted).
    for model in dict.fromkeys(request.model for request in requests):
        family_of(read_model(model, trusted=True))
    for request in requests:
        build_cluster(request.site, request.device_counts[0])
    plan_page = write_plans(requests, _search_for_page, words, path)
    return _page_answer(plan_page, path)


def page_words(
    plan_options: PlanOptions, limits: Mapping[str, float | None], levels: Sequence[str]
) -> list[str]:
    """Return the options of all searches of a page as a user types them.

    The links of nodes and the data type are left out: each search of the page has its own.
    """
    options: dict[str, object] = {
        name: value
        for name, value in vars(plan_options).items()
        if name not in ("inside", "link", "dtype")
    }
    options["option"] = options.pop("options")  # users type --option
    options["level"] = list(levels) or None
    return words_of({**options, **limits})


def _search_for_page(request: Request) -> SearchResult:
    """Return the answer of a search as the page has it; raises `InputError`."""
    answer = search_plans(request)
    _, step = time_request(request_of(request, answer.best))
    parts = answer.best.parts.to_dict()
    words = [(PART_WORDS[name], seconds) for name, seconds in parts.items()]
    return SearchResult(answer.to_dict(), step, words)


def _page_answer(page: PlanPage, path: Path) -> PlanPageAnswer:
    return PlanPageAnswer(
        path=str(path),
        search_count=page.search_count,
        successful_count=page.plan_count,
        models=tuple(page.axes["model"]),
        devices=tuple(page.axes["device"]),
        device_counts=tuple(page.axes["device_count"]),
        lengths=tuple(page.axes["length"]),
        global_batches=tuple(page.axes["global_batch"]),
        dtypes=tuple(page.axes["dtype"]),
        headline=(f"{page.plan_count} of {page.search_count} searches: {path}",),
    )
