"""The graph of one rank: a training step spread over fully sharded replicas, exchanges as ops.

With ZeRO's third stage (Rajbhandari and others 2020) each of n replicas keeps 1/n of the weights,
gradients and optimizer's states: weights are gathered before they are used, sums of gradients
scattered, and each updates its own shard.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil

from steptime.core.errors import InputError
from steptime.core.exchange import BUCKET_BYTES
from steptime.core.graph import Attr, Graph, Op, Part, TensorSpec
from steptime.network.ops import output_names, outputs_of


def rank_graph(graph: Graph, ranks: int, bucket_bytes: float = BUCKET_BYTES) -> Graph:
    """Return the graph of one of `ranks` of a training step `graph`, whose batch is one replica's.

    What is exchanged at once are buckets of at least `bucket_bytes` of gradients, in the order of
    the backward pass, or of weights, in the order of the forward pass; the weights of a bucket are
    gathered while the one before is used, and again for the backward pass where there are several.
    Without a limit (`inf`) there is one bucket. A weight is sharded along its first axis; raises
    `InputError` for one without an axis.
    """
    rank = _Rank(graph, ranks)
    buckets = rank.buckets(bucket_bytes)
    rank.gather_before_use(buckets)
    # gradients are made from the last bucket back
    for number, bucket in enumerate(reversed(buckets)):
        rank.scatter_gradients(bucket, number)
    return rank.graph()


class _Rank:
    """The graph while exchanges are put between its ops, by the op that they stand before."""

    def __init__(self, graph: Graph, ranks: int) -> None:
        self.ranks = ranks
        self.step_graph = graph
        # The graph of the rank, which the other methods change.
        self.tensors = dict(graph.tensors)
        self.ops = list(graph.ops)
        self.exchanges_by_next_op: dict[int, list[Op]] = {}  # by the index of the op behind
        self.shard_by_weight: dict[str, str] = {}  # name of a shard by that of its weight
        # Where the step has its ops; exchanges do not move these indices.
        self.update_by_weight = {op.inputs[0]: op for op in graph.ops if op.part == "update"}
        self.index_by_op: dict[str, int] = {}
        self.maker_index_by_tensor: dict[str, int] = {}
        self.last_backward_index_by_op: dict[str, int] = {}  # by the name of the forward op
        self.reader_indices_by_weight: dict[str, list[int]] = {}  # by trained weight
        for op_index, op in enumerate(graph.ops):
            self.index_by_op[op.name] = op_index
            self.maker_index_by_tensor |= dict.fromkeys(op.outputs, op_index)
            if op.part == "backward":
                self.last_backward_index_by_op[op.forward_op] = op_index
            for name in op.inputs:
                if name in self.update_by_weight:
                    self.reader_indices_by_weight.setdefault(name, []).append(op_index)

    def buckets(self, bucket_bytes: float) -> list[list[str]]:
        """Return the trained weights in order of use, in buckets filled from the last row on."""
        weights_by_op: dict[str, list[str]] = {}
        for weight, update in self.update_by_weight.items():
            weights_by_op.setdefault(update.forward_op, []).append(weight)
        # gradients are made from the last op back: buckets are filled in that order
        forward_ops = sorted(weights_by_op, key=lambda op: self.index_by_op[op])
        buckets: list[list[str]] = [[]]  # the first one is of the network's last ops
        filled_bytes = 0.0
        for op in reversed(forward_ops):
            if filled_bytes >= bucket_bytes:
                buckets.append([])
                filled_bytes = 0.0
            weights = weights_by_op[op]
            buckets[-1] = weights + buckets[-1]  # within a bucket in the order of the network
            filled_bytes += sum(self.tensors[weight].size_bytes for weight in weights)
        buckets.reverse()
        return buckets

    def scatter_gradients(self, bucket: Sequence[str], number: int) -> None:
        """Scatter the sums of a bucket's gradients when its last row has them; update shards."""
        updates = [self.update_by_weight[weight] for weight in bucket]
        # the last input of an update is the gradient
        grads = [update.inputs[-1] for update in updates]
        forward_ops = {update.forward_op for update in updates}
        backward_indices = [
            self.last_backward_index_by_op[op]
            for op in forward_ops
            if op in self.last_backward_index_by_op
        ]
        grad_maker_indices = [self.maker_index_by_tensor[grad] for grad in grads]
        # behind all that makes the gradients
        op_index = 1 + max([*backward_indices, *grad_maker_indices])
        first_op = updates[0].forward_op  # the costs of the bucket count for its first weight
        kind = "reduce_scatter"
        name = f"gradients{number}/{kind}"
        sums = self.insert_exchange(op_index, name, kind, grads, {}, "backward", first_op)
        for weight, total in zip(bucket, sums, strict=True):
            self.update(weight, total)

    def update(self, weight: str, grad: str) -> None:
        """Let the update of a weight's shard read the sum of its gradients."""
        op = self.update_by_weight[weight]
        shard = self.shard(weight)
        _weight, *states, _gradient = op.inputs
        inputs = (shard, *states, grad)
        shard_shape = self.tensors[shard].shape
        for state in states:  # sharded as the weight, in the state's own type
            self.tensors[state] = TensorSpec(shard_shape, self.tensors[state].dtype)
        specs = outputs_of(op.kind, tuple(self.tensors[name] for name in inputs), op.settings)
        self.tensors.update(zip(op.outputs, specs, strict=True))
        self.ops[self.index_by_op[op.name]] = replace(op, inputs=inputs)

    def shard(self, weight: str) -> str:
        """Return the name of the part of a weight that this rank keeps."""
        if weight not in self.shard_by_weight:
            spec = self.step_graph.tensors[weight]
            if not spec.shape:
                raise InputError(f"{self.step_graph.name}: weight '{weight}' has no axis to shard")
            first_size, *further_sizes = spec.shape
            shard_shape = (ceil(first_size / self.ranks), *further_sizes)
            self.shard_by_weight[weight] = f"{weight}/shard"
            self.tensors[self.shard_by_weight[weight]] = TensorSpec(shard_shape, spec.dtype)
        return self.shard_by_weight[weight]

    def lengths(self, bucket: Iterable[str]) -> Mapping[str, Attr]:
        return {"lengths": tuple(self.step_graph.tensors[weight].shape[0] for weight in bucket)}

    def gather_before_use(self, buckets: Sequence[Sequence[str]]) -> None:
        """Gather each bucket of weights while the one before is used, in both passes."""
        stays_gathered = len(buckets) == 1  # for both passes; of several one is freed for the next
        passes: tuple[Part, ...] = ("forward",) if stays_gathered else ("forward", "backward")
        for part in passes:
            first_reads = self._first_reads(buckets, part)
            first_read_indices = [op_index for op_index, _number in first_reads]
            # prefetch: a bucket is gathered before the first op that reads the bucket before it
            gather_indices = [first_read_indices[0], *first_read_indices[:-1]]
            for op_index, (_, number) in zip(gather_indices, first_reads, strict=True):
                self.gather(buckets[number], number, part, op_index, stays_gathered)

    def _first_reads(self, buckets: Sequence[Sequence[str]], part: Part) -> list[tuple[int, int]]:
        """Return the index of the first op of a pass that reads each bucket, and its number."""
        first_reads = []
        for number, bucket in enumerate(buckets):
            reader_indices = [
                op_index
                for weight in bucket
                for op_index in self.reader_indices_by_weight[weight]
                if self.step_graph.ops[op_index].part == part
            ]
            if reader_indices:
                first_reads.append((min(reader_indices), number))
        return sorted(first_reads)

    def gather(
        self,
        bucket: Sequence[str],
        number: int,
        part: Part,
        op_index: int,
        serves_both_passes: bool,
    ) -> None:
        """Gather a bucket of weights before the op at an index; ops of the pass read the result."""
        shard_names = [self.shard(weight) for weight in bucket]
        name = f"weights{number}/{part}"
        # the costs of the bucket count for its first weight
        first_op = self.update_by_weight[bucket[0]].forward_op
        lengths = self.lengths(bucket)
        gathered = self.insert_exchange(
            op_index, name, "all_gather", shard_names, lengths, part, first_op
        )
        full_weights = dict(zip(bucket, gathered, strict=True))
        reader_indices: set[int] = set()
        for weight in bucket:
            reader_indices.update(self.reader_indices_by_weight[weight])
        # the ops of the pass read the gathered weights in place of the rank's shards
        for reader_index in reader_indices:
            op = self.ops[reader_index]
            is_in_pass = op.part == part or (serves_both_passes and op.part != "update")
            if is_in_pass:
                inputs = tuple(full_weights.get(tensor, tensor) for tensor in op.inputs)
                self.ops[reader_index] = replace(op, inputs=inputs)

    def insert_exchange(
        self,
        op_index: int,
        name: str,
        kind: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Attr],
        part: Part,
        forward_op: str,
    ) -> tuple[str, ...]:
        """Put an exchange before the op at an index, and return the names of its outputs."""
        exchange_attrs = {"ranks": self.ranks, "stride": 1, **attrs}
        # ops of the forward pass belong to no other op
        exchange_forward_op = "" if part == "forward" else forward_op
        op = Op(name, kind, tuple(inputs), (), exchange_attrs, part, exchange_forward_op)
        specs = outputs_of(kind, tuple(self.tensors[name] for name in inputs), op.settings)
        outputs = output_names(name, len(specs))
        self.tensors.update(zip(outputs, specs, strict=True))
        self.exchanges_by_next_op.setdefault(op_index, []).append(replace(op, outputs=outputs))
        return outputs

    def graph(self) -> Graph:
        """Return the graph of the rank."""
        weights = tuple(
            self.shard_by_weight.get(weight, weight) for weight in self.step_graph.weights
        )
        ops: list[Op] = []
        for op_index, op in enumerate(self.ops):
            ops += [*self.exchanges_by_next_op.get(op_index, ()), op]
        ops += self.exchanges_by_next_op.get(len(self.ops), ())  # behind the last op
        return replace(self.step_graph, tensors=self.tensors, ops=tuple(ops), weights=weights)
