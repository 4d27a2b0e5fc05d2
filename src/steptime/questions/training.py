"""A training of a step: how long so many tokens take, and what they cost."""

from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from steptime.build import tokens_per_example
from steptime.core.answer import AnswerRow
from steptime.core.errors import InputError
from steptime.core.signatures.kinds import File, text_of
from steptime.core.units import format_count, format_hours, format_money, format_rate, format_value
from steptime.core.values import parse_count
from steptime.core.workload import Workload
from steptime.hardware.prices import (
    HOUR_S,
    Offer,
    Training,
    bill_training,
    cheapest,
    format_offer,
    read_offers,
)
from steptime.questions.options import refuse


class StepInterval(NamedTuple):
    """The time of a step with its 80 % interval; None where the method has no interval."""

    step_s: float
    low_s: float | None
    high_s: float | None


class TrainingTime(AnswerRow, frozen=True, kw_only=True):
    """A training of so many tokens on one device.

    Attributes:
        tokens: tokens of the training.
        steps: number of steps.
        train_s: seconds of the whole training.
        train_low_s: lower end of the 80 % interval of `train_s`; null where the method has none.
        train_high_s: upper end of the 80 % interval of `train_s`; null where the method has none.
        cost_total: cost of the whole training; null without a price.
        cost_per_hour: price of the device for an hour; null without an offer.
        currency: currency of costs; null without prices.
        offer: the cheapest offer of the device.
        price_date: the date of the offer.
    """

    tokens: int
    steps: float
    train_s: float
    train_low_s: float | None
    train_high_s: float | None
    cost_total: float | None
    cost_per_hour: float | None
    currency: str | None
    offer: str | None
    price_date: str | None


def tokens_per_s(length: int | None, examples_per_s: float | None) -> float | None:
    """Return the throughput in tokens; None where it or the tokens of an example are unknown."""
    return None if length is None or examples_per_s is None else length * examples_per_s


def describe_speed(examples_per_s: float | None, tokens_per_s: float | None) -> str | None:
    """Describe the throughput: `640 examples/s`, of a language model with its tokens too.

    The tokens of an example follow: `15.6 examples/s, 15,925 tokens/s (1,024 tokens each)`.
    """
    if examples_per_s is None:
        return None
    examples = format_value("examples_per_s", examples_per_s)
    if tokens_per_s is None:
        return examples
    length = round(tokens_per_s / examples_per_s)
    return f"{examples}, {format_rate(tokens_per_s)} tokens/s ({length:,} tokens each)"


class TrainingFields(TypedDict):
    """The fields of an answer that say its training."""

    examples: int | None
    epochs: float | None
    tokens: int | None


def training_fields(training: Training | None) -> TrainingFields:
    """Return the fields that say a training: in tokens, in examples and epochs, or none of them."""
    if training is None:
        return {"examples": None, "epochs": None, "tokens": None}
    if training.tokens is not None:
        return {"examples": None, "epochs": None, "tokens": training.tokens}
    return {"examples": round(training.examples), "epochs": training.epochs, "tokens": None}


def describe_training(examples: int | None, epochs: float | None, tokens: int | None) -> str:
    """Describe a training: `3 epochs of 1,000,000 examples`, or `300,000,000 tokens`."""
    if tokens is not None:
        return f"{tokens:,} tokens"
    return f"{format_count(epochs or 0, 'epoch')} of {examples or 0:,} examples"


def training_of_tokens(tokens: Any, workload: Workload, nearest: str) -> Training:
    """Return the training of so many tokens of `--tokens`.

    Args:
        tokens: the tokens, a number or a text such as `300M`.
        workload: the step; its network reads tokens.
        nearest: the option that other networks have instead.

    Raises:
        InputError: for a text that is no number, and for a network that reads no tokens.
    """
    count = parse_count(text_of(tokens), "--tokens")
    length = tokens_per_example(workload)
    if length is None:
        raise InputError(f"--tokens: {workload.label} reads no tokens; nearest: {nearest}")
    return Training(count / length, tokens=count)


def predict_training(
    tokens: Any,
    prices: File | None,
    workload: Workload,
    device: str,
    step: StepInterval,
) -> TrainingTime | None:
    """Return the training of `--tokens` on one device, None without the option.

    Args:
        tokens: the tokens; None without a training.
        prices: a file of prices; None for the shipped ones.
        workload: the step.
        device: the name of the device.
        step: the time of a step.

    Raises:
        InputError: for `--prices` without `--tokens`, and for a network that reads no tokens.
    """
    if tokens is None:
        refuse({"--prices": prices}, "{} needs --tokens N, the tokens of a training")
        return None
    training = training_of_tokens(tokens, workload, "leave it out")
    offer = cheapest(read_offers(None if prices is None else Path(prices))).get(device)
    return price_training(training, offer, workload.batch_per_replica, step)


def price_training(
    training: Training,
    offer: Offer | None,
    batch: int,
    step: StepInterval,
    device_count: int = 1,
) -> TrainingTime:
    """Return the time and the cost of a training at the price of an offer.

    Args:
        training: the training in tokens.
        offer: what a device costs; None where no offer is known.
        batch: examples of a step on all devices.
        step: the time of a step.
        device_count: number of devices.
    """
    step_count = training.examples / batch
    priced_training = training
    if offer is not None:
        priced_training = Training(training.examples, price=offer.price, billing=offer.billing)
    bill = bill_training(priced_training, step.step_s, batch, device_count)
    return TrainingTime(
        tokens=training.tokens or 0,
        steps=step_count,
        train_s=bill.train_s,
        train_low_s=None if step.low_s is None else step_count * step.low_s,
        train_high_s=None if step.high_s is None else step_count * step.high_s,
        cost_total=bill.cost_total,
        cost_per_hour=None if offer is None else offer.price,
        currency=None if offer is None else offer.currency,
        offer=None if offer is None else offer.name,
        price_date=None if offer is None else offer.date,
    )


def training_rows(training: TrainingTime | None) -> list[tuple[str, str]]:
    """Return the rows of an answer with a training, none without one."""
    if training is None:
        return []
    cost = format_offer(training.offer, training.price_date)
    if training.cost_total is not None:
        cost = f"{format_money(training.cost_total, training.currency)} ({cost})"
    duration = f"{format_hours(training.train_s / HOUR_S)} for {training.tokens:,} tokens"
    return [("training", duration), ("cost", cost)]
