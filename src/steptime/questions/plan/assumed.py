"""The settings of a plan that were not given and decide its answer, by their options."""

from steptime.planning.problem import PlanProblem
from steptime.planning.request import Request
from steptime.prediction.assumed import assumed_of

SOFTWARE_SETTINGS = ("channels_last", "tf32", "host")
"""The settings of the software that decide a step on one device, beside the stack."""


def assumed_settings(request: Request, problem: PlanProblem) -> dict[str, str]:
    """Return the assumed settings of a plan, each as its option takes it.

    The same question with an option set to the value that stands here has the same step, memory
    and cost: the software, the data type, the optimizer, and how devices are joined. Where the
    stack is named, the other stacks that could be meant are no longer part of the answer. The
    format of weights is that which the network's file states.
    """
    rank = problem.rank
    assumed: dict[str, str] = {}
    if request.explicit_stack is None and "stack" not in request.options:
        assumed["stack"] = rank.method.settings.stack
    if request.dtype is None:
        assumed["dtype"] = rank.dtype
    if request.optimizer is None:
        assumed["optimizer"] = rank.optimizer
    # One example through one layer of each kind, on one device, assumes the same software settings
    # as the whole plan, and is quick to build.
    single_device = assumed_of(rank.step_model.with_graph(rank.graph_of_kinds(), 1))
    assumed |= {
        name: single_device[name]
        for name in SOFTWARE_SETTINGS
        if name in single_device and name not in request.options
    }
    assumed |= _stated_weights(request, problem)
    return assumed | _assumed_links(request, problem)


def _assumed_links(request: Request, problem: PlanProblem) -> dict[str, str]:
    """Return the links and the sizes of nodes that no option says."""
    assumed: dict[str, str] = {}
    site = request.site
    device_count = problem.cluster.device_count
    has_several_nodes = device_count > site.per_node
    has_shared_nodes = min(site.per_node, device_count) > 1
    if has_shared_nodes and "inside" not in request.node_options:
        # The ladder of links begins inside a node.
        assumed["inside"] = problem.cluster.ladder[0].link.name
    if device_count > 1 and "per_node" not in request.node_options:
        assumed["per_node"] = str(site.per_node)
    # Levels (`--level`) name their links themselves.
    is_link_assumed = not site.levels and "link" not in request.node_options
    if has_several_nodes and is_link_assumed and site.link is not None:
        assumed["link"] = site.link
    if has_several_nodes and site.links_per_node is None:
        assumed["links_per_node"] = str(site.per_node)
    return assumed


def _stated_weights(request: Request, problem: PlanProblem) -> dict[str, str]:
    """Return the format of weights that the network's file states, {} where it states none."""
    weights = problem.rank.tuning.weights
    return {} if weights == request.tuning.weights else {"weights": weights}
