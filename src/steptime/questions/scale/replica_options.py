"""The options of how replicas are joined, and the maker's node where they say nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from steptime.core.signatures.kinds import text_of
from steptime.core.values import parse_count
from steptime.hardware import catalog
from steptime.prediction.fabric import GROUP, Fabric
from steptime.questions import kinds
from steptime.questions.step_options import ExecutionKeywords, ExecutionOptions

SECONDS_PER_US = 1e-6
Assumed = dict[str, str]


class ReplicaKeywords(ExecutionKeywords, total=False):
    """Keywords of `ReplicaOptions`."""

    per_node: kinds.Count | None
    inside: kinds.Link | None
    links_per_node: kinds.Count | None
    servers: kinds.Count | None


@dataclass(frozen=True)
class ReplicaOptions(ExecutionOptions, keywords=ReplicaKeywords):
    """How replicas are joined, by the fields of `Fabric`, and how their step is executed.

    Args:
        per_node: Devices of a node; 1 if each has a link of its own. Default: as in the maker's
            node, else 8 with --collective hierarchical, --inside or --links-per-node.
        inside: The link between the devices of a node. Default: as in the maker's node, else each
            replica has a link of its own.
        links_per_node: Links from a node to others, which its devices share. Default: one per
            device of the maker's node, else 1.
        servers: Number of parameter servers. Default: 1.
        stack: The software that runs the step (steptime list stacks). `predict` also takes several,
            with commas, and compares them.
        channels_last: Whether images are stored with their channels last (NHWC). Default: as the
            stack does.
        tf32: Whether float32 matrix products and convolutions run as TF32: `on`, `off` or `auto`.
            Default: `auto`, the frameworks' default: only convolutions do.
        host: The CPU that launches kernels. `any-server` or `any-desktop`: an unknown CPU of a
            server or desktop, so the interval is wider. `server` or `desktop`: the usual CPU of
            one. `fast` or `slow`: an end of the range of CPUs. `calibrated`, or the name of a
            calibrated device: the CPU that launched the steps of its calibration. Default:
            `calibrated` for a device that was calibrated with steps; else `any-desktop` for gaming
            cards, `any-server` for others.
    """

    per_node: int | float | str | None = None
    inside: Any = None
    links_per_node: int | float | str | None = None
    servers: int | float | str | None = None

    def joining_options(self) -> dict[str, object]:
        """Return the options that say how replicas are joined, by their names."""
        return {
            "--per-node": self.per_node,
            "--inside": self.inside,
            "--links-per-node": self.links_per_node,
            "--servers": self.servers,
        }

    def fill_node(self, link: Any, site: Mapping[str, Any]) -> "FilledNode":
        """Fill in how the maker's node is joined where no option says it.

        A node of one device, and a device without a maker's node, stay as they are.

        Args:
            link: the value of --link, None without one.
            site: the maker's node (`default_site`); empty where none is assumed.
        """
        is_node_unknown = "inside" not in site
        is_device_a_node = text_of(self.per_node) in (1, "1")
        if is_node_unknown or is_device_a_node:
            return FilledNode(link, self, {})
        per_node = _count_or(self.per_node, "--per-node", site["per_node"])
        defaults = {"inside": site["inside"], "per_node": per_node, "links_per_node": per_node}
        assumed = {
            name: default for name, default in defaults.items() if getattr(self, name) is None
        }
        filled_options = replace(self, **assumed)
        node_link = link
        if link is None and "link" in site:
            node_link = site["link"]
            assumed["link"] = node_link
        assumed_texts = {name: str(value) for name, value in assumed.items()}
        return FilledNode(node_link, filled_options, assumed_texts)

    def fabric(self, link: Any, latency_us: float | None) -> Fabric:
        """Return the fabric that joins the replicas; raises `InputError`.

        Args:
            link: the link of a device.
            latency_us: microseconds of a message over it; None for those of the link.
        """
        between = catalog.link(link, "--link")
        if latency_us is not None:
            between = replace(between, latency_s=latency_us * SECONDS_PER_US)
        inside = None if self.inside is None else catalog.link(self.inside, "--inside")
        return Fabric(
            between=between,
            inside=inside,
            per_node=_count_or(self.per_node, "--per-node", GROUP),
            links_per_node=_count_or(self.links_per_node, "--links-per-node", 1),
            servers=_count_or(self.servers, "--servers", 1),
        )


class FilledNode(NamedTuple):
    """The link and the options of replicas in a node, and what of them was filled in by option."""

    link: Any
    options: ReplicaOptions
    assumed: Assumed


def _count_or(value: object, option: str, default: int) -> int:
    return default if value is None else parse_count(text_of(value), option)
