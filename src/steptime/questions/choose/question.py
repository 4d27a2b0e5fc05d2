"""Every device for one training, by time, cost or energy, or a page to choose in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Any, Unpack

from steptime.core.errors import InputError, check_choice, unknown
from steptime.core.files import check_ending
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import File, Kind, setting_texts, text_of
from steptime.core.spelling import find_similar_names
from steptime.core.units import format_count
from steptime.core.values import (
    parse_count,
    parse_counts,
    parse_devices,
    parse_links,
    parse_models,
    parse_names,
    parse_number,
    parse_price,
)
from steptime.grids.grid import Maker
from steptime.hardware import catalog, device_words
from steptime.hardware.device import KINDS, Device, Link
from steptime.hardware.prices import Offer, Training, cheapest, read_offers
from steptime.questions import kinds, options
from steptime.questions.choose.answer import (
    ChoicesPage,
    ChooseAnswer,
    ChooseRow,
    describe_prices_and_unfit_devices,
)
from steptime.questions.choose.desktop import DesktopChooseAnswer, answer_desktop_choose
from steptime.questions.choose.device_choices import (
    compare_devices,
    map_sort_names_to_keys,
    sort_rows,
)
from steptime.questions.choose.weights_page import WeightsPage, is_weights_page, write_weights_page
from steptime.questions.fit.commands import format_fit_command
from steptime.questions.fit.desktop import is_desktop_fit
from steptime.questions.step_options import StepKeywords, StepOptions
from steptime.questions.training import training_fields, training_of_tokens

EXAMPLES = 1_000_000
EPOCHS = 1.0
MAX_EPOCHS = 1e6
MAX_DEVICES = 1000  # rows of an answer, unless --top says more
PAGE_BATCHES = (1, 8, 32, 128, 512)  # of a page, beside a network's own
PAGE_CURRENCY = "USD"
NODE_LINKS = "nvlink-4,pcie-4-x16"
CLUSTER_LINKS = "infiniband-ndr,ethernet-25"
MAX_NODE_LINKS = 4  # links in nodes of a page where none is named
MAX_PRICE_REFUSED = "{}: the page has a field for it"
REPLICAS = "1,2,4,...,64"


@dataclass(frozen=True)
class _PageRequest:
    """The lists that a page lets its reader choose among.

    Args:
        models: texts of networks.
        devices: devices.
        batch: batches of a replica as a text; None for the usual ones.
        links: links as a text; None for those of the devices and of clusters.
        replicas: numbers of replicas as a text.
        training: the examples of the training.
        prices: offers by device.
    """

    models: Sequence[str]
    devices: Sequence[Device]
    batch: str | None
    links: Any
    replicas: str
    training: Training
    prices: Mapping[str, Offer]


def choose(
    model: kinds.Model,
    device: kinds.Devices = "all",
    batch: kinds.Counts | None = None,
    examples: kinds.Count | None = None,
    epochs: kinds.Number | None = None,
    prices: kinds.PriceFile | None = None,
    max_price: kinds.Price | None = None,
    page: Annotated[File, Kind("FILE")] | None = None,
    link: kinds.Links | None = None,
    replicas: kinds.Counts | None = None,
    sort: Annotated[str, Kind("COLUMN")] = "time",
    top: kinds.Count = MAX_DEVICES,
    tokens: kinds.Count | None = None,
    **step_options: Unpack[StepKeywords],
) -> ChooseAnswer | ChoicesPage | DesktopChooseAnswer | WeightsPage:
    """Compare devices for a training or weights: time, cost, energy.

    Args:
        model: A family with its hyperparameters (fc:layers=4,nodes=1024), a named network
            (resnet50), a ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or
            code (model.py:NAME); with --page several.
        device: Devices with commas, a kind (cpu, gpu, tpu, asic), or all.
        batch: Examples in a step, the same on every device. Default: that of the network.
        examples: Examples of an epoch. Default: 1000000.
        epochs: Epochs. Default: 1.
        tokens: Tokens of the training of a language model, in place of examples and epochs.
        prices: A file of prices. Default: the shipped prices, each with its date.
        max_price: Highest price of a device for an hour; devices without a known price are left
            out.
        page: Write an .html page in which you choose devices. MODEL, --batch and --dtype take
            lists; the page has each device with each number of replicas over each link. For weights
            of one's own machine (GGUF, ...) MODEL, --weights and --length take lists.
        link: With --page: links between replicas. Default: the devices' own, infiniband-ndr and
            ethernet-25.
        replicas: With --page: numbers of replicas. Default: 1,2,4,...,64.
        sort: Sort by time, cost, energy or another column; -COLUMN puts the largest first.
        top: Show at most N devices, best first.
        **step_options: Which step it is, and how it is executed: `StepOptions`.

    Returns:
        A `ChooseAnswer`; with `page` a `ChoicesPage`; with weights for one's own machine, such as
        `q4_k_m` or `all`, a `DesktopChooseAnswer`, and with both a `WeightsPage`.

    Raises:
        InputError: for unknown names, and options that do not go together.
    """
    step = StepOptions.from_keywords(step_options, choose)
    if is_desktop_fit(model, step) or (page is not None and is_weights_page(model, step)):
        training_options: dict[str, object] = {"--batch": batch, "--examples": examples}
        training_options |= {"--epochs": epochs, "--tokens": tokens}
        training_options |= {"--link": link, "--replicas": replicas}
        message = f"{{}} is of a training, --weights {step.weights} of a server; leave it out"
        options.refuse(training_options, message)
        if page is not None:
            return _write_weights_page(Path(page), model, device, prices, max_price, step)
        return _choose_for_weights(model, device, prices, max_price, sort, top, step)
    training = _parse_training(examples, epochs, tokens)
    row_count = parse_count(text_of(top), "--top")
    check_choice("--sort", sort.removeprefix("-"), map_sort_names_to_keys())
    if page is not None:
        options.refuse({"--tokens": tokens}, "{} is of one network: leave out --page")
        options.refuse({"--max-price": max_price}, MAX_PRICE_REFUSED)
        request = _PageRequest(
            models=parse_models(text_of(model)),
            devices=find_devices(text_of(device), step.method),
            batch=text_of(batch),
            links=text_of(link),
            replicas=text_of(replicas or REPLICAS),
            training=training,
            prices=_find_page_offers(prices),
        )
        return _write_page(Path(page), step, request)
    options.refuse({"--link": link, "--replicas": replicas}, "{} goes with --page FILE")
    devices = find_devices(text_of(device), step.method)
    all_offers = read_offers(None if prices is None else Path(prices))
    currency = _find_currency(all_offers)
    price_notes = []
    if max_price is not None:
        affordable = _affordable_devices(devices, cheapest(all_offers), max_price)
        price_notes = [
            f"{format_count(len(devices) - len(affordable), 'device')} left out by --max-price"
        ]
        devices = affordable
    step_model = step.build_model(model, batch, devices[0])
    workload = step_model.workload
    if tokens is not None:
        training = training_of_tokens(tokens, workload, "--examples N")
    rows = compare_devices(step_model, devices, training, cheapest(all_offers))
    if all(row.status == "unsupported" for row in rows):
        raise InputError("; ".join(rows[0].notes))
    # Without --dtype devices may compute in several types; then each row has its own.
    has_single_dtype = len({row.dtype for row in rows}) == 1
    best_rows = tuple(sort_rows(rows, sort)[:row_count])
    return ChooseAnswer(
        model=workload.label,
        method=step_model.method.name,
        phase=workload.phase,
        dtype=rows[0].dtype if has_single_dtype else None,
        optimizer=workload.optimizer,
        tuning=workload.tuning.text or None,
        **training_fields(training),
        currency=currency,
        sort=sort,
        rows=best_rows,
        notes=(*_list_notes(workload.label, step, best_rows), *price_notes),
    )


def _list_notes(model: str, step: StepOptions, rows: Sequence[ChooseRow]) -> list[str]:
    """Return the notes of a comparison.

    Where the step fits no device, the last one is the command that lists changed steps that fit.
    """
    notes = list(describe_prices_and_unfit_devices(rows))
    if all(row.status == "oom" for row in rows):
        largest = max(rows, key=lambda row: row.usable_bytes or 0.0)
        command = format_fit_command(model, largest.device, step, largest.batch)
        notes.append(f"for changed steps that fit: {command}")
    return notes


def _choose_for_weights(
    model: Any,
    device: Any,
    prices: Any,
    max_price: Any,
    sort: str,
    top: Any,
    step: StepOptions,
) -> DesktopChooseAnswer:
    """Answer for weights of one's own machine; raises `InputError`."""
    row_count = parse_count(text_of(top), "--top")
    all_offers = read_offers(None if prices is None else Path(prices))
    _find_currency(all_offers)  # refuses several currencies
    devices = find_devices(text_of(device), step.method)
    if max_price is not None:
        devices = _affordable_devices(devices, cheapest(all_offers), max_price)
    return answer_desktop_choose(model, devices, step, cheapest(all_offers), sort, row_count)


def _write_weights_page(
    page: Path, model: Any, device: Any, prices: Any, max_price: Any, step: StepOptions
) -> WeightsPage:
    """Write the page of weights of one's own machine; raises `InputError`."""
    options.refuse({"--max-price": max_price}, MAX_PRICE_REFUSED)
    devices = find_devices(text_of(device), step.method)
    return write_weights_page(page, model, devices, step, _find_page_offers(prices))


def _find_page_offers(prices: Any) -> Mapping[str, Offer]:
    """Return the cheapest offer of each device in the currency of pages."""
    all_offers = read_offers(None if prices is None else Path(prices))
    return cheapest(offer for offer in all_offers if offer.currency == PAGE_CURRENCY)


def _parse_training(examples: Any, epochs: Any, tokens: Any) -> Training:
    """Return the training of examples and epochs; raises `InputError` for these beside tokens."""
    if tokens is not None:
        options.refuse({"--examples": examples, "--epochs": epochs}, "{} and --tokens: give one")
    example_count = EXAMPLES
    if examples is not None:
        example_count = parse_count(text_of(examples), "--examples")
    epoch_count = EPOCHS
    if epochs is not None:
        epoch_count = parse_number(text_of(epochs), "--epochs", at_most=MAX_EPOCHS)
    return Training(examples=example_count, epochs=epoch_count)


def find_devices(value: Any, method: Any = "") -> list[Device]:
    """Return the devices of a list with commas, of a kind, or all.

    GPUs of phones are of a kind, and are not among all.

    Args:
        value: a text, or names and devices of Python.
        method: the cost model: under `paleo` a name of Paleo's table means Paleo's figures.

    Raises:
        InputError: for an unknown device.
    """
    if not isinstance(value, str):
        return [catalog.device(item) for item in parse_devices(value)]
    word = value.strip().lower()
    if word == "all" or word in KINDS:
        listed_devices = [
            device for device in catalog.devices(print_note) if not device.datasheet.only_by_name
        ]
        if word in KINDS:
            return [device for device in listed_devices if device.kind == word]
        # Nobody buys or rents the GPU of a phone for a training: only its kind or name lists it.
        return [device for device in listed_devices if not _is_in_phones(device)]
    # "gpus" looks like a kind, not like a device: say so instead of "unknown device".
    is_misspelled_kind = find_similar_names(word, KINDS) and not device_words.find_devices(word)
    if is_misspelled_kind:
        raise unknown("kind of devices", value, ("all", *KINDS), "--device")
    device_by_name: dict[str, Device] = {}
    for name in parse_devices(value):
        device = catalog.device(name, str(method))
        device_by_name[device.name] = device
    return list(device_by_name.values())


def _is_in_phones(device: Device) -> bool:
    return device.datasheet.details.get("used_in") == "phones"


def _find_currency(all_offers: Sequence[Offer]) -> str | None:
    """Return the currency of offers, None without any; raises `InputError` for several."""
    currencies = sorted({offer.currency for offer in all_offers})
    if len(currencies) > 1:
        raise InputError(f"prices in several currencies: {', '.join(currencies)}")
    return currencies[0] if currencies else None


def _affordable_devices(
    devices: Sequence[Device], device_offers: Mapping[str, Offer], max_price: kinds.Price
) -> list[Device]:
    """Return the devices that an hour of costs at most a price.

    Raises:
        InputError: for a price that is none, and if no device is left.
    """
    limit = parse_price(text_of(max_price), "--max-price")
    price_by_device = {
        device.name: device_offers[device.name].price
        for device in devices
        if device.name in device_offers
    }
    affordable = [device for device in devices if price_by_device.get(device.name, inf) <= limit]
    if affordable:
        return affordable
    reason = "no price of these devices is known (--prices FILE)"
    if price_by_device:
        cheapest_device = min(price_by_device, key=price_by_device.__getitem__)
        price = price_by_device[cheapest_device]
        reason = f"the cheapest of these devices, {cheapest_device}, costs {price:g}"
    raise InputError(f"--max-price {limit:g}: {reason}")


def _write_page(page: Path, step: StepOptions, request: _PageRequest) -> ChoicesPage:
    """Write the page of choices among models, devices, batches, links and numbers of replicas."""
    from steptime.reports.choices import Choices, write_choices

    check_ending(page, (".html",), "ending of a page")
    workload_makers = {
        (name, dtype or ""): partial(replace(step, dtype=dtype).workload, name)
        for name in request.models
        for dtype in _read_dtypes(step.dtype)
    }
    training = request.training
    option_values = {
        "length": step.length,
        "optimizer": step.optimizer,
        "method": step.method,
        "examples": training.examples,
        "epochs": training.epochs,
        "option": setting_texts(step.options),
        **step.words(),
    }
    choices = Choices(
        models=workload_makers,
        devices=request.devices,
        batches=_list_page_batches(request.batch, list(workload_makers.values())),
        links=_list_page_links(request.links, request.devices),
        replicas=parse_counts(request.replicas, "--replicas"),
        training=training,
        offers=request.prices,
        method=step.method,
        options=step.method_options(step.options),
        words=options.words_of(option_values),
    )
    page_axes = write_choices(choices, page)
    axes = {name: tuple(values) for name, values in page_axes.axes.items()}
    return ChoicesPage(
        path=str(page),
        row_count=page_axes.row_count,
        headline=(f"{format_count(page_axes.row_count, 'row')}: {page}",),
        **axes,
    )


def _read_dtypes(text: str | None) -> Sequence[str | None]:
    """Return the data types of a page, only None where none is named."""
    return [None] if text is None else parse_names(text, "--dtype")


def _list_page_batches(text: str | None, workload_makers: Sequence[Maker]) -> list[int]:
    """Return the batches of --batch, by default the usual ones and each network's own."""
    if text is not None:
        return parse_counts(text, "--batch")
    network_batches = {make_workload(None).batch_per_replica for make_workload in workload_makers}
    return sorted(network_batches | set(PAGE_BATCHES))


def _list_page_links(value: Any, devices: Sequence[Device]) -> list[Link]:
    """Return the links of --link, by default those of the devices, if few, and of clusters."""
    from steptime.planning.ranks.site import node_link_name

    links = value
    if links is None:
        node_links = dict.fromkeys(map(node_link_name, devices))
        # Devices with few kinds of links have their own on the page, many kinds two usual ones.
        if len(node_links) <= MAX_NODE_LINKS:
            links = ",".join([*node_links, CLUSTER_LINKS])
        else:
            links = f"{CLUSTER_LINKS},{NODE_LINKS}"
    return [catalog.link(name, "--link") for name in parse_links(links)]
