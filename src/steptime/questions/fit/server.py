"""`fit --max-context` of an inference engine: the longest sequence by the engine's own rules."""

from __future__ import annotations

from typing import Any, cast

from steptime.core.errors import InputError
from steptime.core.signatures.signature import option_name
from steptime.core.workload import changed_settings
from steptime.questions.serve.server_answer import ServerAnswer
from steptime.questions.step_options import StepOptions

ENGINES = ("vllm", "sglang", "trt-llm")
SERVED_OPTIONS = ("stack", "weights", "dtype", "phase", "method", "options")


def is_engine_fit(step: StepOptions) -> bool:
    """Return whether a step's stack is an inference engine."""
    return str(step.stack or "").startswith(ENGINES)


def answer_engine_fit(model: Any, device: Any, batch: Any, step: StepOptions) -> ServerAnswer:
    """Answer the longest context of a server on one device, with so many sequences at once.

    Args:
        model: the network.
        device: the device.
        batch: sequences at once; None for one.
        step: the options of `fit`.

    Raises:
        InputError: for options of a training, and what `serve` refuses.
    """
    from steptime.questions.serve.question import serve

    options = changed_settings(step, StepOptions())
    for name in options:
        if name not in SERVED_OPTIONS:
            raise InputError(
                f"fit: {option_name(name)} is of a training, and --stack {step.stack} serves; "
                "nearest: leave it out, or steptime serve --max-context"
            )
    options.pop("phase", None)  # a server always infers: `serve` has no --phase
    sequences = 1 if batch is None else batch
    answer = serve(model, device, sequences, max_context=True, **options)
    # It is neither a search nor one's own machine: the stack is an inference engine.
    return cast(ServerAnswer, answer)
