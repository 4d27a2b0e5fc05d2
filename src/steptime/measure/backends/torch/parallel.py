"""PyTorch over several replicas: one process each, joined by gloo (CPUs) or NCCL (GPUs).

Every process has the same weights and other data. How they stay together is a row of `STRATEGIES`.
Statistics of batch norm are each replica's own. NCCL is used as PyTorch's documentation says
(torch.distributed, "Which backend to use?"): one process a GPU.
"""

import json
import os
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn

from steptime.core.exchange import BUCKET_BYTES
from steptime.measure import ranks
from steptime.measure.contract import ProcessGroup
from steptime.measure.infeed import Stopwatch
from steptime.measure.process_group import GroupTimer
from steptime.measure.ranks import Rank

SAMPLE_S = 1e-3  # of all-reduces in a row
MIN_ROUNDS = 3

Call = Callable[[], None]


_GROUPS: dict[Rank, ProcessGroup] = {}  # joining is for the life of a process


def join(rank: Rank, device: torch.device) -> ProcessGroup:
    """Return the process group of all ranks; the first call waits until all are there."""
    if rank not in _GROUPS:
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = _open_store(rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            backend,
            # the prefix keeps apart the keys of a worker that was started again
            store=dist.PrefixStore(  # type: ignore[attr-defined]  # documented all the same
                f"steptime/{rank.attempt}", store
            ),
            rank=rank.rank,
            world_size=rank.size,
            device_id=device if device.type == "cuda" else None,
        )
        control = dist.new_group(backend="gloo")  # for numbers that are exchanged between steps

        def broadcast(number: int) -> int:
            shared = torch.tensor([number], dtype=torch.int64)
            dist.broadcast(shared, 0, group=control)
            return int(shared.item())

        def gather(value: object) -> list[Any]:
            # All-gather needs equal lengths: gather the lengths first, then the padded texts.
            encoded = torch.tensor([*json.dumps(value).encode()], dtype=torch.uint8)
            lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(rank.size)]
            dist.all_gather(lengths, torch.tensor([len(encoded)]), group=control)
            max_length = max(int(length) for length in lengths)
            padded_texts = [torch.zeros(max_length, dtype=torch.uint8) for _ in lengths]
            padded = nn.functional.pad(encoded, (0, max_length - len(encoded)))
            dist.all_gather(padded_texts, padded, group=control)
            return [
                json.loads(bytes(padded_text[: int(length)].tolist()))
                for padded_text, length in zip(padded_texts, lengths, strict=True)
            ]

        _GROUPS[rank] = ProcessGroup(rank.rank, rank.size, backend, broadcast, gather)
    return _GROUPS[rank]


def _open_store(rank: Rank) -> Any:
    """Return the store at which the processes meet; on one node nobody else can reach it."""
    is_served_by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_server = rank.is_rank_zero and not is_served_by_torchrun
    listening_fd = None  # torch opens a socket that listens on all interfaces
    if rank.address == ranks.LOOPBACK:  # one node: no other machine may connect
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        if is_server:
            listening_fd = socket.create_server((rank.address, rank.port)).detach()
    return dist.TCPStore(  # type: ignore[attr-defined]  # documented all the same
        rank.address, rank.port, rank.size, is_master=is_server, master_listen_fd=listening_fd
    )


@dataclass(frozen=True)
class Spread:
    """A network whose replicas stay together.

    `network` runs forward, `weights` are what the optimizer updates. `exchange` comes after the
    backward pass, `publish` after the update, which only those run of whom `runs_update` is true.
    `make_step_without_exchange` makes of a step one that exchanges nothing, None where it cannot.
    `is_timed` says that `watch` has seen every exchange.
    """

    network: nn.Module
    weights: Sequence[Tensor]
    exchange: Call = lambda: None
    publish: Call = lambda: None
    runs_update: bool = True
    make_step_without_exchange: Callable[[Call], Call] | None = None
    is_timed: bool = True


def _allreduce(
    module: fx.GraphModule, group: ProcessGroup, watch: Stopwatch, overlap: bool
) -> Spread:
    """DDP, which exchanges buckets during the backward pass; or the same buckets after it."""
    weights = list(module.parameters())
    if overlap:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.6 lacks the successor of DDP
            ddp = nn.parallel.DistributedDataParallel(module, broadcast_buffers=False)
        # `watch` cannot time all-reduces that overlap with the backward pass: steps with and
        # without them are compared. `no_sync()` also works as a decorator of a step.
        return Spread(ddp, weights, make_step_without_exchange=ddp.no_sync(), is_timed=False)
    buckets = _buckets(weights)

    def exchange() -> None:
        for bucket in buckets:
            flat = _flatten_gradients(bucket)
            dist.all_reduce(flat)
            _assign_gradients(flat.div_(group.size), bucket)

    return Spread(module, weights, watch.wrap(exchange))


def _parameter_server(
    module: fx.GraphModule, group: ProcessGroup, watch: Stopwatch, _: bool
) -> Spread:
    """Rank 0 holds the weights and computes, too: it takes gradients, updates, sends weights."""
    weights = list(module.parameters())
    buckets = _buckets(weights)
    worker_ranks = range(1, group.size)
    is_rank_zero = group.is_rank_zero

    def exchange() -> None:
        for bucket in buckets:
            flat = _flatten_gradients(bucket)
            if not is_rank_zero:  # rank 0 has the weights, and updates them for all
                dist.send(flat, 0)
                continue
            received = torch.empty_like(flat)
            for rank in worker_ranks:  # rank 0 adds the gradients of the others to its own
                dist.recv(received, rank)
                flat += received
            _assign_gradients(flat.div_(group.size), bucket)

    @torch.no_grad()
    def publish() -> None:
        for bucket in buckets:
            flat = torch.cat([weight.reshape(-1) for weight in bucket])
            if is_rank_zero:
                for rank in worker_ranks:
                    dist.send(flat, rank)
                continue
            dist.recv(flat, 0)
            for weight, part in zip(bucket, _split_like(flat, bucket), strict=True):
                weight.copy_(part)

    return Spread(
        module, weights, watch.wrap(exchange), watch.wrap(publish), runs_update=is_rank_zero
    )


def _sharded(module: fx.GraphModule, _: ProcessGroup, __: Stopwatch, overlap: bool) -> Spread:
    """FSDP2 in units, each gathered while the one before computes; or the whole network as one.

    A unit is gathered before its forward and again before its backward pass, and its gradients are
    scattered after that. The whole network as one unit is gathered once and nothing overlaps.
    """
    from torch.distributed.fsdp import fully_shard

    weight_names = [name for name, _ in module.named_parameters()]
    if overlap:
        module, units = _split_into_units(module)
        for unit in units:
            fully_shard(unit)
    fully_shard(module)
    # FSDP replaces the parameters. A unit's name may stand before theirs, and their order has
    # changed: find them by the last part of the name, and keep the order before.
    shard_by_name = {}
    for path, shard in module.named_parameters():
        name = path.split(".")[-1]
        shard_by_name[name] = shard
    # FSDP gathers and exchanges within the passes, where `watch` does not see it.
    return Spread(module, [shard_by_name[name] for name in weight_names], is_timed=False)


def _split_into_units(module: fx.GraphModule) -> tuple[fx.GraphModule, list[fx.GraphModule]]:
    """Return the network as a chain of modules, each with weights of 25 MiB or more but the last.

    A weight that several of them use stays with the whole, which FSDP gathers for all of the step.
    """
    from torch.fx.passes.split_module import split_module

    counted_names: set[str] = set()
    unit_of: dict[fx.Node, int] = {}
    # Fill one unit after the other with ops in their order, until its weights make a bucket.
    unit_number = 0
    unit_bytes = 0
    for op in module.graph.nodes:
        if op.op != "call_function":  # an input, a weight or the output
            continue
        if unit_bytes >= BUCKET_BYTES:
            unit_number += 1
            unit_bytes = 0
        unit_of[op] = unit_number
        attributes = {str(node.target) for node in op.all_input_nodes if node.op == "get_attr"}
        new_names = attributes - counted_names  # a weight counts in the first unit that reads it
        counted_names |= new_names
        new_weights = new_names & _weights(module)
        unit_bytes += sum(module.get_parameter(name).nbytes for name in new_weights)
    chain = split_module(module, module, lambda node: unit_of[node])
    units = []
    for call in [node for node in chain.graph.nodes if node.op == "call_module"]:
        unit = cast("fx.GraphModule", chain.get_submodule(str(call.target)))
        _move_weights(chain, call, unit)
        units.append(unit)
    chain.recompile()
    return chain, units


def _weights(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_parameters(recurse=False)}


def _move_weights(network: fx.GraphModule, call: fx.Node, unit: fx.GraphModule) -> None:
    """Move the weights that only `call` of `unit` reads from the network into the unit."""
    placeholders = [node for node in unit.graph.nodes if node.op == "placeholder"]
    arguments = [node for node in call.args if isinstance(node, fx.Node)]
    for placeholder, argument in zip(placeholders, arguments, strict=True):
        name = str(argument.target)
        is_weight = argument.op == "get_attr" and name in _weights(network)
        is_read_by_several_units = len(argument.users) > 1
        if not is_weight or is_read_by_several_units:
            continue  # stays with the network, which passes it to the unit
        unit.register_parameter(name, network.get_parameter(name))
        with unit.graph.inserting_before(placeholder):
            placeholder.replace_all_uses_with(unit.graph.get_attr(name))
        unit.graph.erase_node(placeholder)
        # a node can be erased only after its last use
        call.args = tuple(node for node in call.args if node is not argument)
        network.graph.erase_node(argument)
        delattr(network, name)
    unit.recompile()


STRATEGIES: dict[str, Callable[[fx.GraphModule, ProcessGroup, Stopwatch, bool], Spread]] = {
    "independent": lambda module, *_: Spread(module, list(module.parameters())),
    "allreduce": _allreduce,
    "sharded": _sharded,
    "parameter-server": _parameter_server,
}


def _buckets(weights: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return weights of one type in buckets of 25 MiB, the last first, as gradients get ready."""
    buckets: list[list[Tensor]] = []
    filled_bytes = BUCKET_BYTES  # as if full, so that the first weight opens a bucket
    for weight in reversed(weights):  # the order in which gradients become ready
        if filled_bytes >= BUCKET_BYTES or buckets[-1][0].dtype != weight.dtype:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(weight)
        filled_bytes += weight.nbytes
    return buckets


def _flatten_gradients(bucket: list[Tensor]) -> Tensor:
    """Return the gradients of a bucket as one tensor; a weight that had no part in it has zeros."""
    grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
    return torch.cat([grad.reshape(-1) for grad in grads])


def _split_like(flat: Tensor, bucket: list[Tensor]) -> list[Tensor]:
    parts = flat.split([weight.numel() for weight in bucket])
    return [part.view_as(weight) for part, weight in zip(parts, bucket, strict=True)]


def _assign_gradients(flat: Tensor, bucket: list[Tensor]) -> None:
    """Make the parts of `flat` the gradients of a bucket."""
    for weight, part in zip(bucket, _split_like(flat, bucket), strict=True):
        weight.grad = part


def all_reduce_s(
    device: torch.device, sizes: Sequence[int], sync: Call, budget_s: float
) -> dict[int, list[float]]:
    """Return the seconds of an all-reduce of float32 by its bytes, one a round over all sizes.

    A time is the mean of as many in a row as take a millisecond, and that of the slowest rank. Rank
    0 ends when `budget_s` is spent, after three rounds at the least.
    """
    group = join(ranks.find_rank(), device)
    group_timer = GroupTimer(group, sync)
    tensors = {size: torch.zeros(size // 4, device=device) for size in sizes}  # 4 bytes: float32
    times: dict[int, list[float]] = {size: [] for size in sizes}
    calls_per_sample = dict.fromkeys(sizes, 1)
    start_s = perf_counter()
    rounds = 0
    # Rank 0 decides for all whether there is another round; the first round is the warm-up.
    while group.broadcast(rounds <= MIN_ROUNDS or perf_counter() - start_s < budget_s):
        is_warm_up = rounds == 0
        for size, tensor in tensors.items():
            call_count = calls_per_sample[size]
            call_s = group_timer.time_steps(partial(dist.all_reduce, tensor), call_count)
            call_s /= call_count
            # the group's timer gives all ranks the same time, and so the same number of calls
            calls_per_sample[size] = max(1, round(SAMPLE_S / call_s))
            if not is_warm_up:
                times[size].append(call_s)
        rounds += 1
    return times
