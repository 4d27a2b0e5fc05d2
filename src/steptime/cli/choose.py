"""The command `choose`: every device for one training, by time, cost or energy."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from steptime.core.errors import InputError, unknown
from steptime.core.files import check_ending
from steptime.core.progress import note
from steptime.core.question import File, Text, choice, number, option, optional, question, whole
from steptime.core.spelling import meant_by
from steptime.core.table import Answer, picked
from steptime.core.units import counted
from steptime.core.values import parse_counts, parse_devices, parse_links, parse_models
from steptime.hardware import catalog
from steptime.hardware.device import KINDS, Device
from steptime.hardware.prices import Offer, Training, cheapest, offers
from steptime.questions import options
from steptime.questions.choose import SORTS, choices, ordered
from steptime.questions.choose_table import notes_on, table
from steptime.questions.step_options import ExecutionOptions, StepOptions

SAMPLES = 1_000_000
BATCHES = (1, 8, 32, 128, 512)  # of a page, beside a network's own
NEAR, FAR = "nvlink-4,pcie-4-x16", "infiniband-ndr,ethernet-25"  # links, in a node and beyond
MOST_NEAR = 4  # links in nodes of a page where none is named
REPLICAS = "1,2,4,...,64"


@question(long="predicting every device")
def choose(
    model: options.Model,
    devices: str = option(
        "NAME", f"Devices with commas, a kind ({', '.join(KINDS)}), or all.", "all"
    ),
    batch: Text = optional("N", "Batch size, on every device. Default: the network's."),
    samples: int = whole("N", "Examples of an epoch.", SAMPLES),
    epochs: float = number("N", "Epochs.", 1.0, at_most=1e6),
    prices: options.Prices = None,
    page: File = optional(
        "FILE",
        "A page to choose in, an .html file: MODEL and --batch take lists there, and devices are "
        "shown in each number, over each link.",
    ),
    link: Text = optional(
        "LINK,...",
        f"With --page: between replicas. Default: those that few devices have, and {FAR}; of many "
        f"{FAR},{NEAR}.",
    ),
    replicas: Text = optional("N,...", f"With --page. Default: {REPLICAS}."),
    sort: str = choice(SORTS, "time, cost or energy.", default="time"),
    top: int = whole("N", "Devices that are shown, best first.", 1000),
    *,
    step: StepOptions,
    execution: ExecutionOptions,
) -> Answer:
    """Compare devices for a training, by time, cost or energy."""
    if page is None:
        options.refuse({"--link": link, "--replicas": replicas}, "{} goes with --page FILE")
    else:
        rivals = devices_of(devices, step.method)
        axes = parse_models(model), rivals, batch, link, replicas or REPLICAS
        return _page(page, step, execution, axes, Training(samples, epochs), offers(prices))
    asked = devices_of(devices, step.method)
    priced = offers(prices)
    currencies = sorted({one.currency for one in priced})
    if len(currencies) > 1:
        raise InputError(f"prices in several currencies: {', '.join(currencies)}")
    asked_model = step.on(model, batch, asked[0], execution)
    workload = asked_model.workload
    found = choices(asked_model, asked, samples, epochs, cheapest(priced))
    if all(row["status"] == "unsupported" for row in found):
        raise InputError(found[0]["note"])
    keys = {"price": "price", "offer": "name", "price_date": "date", "price_verified": "verified"}
    rows = ordered(found, sort)[:top]
    for row in rows:
        row |= {key: getattr(row["offer"], name, None) for key, name in keys.items()}
    document = {
        "model": workload.label,
        "method": step.method,
        **picked(workload, "phase dtype optimizer"),
        "tuning": workload.tuning.text or None,
        "samples": samples,
        "epochs": epochs,
        "currency": currencies[0] if currencies else None,
        "sort": sort,
        "rows": rows,
        "notes": notes_on(rows),
    }
    return Answer(document, [table(document)], [f"note: {said}" for said in document["notes"]])


def _page(
    page: Path,
    step: StepOptions,
    execution: ExecutionOptions,
    axes: tuple[Sequence[str], Sequence[Device], str | None, str | None, str],
    training: Training,
    priced: Sequence[Offer],
) -> Answer:
    """Write the page of choices among models, devices, batches, links and numbers of replicas."""
    from steptime.planning.request import near_link
    from steptime.reports.choices import Choices, write_choices

    check_ending(page, (".html",), "ending of a page")
    models, devices, batch, links, replicas = axes
    makers = {name: partial(step.workload, name) for name in models}
    own = [make(None).batch_per_replica for make in makers.values()]
    batches = parse_counts(batch, "--batch") if batch else sorted({*own, *BATCHES})
    near = ",".join(dict.fromkeys(map(near_link, devices)))
    usual = f"{near},{FAR}" if near.count(",") < MOST_NEAR else f"{FAR},{NEAR}"
    words = picked(step, "length dtype optimizer method option_") | picked(
        training, "samples epochs"
    )
    words |= execution.words()
    asked = Choices(
        makers,
        devices,
        batches,
        [catalog.link(name, "--link") for name in parse_links(links or usual)],
        parse_counts(replicas, "--replicas"),
        training,
        cheapest(one for one in priced if one.currency == "USD"),
        step.method,
        execution.method_options(step.option_),
        options.words_of(words),
    )
    document = write_choices(asked, page)
    return Answer(document, notes=[f"{counted(document['rows'], 'row')}: {page}"])


def devices_of(text: str, method: str = "") -> list[Device]:
    """Return the devices that a list with commas names, those of a kind, or all."""
    word = text.strip().lower()
    if word == "all" or word in KINDS:
        every = [one for one in catalog.devices(note) if not one.only_by_name]
        if word == "all":  # phones are asked for by kind or by name
            return [one for one in every if one.details.get("used_in") != "phones"]
        return [one for one in every if one.kind == word]
    if meant_by(word, KINDS) and not catalog.meant(word):
        raise unknown("kind of devices", text, ("all", *KINDS), "--devices")
    return list(
        {
            one.name: one
            for one in (catalog.device(name, method) for name in parse_devices(text, "--devices"))
        }.values()
    )
