"""Answer `fit`, `plan` or `serve` for a launch command or recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from steptime.core.errors import DetailedInputError, InputError
from steptime.core.files import path_exists
from steptime.launch.job import SERVING, LaunchJob
from steptime.questions.launched.answer import FactValue, LaunchedAnswer, format_fact

AnswerType = TypeVar("AnswerType", bound=LaunchedAnswer)


@dataclass(frozen=True)
class LaunchedQuestion:
    """A question about a job that another tool would start.

    Attributes:
        name: `fit`, `plan` or `serve`.
        job: the job.
        model: the network: MODEL beside `--from`, else what the job loads.
    """

    name: str
    job: LaunchJob
    model: object


def read_launched(
    name: str,
    model: object,
    job_file: str | PathLike[str] | None,
    device_count: int | None = None,
) -> LaunchedQuestion | None:
    """Return the question about the job that MODEL or `--from` is; None where MODEL is a network.

    Args:
        name: `fit`, `plan` or `serve`.
        model: MODEL as the user gave it.
        job_file: a launch command or recipe beside MODEL; None without.
        device_count: number of devices that the user gives; `fit` is of one.

    Raises:
        InputError: if `--from` is no launch command or recipe, if the job is of another kind than
            the question, names no known network, or cannot be read.
    """
    # Without `--from`, MODEL itself may be a launch command or the path of a recipe.
    job_source = model if job_file is None else job_file
    if not isinstance(job_source, str | PathLike):
        return None
    is_single_word = len(str(job_source).split()) < 2
    is_network_name = job_file is None and is_single_word and not path_exists(str(job_source))
    if is_network_name:
        return None  # before the readers of the tools are imported
    from steptime.launch.reader import read_launch

    # `fit` answers for one device, whatever the number of devices of the job.
    job = read_launch(str(job_source), device_count=1 if name == "fit" else device_count)
    if job is None:
        if job_file is None:
            return None  # the text is a network after all
        reason = "is no launch command or recipe of a known tool"
        if not path_exists(str(job_file)):
            reason = "there is no such file"
        raise InputError(f"--from {job_file}: {reason}")
    is_serving_job = job.kind == SERVING
    is_serving_question = name == "serve"
    if is_serving_job != is_serving_question:
        nearest = "steptime serve" if is_serving_job else "steptime fit, steptime plan"
        raise InputError(f"{name}: is not asked of this {job.tool} job; nearest: {nearest}")
    network = model if job_file is not None else _find_network(job, job_source)
    return LaunchedQuestion(name, job, network)


def _find_network(job: LaunchJob, job_source: str | PathLike[str]) -> object:
    """Return the network that a job names, relative to the job's file where it has one."""
    from steptime.questions.launched.job_model import find_model

    job_file = Path(job_source).expanduser()
    folder = job_file.resolve().parent if path_exists(str(job_file)) else Path()
    try:
        return find_model(job, folder)
    except InputError as error:
        raise _make_unknown_model_error(job, error) from None


def _make_unknown_model_error(job: LaunchJob, error: InputError) -> DetailedInputError:
    """Return the error of a job whose network is not known, with all that was understood."""
    understood = gather_understood_facts(job)
    facts_text = ", ".join(f"{name} {format_fact(value)}" for name, value in understood.items())
    details = {"understood": understood, "not_used": list(job.not_used), "notes": list(job.notes)}
    return DetailedInputError(f"{error}; understood: {facts_text}", details)


def gather_understood_facts(job: LaunchJob) -> dict[str, FactValue]:
    """Return the facts of a job with its tool and the network that it names."""
    understood: dict[str, FactValue] = {"tool": job.tool}
    if job.model is not None:
        understood["model"] = job.model
    return understood | job.facts


def answer_launched(
    ask: Callable[..., AnswerType],
    question: LaunchedQuestion,
    device: Any,
    options: Mapping[str, Any],
) -> AnswerType:
    """Ask a question with the options of its job, and say what was understood.

    Args:
        ask: asks the question: takes the model and the device, then options.
        question: the question about a job.
        device: the device that the user names.
        options: options that the user gives, which win; None and False are not given.
    """
    from steptime.questions.launched.links import assume_links
    from steptime.questions.launched.server_settings import replace_data_ranks_by_replicas
    from steptime.questions.launched.settings import MAKE_SETTINGS_BY_QUESTION

    job = question.job
    # None and False are options that the user did not type; typed ones win over those of the job.
    user_options = {
        name: value for name, value in options.items() if value is not None and value is not False
    }
    settings = MAKE_SETTINGS_BY_QUESTION[question.name](job, user_options)
    if question.name == "serve":
        replace_data_ranks_by_replicas(settings, question.model)
    assume_links(question.name, device, settings, user_options)
    answer = ask(question.model, device, **{**settings.options, **user_options})
    notes = [*getattr(answer, "notes", ()), *job.notes, *settings.notes]
    if job.defaults:
        notes.append(f"{job.tool}'s defaults, not in the job: {', '.join(job.defaults)}")
    return msgspec.structs.replace(
        answer,
        understood=gather_understood_facts(job),
        not_used=job.not_used,
        notes=tuple(dict.fromkeys(notes)),
    )
