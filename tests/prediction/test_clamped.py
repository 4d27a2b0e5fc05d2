"""Limits of a clamped activation move bytes beside what experts do without them."""

from steptime.core.dtypes import precision
from steptime.network.ops.builder import Builder
from steptime.network.ops.training import training_graph
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.site import Site, build_cluster
from steptime.planning.request import make_problem
from steptime.prediction import cost_model


def moved(activation: str, stack: str) -> float:
    """Return the bytes of experts in a step of one layer, 64 tokens that take 2 of 4 experts."""
    text = f"transformer:layers=1,width=256,ffn=512,experts=4,length=64,activation={activation}"
    shape = read_language_model(text)
    cluster = build_cluster(Site("h100-sxm5"), 1)
    method = cost_model("calibrated")
    problem = make_problem(shape, cluster, "bfloat16-mixed", method, {"stack": stack})
    b = Builder("one", precision(problem.rank.weight_dtype), training=True)
    graph = training_graph(b.graph(shape.family.build(b, shape.kind_settings, 1)), "adam")
    kernels = problem.rank.step_model.with_graph(graph, 1).lower_step().kernels
    return sum(one.bytes for one in kernels if one.op.endswith("experts/experts"))


def test_limits_move_what_the_stack_says_of_each_number_of_the_first_product():
    # 128 rows of 1,024 numbers, forward and backward: 9 bytes each under Megatron, 6 in PyTorch
    for stack, size in (("megatron-2025", 9), ("torch-eager", 6)):
        more = moved("clamped_swiglu", stack) - moved("swiglu", stack)
        assert more == 2 * size * 128 * 1024
