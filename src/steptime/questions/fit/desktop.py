"""`fit` of weights for one's own machine: which type fits, how long a context, how fast."""

from dataclasses import replace
from typing import Any

from steptime.core.answer import AnswerRow
from steptime.core.errors import InputError
from steptime.core.signatures.signature import option_name
from steptime.core.tables.table import Column, Printout, Table
from steptime.core.units import format_bytes
from steptime.questions.launched.answer import LaunchedAnswer
from steptime.questions.step_options import StepOptions
from steptime.serving.desktop.request import (
    DesktopCase,
    DesktopRequest,
    names_desktop_weights,
    types_of_stack,
)
from steptime.serving.desktop.stack import DEFAULT, find_stack, is_desktop_stack
from steptime.serving.desktop.tensors import is_gguf

ALL_WEIGHTS = "all"
DEFAULT_CONTEXT = 4096  # tokens of a chat, and the default of Ollama
ANSWER_TOKENS = 128
PUBLISHED_TYPES = (  # of GGUF that people publish; others by their name
    *("f16", "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "iq4_xs", "q3_k_l", "q3_k_m"),
    *("q3_k_s", "iq3_m", "iq3_xxs", "q2_k", "iq2_m", "iq2_xxs", "iq1_m"),
)
UNPUBLISHED_TYPES = ("f32", "f16")  # of stacks whose files are in bf16
TRAINING_OPTIONS = (
    "optimizer",
    "lora",
    "adapter",
    "modules_to_save",
    "train",
    "recompute",
    "offload",
    "packed",
    "padded",
)
COLUMNS = (
    Column("weights"),
    Column("bits_per_weight", "bits", form=".2f"),
    Column("file_bytes", "file"),
    Column("needed_bytes", "memory"),
    Column("verdict", "fits"),
    Column("longest_context", "longest context"),
    Column(
        "tokens_per_s_per_user",
        "tokens/s",
        ends=("tokens_per_s_low", "tokens_per_s_high"),
        form=".3g",
    ),
    Column("prefill_tokens_per_s", "prefill/s"),
)


class DesktopFitRow(AnswerRow, frozen=True, kw_only=True):
    """A type of weights on a device.

    Attributes:
        weights: the type.
        bits_per_weight: mean bits of a weight.
        file_bytes: size of the file of the weights.
        needed_bytes: memory that the device needs.
        fits: whether it fits; null where the memory of the device is unknown.
        verdict: yes, no, or unknown.
        longest_context: tokens of the longest context that fits, 0 if none does; null where the
            memory is unknown.
        tokens_per_s_per_user: output tokens a second.
        tokens_per_s_low: lower end of the 80 % interval of `tokens_per_s_per_user`.
        tokens_per_s_high: upper end of the 80 % interval of `tokens_per_s_per_user`.
        prefill_tokens_per_s: prompt tokens that are read a second.
        prefill_low_tokens_per_s: lower end of the 80 % interval of `prefill_tokens_per_s`.
        prefill_high_tokens_per_s: upper end of the 80 % interval of `prefill_tokens_per_s`.
    """

    weights: str
    bits_per_weight: float
    file_bytes: int
    needed_bytes: float
    fits: bool | None
    verdict: str
    longest_context: int | None
    tokens_per_s_per_user: float
    tokens_per_s_low: float | None
    tokens_per_s_high: float | None
    prefill_tokens_per_s: float
    prefill_low_tokens_per_s: float | None
    prefill_high_tokens_per_s: float | None


class DesktopFitAnswer(LaunchedAnswer, frozen=True, kw_only=True):
    """Which weights of a language model fit a device, and how fast they run.

    Attributes:
        model: the network.
        device: the device.
        stack: the software.
        kv: type of the cached keys and values.
        context_tokens: tokens that the cache has room for.
        assumed: settings that were not given and decide the answer, by the option that changes
            them.
        usable_bytes: memory that a process may use of the device; null where unknown.
        fits: whether the weights fit (of several types: whether one does); null where the memory is
            unknown.
        best_weights: the type with the most bits that fits; null if none does, or where the memory
            is unknown.
        rows: the types, the one with the most bits first.
        headline: facts that a reader needs first.
        notes: remarks that change how the answer is read.
    """

    model: str
    device: str
    stack: str
    kv: str
    context_tokens: int
    assumed: dict[str, str]
    usable_bytes: float | None
    fits: bool | None
    best_weights: str | None
    rows: tuple[DesktopFitRow, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the types as a table."""
        capacity = f" of {format_bytes(self.usable_bytes)}" if self.usable_bytes else ""
        question = f"{self.model} on {self.device}{capacity}, a context of {self.context_tokens:,}"
        title = "\n".join([*self.headline, f"{question} ({self.stack})"])
        assumed = ", ".join(f"{option_name(name)} {text}" for name, text in self.assumed.items())
        footnotes = [f"assumed: {assumed}"] if assumed else []
        rows = [row.to_dict() for row in self.rows]
        return [Table(COLUMNS, rows, title, footnotes)]

    def printout(self) -> Printout:
        """Return the answer as the command line prints it: the headline stands in the title."""
        return replace(super().printout(), text="")


def is_desktop_fit(model: Any, options: StepOptions) -> bool:
    """Whether a question is about weights for one's own machine, and not about a training."""
    if options.lora or options.adapter or options.train:
        return False
    has_desktop_weights = options.weights == ALL_WEIGHTS or names_desktop_weights(options.weights)
    is_desktop_file = isinstance(model, str) and is_gguf(model)
    return has_desktop_weights or is_desktop_file or is_desktop_stack(options.stack)


def answer_desktop_fit(
    model: Any, device: Any, options: StepOptions, *, has_max_context: bool
) -> DesktopFitAnswer:
    """Answer `fit` for one's own machine.

    Args:
        model: the network, a text.
        device: the device.
        options: the options of the step; `weights` is a type, or `all`.
        has_max_context: whether the longest context is what is asked for.

    Raises:
        InputError: for unknown names, and options of a training.
    """
    request = make_request("fit", model, device, options)
    cases = resolve_cases_of_types(request, options.weights)
    rows = tuple(predict_row(case) for case in cases)
    first_case = cases[0]
    usable_bytes = first_case.machine.device.datasheet.usable_bytes
    # Rows begin with the most bits.
    best_row = next((row for row in rows if row.fits), None)
    return DesktopFitAnswer(
        model=str(model),
        device=first_case.machine.device.name,
        stack=first_case.machine.stack.name,
        kv=first_case.demand.cache_type,
        context_tokens=first_case.demand.context,
        assumed=find_assumed(first_case, options),
        usable_bytes=usable_bytes,
        fits=None if usable_bytes is None else best_row is not None,
        best_weights=None if best_row is None else best_row.weights,
        rows=rows,
        headline=tuple(
            _describe_best_weights(rows, best_row, usable_bytes, has_max_context=has_max_context)
        ),
        notes=_list_notes(first_case, rows),
    )


def make_request(question: str, model: Any, device: Any, options: StepOptions) -> DesktopRequest:
    """Return the request to one's own machine by the options of `fit` and `choose`.

    Args:
        question: the command, for messages.
        model: the network, a text.
        device: the device.
        options: the options of the step; `weights` is a type, or `all`.

    Raises:
        InputError: for unknown names, and options of a training.
    """
    for name in TRAINING_OPTIONS:
        if getattr(options, name) is not None:
            option = option_name(name)
            text = f"{question}: {option} is of a training, --weights {options.weights} of a server"
            raise InputError(f"{text}; nearest: --weights nf4")
    context = options.sequence_length or DEFAULT_CONTEXT
    # Prompt and answer share the context; at least half of it is the prompt's.
    answer_tokens = min(ANSWER_TOKENS, context // 2)
    return DesktopRequest(
        model=str(model),
        device=device,
        stack="" if options.stack is None else find_stack(options.stack).name,
        weights=None if options.weights == ALL_WEIGHTS else options.weights,
        dtype=options.dtype,
        input_tokens=context - answer_tokens,
        output_tokens=answer_tokens,
        context=context,
    )


def resolve_cases_of_types(request: DesktopRequest, weights: str | None) -> list[DesktopCase]:
    """Return the cases of the types that are asked for, that of most bits first."""
    if weights != ALL_WEIGHTS:
        return [request.resolve()]
    if is_gguf(request.model):
        raise InputError("--weights all, and the file has one type; nearest: leave it out")
    stack = find_stack(request.stack or DEFAULT)
    stack_types = types_of_stack(stack)
    # Only types of which a user finds files. Few of GGUF's many are published, and nearly all of
    # other formats.
    if stack.weights == "gguf":
        published_types = [name for name in stack_types if name in PUBLISHED_TYPES]
    else:
        published_types = [name for name in stack_types if name not in UNPUBLISHED_TYPES]
    cases = [replace(request, weights=name).resolve() for name in published_types]
    return sorted(cases, key=lambda case: case.weights.file_bytes, reverse=True)


def predict_row(case: DesktopCase) -> DesktopFitRow:
    """Predict a type of weights."""
    prediction = case.predict()
    memory = prediction.memory
    tpot, ttft = prediction.tpot, prediction.ttft
    input_tokens = case.request.input_tokens
    # `over_bytes`: what is lacking; 0 if it fits, None if the memory of the device is unknown.
    fits = None if memory.over_bytes is None else not memory.over_bytes
    verdicts = {None: "unknown", True: "yes", False: "no"}
    return DesktopFitRow(
        weights=case.weights.label,
        bits_per_weight=case.weights.bits_per_weight,
        file_bytes=case.weights.file_bytes,
        needed_bytes=memory.needed_bytes,
        fits=fits,
        verdict=verdicts[fits],
        longest_context=prediction.longest_context,
        # The low speed is that of the high time.
        tokens_per_s_per_user=1 / tpot.value,
        tokens_per_s_low=1 / tpot.high if tpot.high else None,
        tokens_per_s_high=1 / tpot.low if tpot.low else None,
        prefill_tokens_per_s=input_tokens / ttft.value,
        prefill_low_tokens_per_s=input_tokens / ttft.high if ttft.high else None,
        prefill_high_tokens_per_s=input_tokens / ttft.low if ttft.low else None,
    )


def _list_notes(case: DesktopCase, rows: tuple[DesktopFitRow, ...]) -> tuple[str, ...]:
    """Return the remark that the model, and not the memory, limits the context."""
    if any(row.longest_context == case.trained_length for row in rows):
        return (f"a context of {case.trained_length:,} tokens is the longest of the model",)
    return ()


def find_assumed(case: DesktopCase, options: StepOptions) -> dict[str, str]:
    """Return the values of options that were not given and decide the answer."""
    assumed = {"kv": case.demand.cache_type}
    if options.stack is None:
        assumed["stack"] = case.machine.stack.name
    if options.length is None:
        assumed["length"] = str(case.demand.context)
    return assumed


def _describe_best_weights(
    rows: tuple[DesktopFitRow, ...],
    best_row: DesktopFitRow | None,
    usable_bytes: float | None,
    *,
    has_max_context: bool,
) -> list[str]:
    """Describe the type of most bits that fits, and its longest context."""
    if usable_bytes is None:
        return ["the memory of the device is unknown"]
    if best_row is None:
        smallest_row = rows[-1]
        lack = format_bytes(smallest_row.needed_bytes - usable_bytes)
        return [f"none fits: {smallest_row.weights} is out of memory by {lack}"]
    speed = f"{best_row.tokens_per_s_per_user:,.0f} tokens/s"
    if has_max_context:
        return [
            f"{best_row.weights}: a context of {best_row.longest_context:,} tokens fits, {speed}"
        ]
    if len(rows) == 1:
        return [f"{best_row.weights} fits, {speed}"]
    return [f"the largest type that fits is {best_row.weights}: {speed}"]
