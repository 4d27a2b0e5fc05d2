"""The settings of a plan that were not given and decide its answer, by their options."""

from steptime.planning.planner import Planner
from steptime.planning.request import Request
from steptime.prediction.assumed import assumed_of

SOFTWARE_SETTINGS = ("channels_last", "tf32", "host")
"""The settings of the software that decide a step on one device, beside the stack."""


def assumed_settings(request: Request, planner: Planner) -> dict[str, str]:
    """Return the assumed settings of a plan, each as its option takes it.

    The same question with an option set to the value that stands here has the same step, memory
    and cost: the software, the data type, the optimizer, and how devices are joined. Where the
    stack is named, the other stacks that could be meant are no longer part of the answer.
    """
    assumed: dict[str, str] = {}
    if request.named is None and "stack" not in request.options:
        assumed["stack"] = planner.method.settings.stack
    if request.dtype is None:
        assumed["dtype"] = planner.dtype
    if request.optimizer is None:
        assumed["optimizer"] = planner.optimizer
    step_assumed = assumed_of(planner.step.of(planner.graph_of_kinds(), 1))
    assumed |= {
        name: step_assumed[name]
        for name in SOFTWARE_SETTINGS
        if name in step_assumed and name not in request.options
    }
    site, device_count = request.site, planner.cluster.device_count
    if min(site.per_node, device_count) > 1 and "inside" not in request.node_options:
        assumed["inside"] = planner.cluster.ladder[0].link.name
    if device_count > 1 and "per_node" not in request.node_options:
        assumed["per_node"] = str(site.per_node)
    is_link_assumed = not site.levels and "link" not in request.node_options
    if device_count > site.per_node and is_link_assumed and site.link is not None:
        assumed["link"] = site.link
    if device_count > site.per_node and site.links_per_node is None:
        assumed["links_per_node"] = str(site.per_node)
    return assumed
