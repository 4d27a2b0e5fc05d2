"""The ops of a training step while the gradients of a network are appended to them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from steptime.core.graph import Attr, Graph, Op, Part, TensorSpec, freeze_attrs
from steptime.network.ops import OPS, output_names, outputs_of, saved_of
from steptime.network.ops.table import Backward

Names = tuple[str, ...]
SAVED_INPUT = "/kept"  # end of the name of a product's first input that software keeps
CONCAT_SOURCE = "/source"  # end of the name of a tensor that was joined with a frozen one
FORMER = "/former"  # end of the name of a tensor that lives on from the previous microbatch
LOSS_KIND = "cross_entropy"


class GradientTape:
    """A training step to which gradients are appended.

    Attributes:
        tensors: the shape and type of all tensors.
        ops: the ops until now.
        grads: the gradient of each tensor that has one.
        habits: tensors that the software keeps though no gradient needs them: `keeps`, `sources`,
            `former` (`training_graph`).
        frozen: parameters that are not trained.
        wide_casts: casts that make a frozen weight wide, by the name of their result.
    """

    def __init__(self, graph: Graph, habits: Collection[str]) -> None:
        self.tensors = dict(graph.tensors)
        self.ops: list[Op] = []
        self.grads: dict[str, str] = {}  # the gradient of a tensor, by the tensor's name
        self.habits = habits  # tensors that software keeps alive though no gradient reads them
        self.frozen = set(graph.frozen)
        # Frozen weights in few bits are cast to a wide type: the casts, by their result's name.
        self.wide_casts: dict[str, tuple[Op, ...]] = {}
        self._sum_counts: dict[str, int] = {}  # sums of parts of the gradient of a tensor
        for op in graph.ops:
            if op.kind != "cast":
                continue
            source = op.inputs[0]
            # the whole chain of casts from the frozen weight, the first one first
            if source in self.frozen or source in self.wide_casts:
                self.wide_casts[op.outputs[0]] = (*self.wide_casts.get(source, ()), op)

    def append(
        self,
        name: str,
        kind: str,
        inputs: Names,
        attrs: Mapping[str, Attr],
        part: Part,
        forward_op: str,
    ) -> Names:
        """Append an op for the forward op `forward_op`, and return the names of its outputs."""
        specs = outputs_of(
            kind, tuple([self.tensors[name] for name in inputs]), freeze_attrs(attrs)
        )
        outputs = output_names(name, len(specs))
        self.tensors.update(zip(outputs, specs, strict=True))
        self.ops.append(Op(name, kind, inputs, outputs, attrs, part, forward_op))
        return outputs

    def append_saving(self, op: Op) -> Names:
        """Append a forward op that saves tensors for its gradient; return their names."""
        specs = saved_of(op.kind, tuple([self.tensors[name] for name in op.inputs]), op.settings)
        names = tuple([f"{op.name}/saved{i}" for i in range(len(specs))])
        self.tensors.update(zip(names, specs, strict=True))
        if names:  # not `dataclasses.replace`, which takes ten times as long
            op = Op(
                op.name, op.kind, op.inputs, (*op.outputs, *names), op.attrs, op.part, op.forward_op
            )
        self.ops.append(op)
        return names

    def add_grad(self, tensor: str, grad: str, forward_op: str) -> None:
        """Note a part of the gradient of a tensor; an op adds two parts.

        Parts of a table's rows (`sparse` embeddings) are joined, not added.
        """
        if tensor in self.grads:
            name = self._name_sum(tensor)
            summands = (self.grads[tensor], grad)
            shape = self.tensors[tensor].shape
            # the gradient of an embedding may have only the rows that were looked up
            is_sparse = any(self.tensors[summand].shape != shape for summand in summands)
            if is_sparse:
                kind = "concat"
                attrs: dict[str, Attr] = {"axis": 0}
            else:
                kind = "add"
                attrs = {}
            (grad,) = self.append(name, kind, summands, attrs, "backward", forward_op)
        self.grads[tensor] = grad

    def _name_sum(self, tensor: str) -> str:
        """Return the name of the next sum of parts of a gradient: `w/grad_sum`, `w/grad_sum_2`."""
        stem = f"{tensor}/grad_sum"
        name = stem
        while name in self.tensors:
            self._sum_counts[tensor] = self._sum_counts.get(tensor, 1) + 1
            name = f"{stem}_{self._sum_counts[tensor]}"
        return name

    def differentiate(
        self, op: Op, grads: Names, saved: Names, differentiated: Collection[str]
    ) -> None:
        """Append the ops that make the gradients of the inputs of a forward op.

        Args:
            op: the forward op.
            grads: the gradients of its outputs, "" for an output without one.
            saved: tensors that it saved.
            differentiated: all tensors whose gradient the step computes.

        Raises:
            ValueError: if the kind of the op has no gradient.
        """
        rule = OPS[op.kind].gradient
        if rule is None:
            raise ValueError(f"op '{op.name}' of kind '{op.kind}' has no gradient")
        op = self._reread_weights(op)

        def append_backward(kind: str, inputs: Names, suffix: str, **attrs: Attr) -> Names:
            return self.append(f"{op.name}/{suffix}", kind, inputs, attrs, "backward", op.name)

        needs_grads = tuple(name in differentiated for name in op.inputs)
        specs = tuple(self.tensors[name] for name in op.inputs)
        out = self.tensors[op.outputs[0]]
        input_grads = rule(Backward(op, specs, out, grads, needs_grads, saved, append_backward))
        for i, (name, input_grad) in enumerate(zip(op.inputs, input_grads, strict=True)):
            if input_grad is None or not needs_grads[i]:
                continue
            grad = input_grad
            dtype = specs[i].dtype
            # Where an op adds two types, the gradient has the wider one.
            if self.tensors[grad].dtype != dtype:
                (grad,) = append_backward("cast", (grad,), f"grad_cast{i or ''}", dtype=dtype)
            self.add_grad(name, grad, op.name)

    def _reread_weights(self, op: Op) -> Op:
        """Return an op as its gradient reads it: weights of few bits are made wide once more.

        Appends these casts, and a view of the op's first input where the software keeps it alive
        until then.
        """
        # the casts from few bits of a product's weight, its second input
        casts = self.wide_casts.get(op.inputs[1]) if len(op.inputs) > 1 else None
        has_weight_in_few_bits = casts is not None
        # a concat that puts a trained tensor before a frozen one
        joins_frozen = op.kind == "concat" and op.inputs[-1] in self.frozen
        # Some software keeps tensors alive that no gradient reads.
        if has_weight_in_few_bits and "keeps" in self.habits:
            self._append_view(op, SAVED_INPUT)
        elif joins_frozen and "sources" in self.habits:
            self._append_view(op, SAVED_INPUT if has_weight_in_few_bits else CONCAT_SOURCE)
        if casts is None:
            return op
        # repeat the casts in the backward pass, as the wide weight was dropped
        weight = casts[0].inputs
        for cast in casts:
            name = f"{cast.name}_again"
            weight = self.append(name, "cast", weight, cast.attrs, "backward", op.name)
        x, _wide_weight, *further_inputs = op.inputs
        return replace(op, inputs=(x, *weight, *further_inputs))

    def _append_view(self, op: Op, suffix: str) -> None:
        """Append a view of the first input of an op, which keeps it alive until here."""
        x = op.inputs[0]
        shape: dict[str, Attr] = {"shape": self.tensors[x].shape}
        self.append(f"{op.name}{suffix}", "reshape", (x,), shape, "backward", op.name)

    def add_seed(self, loss: str) -> str:
        """Add the gradient of the loss, with which the backward pass begins; return its name."""
        seed = f"{loss}/grad"
        self.tensors[seed] = TensorSpec((), self.tensors[loss].dtype)
        self.grads[loss] = seed
        return seed

    def add_former_tensors(self) -> Iterator[str]:
        """Add and yield the tensors of the previous microbatch that the loop still references.

        These are the logits, since the loop names the loss, and inputs that products keep by
        themselves.
        """
        # the loop still names the previous loss, which holds its logits and the kept inputs
        referenced_tensors = [
            op.inputs[0] for op in self.ops if op.name.endswith(SAVED_INPUT) or op.kind == LOSS_KIND
        ]
        for name in dict.fromkeys(referenced_tensors):
            former_name = f"{name}{FORMER}"
            self.tensors[former_name] = self.tensors[name]
            yield former_name
