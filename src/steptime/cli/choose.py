"""The command `choose`: every device for one training, by time, cost or energy."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Unpack

from steptime.core.errors import InputError, one_of, unknown
from steptime.core.files import check_ending
from steptime.core.kinds import File, Kind, setting_texts, text_of
from steptime.core.progress import note
from steptime.core.spelling import meant_by
from steptime.core.table import Answer, picked
from steptime.core.units import counted
from steptime.core.values import (
    parse_count,
    parse_counts,
    parse_devices,
    parse_links,
    parse_models,
    parse_number,
)
from steptime.hardware import catalog
from steptime.hardware.device import KINDS, Device
from steptime.hardware.prices import Offer, Training, cheapest, offers
from steptime.questions import kinds, options
from steptime.questions.choose import SORTS, choices, ordered
from steptime.questions.choose_table import notes_on, table
from steptime.questions.step_options import StepKeywords, StepOptions

EXAMPLES = 1_000_000
BATCHES = (1, 8, 32, 128, 512)  # of a page, beside a network's own
NEAR, FAR = "nvlink-4,pcie-4-x16", "infiniband-ndr,ethernet-25"  # links, in a node and beyond
MOST_NEAR = 4  # links in nodes of a page where none is named
REPLICAS = "1,2,4,...,64"


def choose(
    model: kinds.Model,
    device: kinds.Devices = "all",
    batch: kinds.Counts | None = None,
    examples: kinds.Count = EXAMPLES,
    epochs: kinds.Number = 1.0,
    prices: kinds.PriceFile | None = None,
    page: Annotated[File, Kind("FILE")] | None = None,
    link: kinds.Links | None = None,
    replicas: kinds.Counts | None = None,
    sort: Annotated[str, Kind("NAME", choices=tuple(SORTS))] = "time",
    top: kinds.Count = 1000,
    **step_options: Unpack[StepKeywords],
) -> Answer:
    """Compare devices for a training, by time, cost or energy.

    Args:
        model: A family with its hyperparameters (fc:layers=4,nodes=1024), a named network
            (resnet50), a ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or
            code (model.py:NAME); with --page several.
        device: Devices with commas, a kind (cpu, gpu, tpu), or all.
        batch: Batch size, on every device. Default: the network's.
        examples: Examples of an epoch.
        epochs: Epochs.
        prices: Prices of devices. Default: the shipped ones, of their dates.
        page: A page to choose in, an .html file: MODEL and --batch take lists there, and devices
            are shown in each number, over each link.
        link: With --page: between replicas. Default: the devices' own, infiniband-ndr and
            ethernet-25.
        replicas: With --page: numbers of replicas. Default: 1,2,4,...,64.
        sort: time, cost or energy.
        top: Devices that are shown, best first.
        **step_options: Which step it is, and how it is executed: `StepOptions`.

    Raises:
        InputError: for unknown names, and options that do not go together.
    """
    step = StepOptions.from_keywords(step_options, "choose")
    examples = parse_count(text_of(examples), "--examples")
    top = parse_count(text_of(top), "--top")
    epochs = parse_number(text_of(epochs), "--epochs", at_most=1e6)
    one_of("--sort", sort, SORTS)
    price_file = None if prices is None else Path(prices)
    if page is None:
        options.refuse({"--link": link, "--replicas": replicas}, "{} goes with --page FILE")
    else:
        texts = map(text_of, (batch, link, replicas or REPLICAS))
        axes = parse_models(text_of(model)), devices_of(text_of(device), step.method), *texts
        return _page(Path(page), step, axes, Training(examples, epochs), offers(price_file))
    devices = devices_of(text_of(device), step.method)
    priced = offers(price_file)
    currencies = sorted({one.currency for one in priced})
    if len(currencies) > 1:
        raise InputError(f"prices in several currencies: {', '.join(currencies)}")
    asked_model = step.on(model, batch, devices[0])
    workload = asked_model.workload
    found = choices(asked_model, devices, examples, epochs, cheapest(priced))
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
        "examples": examples,
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
    words = picked(step, "length dtype optimizer method") | picked(training, "examples epochs")
    words |= {"option": setting_texts(step.options)} | step.words()
    asked = Choices(
        makers,
        devices,
        batches,
        [catalog.link(name, "--link") for name in parse_links(links or usual)],
        parse_counts(replicas, "--replicas"),
        training,
        cheapest(one for one in priced if one.currency == "USD"),
        step.method,
        step.method_options(step.options),
        options.words_of(words),
    )
    document = write_choices(asked, page)
    return Answer(document, notes=[f"{counted(document['rows'], 'row')}: {page}"])


def devices_of(text: Any, method: Any = "") -> list[Device]:
    """Return the devices that a list with commas names, those of a kind, or all."""
    if not isinstance(text, str):
        return [catalog.device(one) for one in parse_devices(text)]
    word = text.strip().lower()
    if word == "all" or word in KINDS:
        every = [one for one in catalog.devices(note) if not one.only_by_name]
        if word == "all":  # phones are asked for by kind or by name
            return [one for one in every if one.details.get("used_in") != "phones"]
        return [one for one in every if one.kind == word]
    if meant_by(word, KINDS) and not catalog.meant(word):
        raise unknown("kind of devices", text, ("all", *KINDS), "--device")
    devices = (catalog.device(name, str(method)) for name in parse_devices(text))
    return list({device.name: device for device in devices}.values())
