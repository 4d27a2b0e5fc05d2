"""A network and its step in PyTorch: a function with a line an op, its values, and its parts."""

import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.profiler import record_function

from steptime.core.dtypes import Precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.measure import synthetic
from steptime.measure.backends.torch.kinds import RECURRENT, RECURRENT_WEIGHTS, RUNS
from steptime.measure.backends.torch.parallel import Spread
from steptime.measure.contract import Arrays, Feed
from steptime.measure.interpreter import TableCall, interpret, list_calls
from steptime.measure.synthetic import Fill, angles, list_fills

Part = Callable[[], None]  # of a step
Network = Callable[..., Tensor]
OP = "steptime_op"  # in the `meta` of a node: the name of its op


def module_of(
    graph: Graph, values: Mapping[str, Tensor], precision: Precision, compiled: bool = False
) -> fx.GraphModule:
    """Return the module of a forward graph: inputs in the graph's order `->` its first output.

    Weights and buffers are `values`, shared and not copied. The generated function lets go of
    each tensor after its last use, and calls nothing but the ops. A bias joins the product before
    it, as a library's layer has it. Under autocast (`precision.mixed`) casts of inputs and weights
    are left to autocast. Raises `UnsupportedError` for kinds that PyTorch does not run here.
    """
    calls = list_calls(
        graph,
        RUNS,
        "torch",
        takes_bias=True,  # products add the bias that follows them
        # Autocast casts by itself: the output of a cast is a second name of its input.
        is_left_out=lambda op: op.kind == "cast" and precision.mixed,
    )
    root = nn.Module()
    fx_graph = fx.Graph()
    nodes = {name: fx_graph.placeholder(_identifier(name)) for name in graph.inputs}
    for name in (*graph.weights, *graph.buffers):
        # with a number, as two names may become the same identifier
        attribute_name = f"{_identifier(name)}_{len(fx_graph.nodes)}"
        value = values[name]
        if isinstance(value, nn.Parameter):
            root.register_parameter(attribute_name, value)
        else:
            root.register_buffer(attribute_name, value)
        nodes[name] = fx_graph.get_attr(attribute_name)

    def create_call(call: TableCall, inputs: list[fx.Node]) -> fx.Node | tuple[fx.Node, ...]:
        run = call.function
        if compiled and call.kind in RECURRENT:  # the compiler would unroll every time step
            run = torch.compiler.disable(run)
        result = fx_graph.create_node(
            "call_function", run, tuple(inputs), dict(call.attrs), _identifier(call.name)
        )
        result.meta[OP] = call.op_name
        if len(call.outputs) == 1:
            return result
        indices = range(len(call.outputs))
        return tuple([fx_graph.call_function(operator.getitem, (result, i)) for i in indices])

    interpret(calls, nodes, create_call)
    fx_graph.output(nodes[graph.outputs[0]])
    return fx.GraphModule(root, fx_graph, _identifier(graph.name))


def annotate(module: fx.GraphModule) -> None:
    """Let each call of a generated module say to the profiler whose it is; it is slower then."""
    for node in module.graph.nodes:
        if OP in node.meta:
            node.target = _annotate(node.target, node.meta[OP])
    module.recompile()


def _annotate(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(run)
    def annotated(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return run(*args, **kwargs)

    annotated.__module__ = __name__  # torch.fx writes a module's code with names
    return annotated


def _identifier(name: str) -> str:
    text = re.sub(r"\W", "_", name)
    return text if text[:1].isalpha() else f"_{text}"


def initial_values(graph: Graph, device: torch.device, seed: int) -> dict[str, Tensor]:
    """Return values for every input, weight and buffer of `graph`; weights are parameters.

    They are drawn on the device in the type of the tensor, each from the same generator.
    """
    generator = torch.Generator(device).manual_seed(seed)
    weights = set(graph.weights)
    values: dict[str, Tensor] = {}
    for name, fill in list_fills(graph).items():
        spec = graph.tensors[name]
        dtype: torch.dtype = getattr(torch, spec.dtype)
        tensor = torch.empty(spec.shape, dtype=dtype, device=device)
        _DRAWS[fill.kind](tensor, fill, generator)
        values[name] = nn.Parameter(tensor) if name in weights else tensor
    return values


_DRAWS: dict[str, Callable[[Tensor, Fill, torch.Generator], object]] = {
    "normal": lambda tensor, fill, generator: tensor.normal_(0.0, fill.amount, generator=generator),
    "constant": lambda tensor, fill, _: tensor.fill_(fill.amount),
    "ids": lambda tensor, fill, generator: tensor.random_(0, int(fill.amount), generator=generator),
    "angles": lambda tensor, *_: tensor.copy_(torch.from_numpy(angles(tensor.shape))),
}


def join_recurrent_weights(graph: Graph, values: Mapping[str, Tensor]) -> None:
    """Put each recurrent layer's weights into one block, as cuDNN wants them and nn.LSTM does."""
    # cuDNN runs a layer faster if its weights lie in one block, which `nn.LSTM` and others make.
    for op in graph.ops:
        _, *weight_names = op.inputs  # the sequence, then w_ih, w_hh, b_ih, b_hh and a projection
        is_recurrent = op.kind in RECURRENT
        # Weights that ops compute have no tensor here that could be moved into the block.
        if not is_recurrent or any(name not in values for name in weight_names):
            continue
        weights = [values[name] for name in weight_names]
        w_ih, w_hh, _, _, *projection = weights
        input_width = w_ih.shape[1]
        output_width = w_hh.shape[1]  # `w_hh` reads the output of the step before
        if projection:  # of an LSTM, from the hidden state to a narrower output
            hidden_width = projection[0].shape[1]
            projection_size = {"proj_size": output_width}
        else:
            hidden_width = output_width
            projection_size = {}
        layer = RECURRENT[op.kind](
            input_width,
            hidden_width,
            batch_first=True,
            device="meta",
            dtype=w_ih.dtype,
            **projection_size,
        )
        # The layer takes parameters alone: a bias that the network's file lacks is a buffer.
        parameters = [
            weight
            if isinstance(weight, nn.Parameter)
            else nn.Parameter(weight, requires_grad=False)
            for weight in weights
        ]
        for name, parameter in zip(RECURRENT_WEIGHTS, parameters, strict=False):
            setattr(layer, name, parameter)
        layer.flatten_parameters()  # moves them into one block of memory
        for weight, parameter in zip(weights, parameters, strict=True):
            weight.data = parameter.data


def values_of(
    graph: Graph, device: torch.device, seed: int, rank: int, with_weights: bool
) -> dict[str, Tensor]:
    """Return values on the device by name; replicas share weights, not inputs or draws."""
    torch.manual_seed(seed + rank)  # for the masks of dropout
    inputs_alone = replace(graph, weights=(), buffers=())
    values = initial_values(graph if with_weights else inputs_alone, device, seed)
    if rank:  # equal weights on all ranks, inputs of its own
        values |= initial_values(inputs_alone, device, seed + rank)
    if device.type == "cuda" and with_weights:
        join_recurrent_weights(graph, values)
    return values


def input_copier(
    graph: Graph, values: Mapping[str, Tensor], device: torch.device, feed: Feed | None
) -> Part:
    """Return a function that copies a step's input to the tensors that the step reads.

    Synthetic input lies on the host, in pages that a CUDA device can read by itself; batches of a
    data set are put into such pages first.
    """
    on_gpu = device.type == "cuda"

    def pin_if_gpu(tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if on_gpu else tensor

    synthetic_inputs = {
        name: pin_if_gpu(values[name].to("cpu", copy=True)) for name in graph.inputs if not feed
    }

    def next_inputs() -> dict[str, Tensor]:
        if feed is None:
            return synthetic_inputs
        return {name: pin_if_gpu(torch.from_numpy(array)) for name, array in feed.next().items()}

    def take() -> None:
        for name, tensor in next_inputs().items():
            values[name].copy_(tensor, non_blocking=on_gpu)

    return take


def under_autocast(network: Network, types: Precision, device: torch.device) -> Network:
    """Return a network that runs under autocast, or as it is where all of it has one type."""
    if not types.mixed:
        return network
    dtype = getattr(torch, types.compute)

    def mixed(*inputs: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=dtype):
            return network(*inputs)

    return mixed


def parts_of(
    network: Network,
    inputs: list[Tensor],
    workload: Workload,
    types: Precision,
    device: torch.device,
    spread: Spread,
) -> tuple[dict[str, Part], Callable[[], float] | None]:
    """Return forward, backward and update by name, and what gives the last loss; or forward alone.

    Gradients are dropped after they have been used, and the loss keeps none of what it is from.
    """

    @torch.inference_mode()
    def infer() -> None:
        network(*inputs)

    if workload.phase != "train":
        return {"forward": infer}, None
    needs_loss_scaling = workload.dtype == "float16-mixed"
    scaler = torch.amp.GradScaler(device.type, enabled=needs_loss_scaling)
    optimizer = optimizer_of(workload.optimizer, spread.weights, types.weights)
    # lists of one item, which the functions below hand on
    losses: list[Tensor] = []  # from the forward to the backward pass, which frees the graph
    last_loss: list[Tensor] = []  # without its graph

    def forward() -> None:
        losses.append(network(*inputs))

    def backward() -> None:
        loss = losses.pop()
        last_loss[:] = (loss.detach(),)
        scaler.scale(loss).backward()
        spread.exchange()

    def update() -> None:
        if spread.runs_update:  # beside a parameter server only rank 0 does
            scaler.step(optimizer)
            scaler.update()
        spread.publish()
        optimizer.zero_grad(set_to_none=True)

    parts = {"forward": forward, "backward": backward, "update": update}
    return parts, lambda: float(last_loss[0])


def outputs_of(
    graph: Graph, values: Mapping[str, Tensor], types: Precision, device: torch.device
) -> Callable[[Arrays], Any]:
    """Return the function of an inference graph over the weights in `values`, eager."""
    network = under_autocast(module_of(graph, values, types), types, device)
    dtypes = {name: getattr(torch, graph.tensors[name].dtype) for name in graph.inputs}

    @torch.inference_mode()
    def outputs(inputs: Arrays) -> Any:
        tensors = [
            torch.from_numpy(inputs[name]).to(device, dtype, copy=True)
            for name, dtype in dtypes.items()
        ]
        return network(*tensors).float().cpu().numpy()

    return outputs


def optimizer_of(name: str, weights: Iterable[Tensor], dtype: str) -> torch.optim.Optimizer:
    """Return torch's optimizer of that name over `weights` of type `dtype`."""
    if name not in _OPTIMIZERS:
        raise InputError(f"optimizer {name}: torch has none like it; nearest: adamw")
    optimizer_class, settings = _OPTIMIZERS[name]
    if optimizer_class is not torch.optim.SGD:  # SGD divides by nothing and takes no epsilon
        settings = {**settings, "eps": synthetic.optimizer_epsilon(dtype)}
    return optimizer_class(weights, lr=synthetic.LEARNING_RATE, **settings)


_OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Mapping[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": synthetic.MOMENTUM}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": synthetic.RMSPROP_DECAY}),
    "adam": (torch.optim.Adam, {"betas": synthetic.ADAM_DECAYS}),
    "adamw": (torch.optim.AdamW, {"betas": synthetic.ADAM_DECAYS}),
}
