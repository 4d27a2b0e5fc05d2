"""Links of a launched job, which no launch command says."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from steptime.core.values import parse_devices
from steptime.hardware import catalog
from steptime.planning.ranks.site import DEFAULT_PER_NODE, default_site
from steptime.prediction.steps.states import host_link
from steptime.questions.launched.question_settings import QuestionSettings

NODE_LINK = "ethernet-100"  # between nodes of devices that no maker joins
DEGREE_OPTIONS_BY_QUESTION = {
    "plan": ("tensor", "pipeline", "context", "data"),
    "serve": ("tensor", "pipeline", "data", "replicas"),
}


def assume_links(
    question: str, device: Any, settings: QuestionSettings, user_options: Mapping[str, Any]
) -> None:
    """Set the links that neither the job nor the user names, and say so.

    They are those of the maker's nodes (`data/sites.toml`); of other devices PCIe through the host
    inside a node and Ethernet of 100 Gbit/s between nodes.

    Args:
        question: `plan` or `serve`; `fit` is of one device.
        device: the device that the user names; of several the first.
        settings: options of the job; links are added.
        user_options: options that the user gives.
    """
    if question not in DEGREE_OPTIONS_BY_QUESTION:
        return
    options = {**settings.options, **user_options}
    first_device, *_ = parse_devices(device)
    links = _usual_links(question, first_device, options)
    assumed_links = {name: link for name, link in links.items() if name not in user_options}
    settings.options.update(assumed_links)
    if assumed_links:
        texts = [f"--{name.replace('_', '-')} {link}" for name, link in assumed_links.items()]
        settings.notes.append(f"links are assumed: {', '.join(texts)}")


def _usual_links(question: str, device: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the usual links of a job, by option: only the links that the job needs."""
    site = default_site(device)
    link_to_host = site.get("host_link") or host_link(catalog.device(device))
    degrees = [options.get(name) or 1 for name in DEGREE_OPTIONS_BY_QUESTION[question]]
    device_count = prod(int(degree) for degree in degrees)
    devices_per_node = int(options.get("per_node") or site.get("per_node", DEFAULT_PER_NODE))
    links = {}
    if device_count > 1:
        links["inside"] = site.get("inside") or _link_through_host(link_to_host)
    if device_count > devices_per_node:
        links["link"] = site.get("link", NODE_LINK)
    if question == "plan" and options.get("offload"):
        links["host_link"] = link_to_host
    return links


def _link_through_host(link_to_host: str) -> str:
    """Return the link by which devices of a node reach each other through their host.

    The catalogue has such links under the name of the link to the host with "-host".
    """
    link_name = f"{link_to_host}-host"
    return link_name if link_name in catalog.link_names() else link_to_host
