"""Ops of PyTorch in standard sizes: `steptime calibrate` times them on a CPU.

They show what no ceiling shows: by how much an op of some kind and size gains from a second thread,
from other instructions, or from another type of numbers. The sizes grow about fourfold, from those
that one thread works on alone to those that no cache holds.
"""

from typing import NamedTuple

from steptime.core.graph import Part
from steptime.records.traces.trace_events import TracedInput
from steptime.records.traces.traced_ops import ATEN, OpKey

FLOAT_NAMES = {"float32": "float", "bfloat16": "c10::BFloat16"}  # as the profiler writes them
INDEX_NAME = "long int"
LABEL_TENSORS = 3  # of an op, whose sizes its label has
UPDATES = ("add_",)  # ops that optimizers alone call
Shape = tuple[int, ...]


class Tensor(NamedTuple):
    """A tensor that an op reads.

    Attributes:
        shape: its sizes.
        is_transposed: whether its last two axes are swapped in memory.
        index_limit: it holds indices below this number; 0 for numbers of a floating type.
        value: the value of all numbers of a floating type.
    """

    shape: Shape
    is_transposed: bool = False
    index_limit: int = 0
    value: float = 0.5


class Result(NamedTuple):
    """A result of a forward op, which its backward op reads.

    Attributes:
        op: the forward op.
        position: the position of the result.
        shape: its sizes, () where no prediction depends on them.
    """

    op: "StandardOp"
    position: int
    shape: Shape = ()


class Tensors(NamedTuple):
    """A list of tensors that an op reads."""

    items: tuple[Tensor, ...]


Argument = Tensor | Tensors | Result | float | bool | None | list[int] | list[bool]


class StandardOp(NamedTuple):
    """An op in a standard size.

    Attributes:
        overload: its name in `torch.ops.aten`: `add.Tensor`.
        arguments: its arguments.
    """

    overload: str
    arguments: tuple[Argument, ...]

    @property
    def name(self) -> str:
        """Its name without the overload: `add`."""
        return self.overload.partition(".")[0]

    @property
    def label(self) -> str:
        """Its name and the sizes of its first tensors, `t` if transposed: `mm 64x8t 8x32`."""
        tensors = [item for item in self.make_key("float32").inputs if item.shape]
        texts = [
            "x".join(map(str, item.shape)) + "t" * item.is_transposed
            for item in tensors[:LABEL_TENSORS]
        ]
        return " ".join([self.name, *texts])

    def make_key(self, dtype: str) -> OpKey:
        """Return the op as a trace has it, for a floating type."""
        pass_: Part = "forward"
        if "backward" in self.name:
            pass_ = "backward"
        elif self.name in UPDATES:
            pass_ = "update"
        inputs: list[TracedInput] = []
        for argument in self.arguments:
            inputs += _trace_argument(argument, FLOAT_NAMES[dtype])
        return OpKey(ATEN + self.name, pass_, tuple(inputs))


def _trace_argument(argument: Argument, float_name: str) -> list[TracedInput]:
    """Return an argument as the profiler writes it; a list of tensors is an input for each."""
    if isinstance(argument, Tensors):
        return [traced for item in argument.items for traced in _trace_argument(item, float_name)]
    if isinstance(argument, Tensor):
        dtype = INDEX_NAME if argument.index_limit else float_name
        return [TracedInput(argument.shape, dtype, is_transposed=argument.is_transposed)]
    if isinstance(argument, Result):
        return [TracedInput(argument.shape, float_name)]
    return [TracedInput((), "Scalar", "" if argument is None else str(argument))]


def list_standard_ops() -> list[StandardOp]:
    """Return all standard ops; their labels are unique."""
    return [
        *_list_elementwise(),
        *_list_norms(),
        *_list_pools(),
        *_list_products(),
        *_list_convolutions(),
        *_list_attention(),
        *_list_recurrent(),
        *_list_lookups(),
    ]


def _list_elementwise() -> list[StandardOp]:
    ops = []
    for elements in (2**12, 2**14, 2**16, 2**17, 2**18, 2**20, 2**22):
        x = Tensor((elements // 64, 64))
        rows = Tensor((8, elements // 512, 64))
        transposed = Tensor((8, elements // 512, 64), is_transposed=True)
        half = Tensor((8, elements // 16))
        ops += [
            StandardOp("relu.default", (x,)),
            StandardOp("threshold_backward.default", (x, x, 0)),
            StandardOp("add.Tensor", (x, x)),
            StandardOp("add_.Tensor", (x, x)),
            StandardOp("mul.Tensor", (x, x)),
            StandardOp("zero_.default", (x,)),
            StandardOp("clone.default", (transposed,)),
            StandardOp("cat.default", (Tensors((half, half)), 1)),
            StandardOp("sum.dim_IntList", (x, [0], True)),
            StandardOp("mean.dim", (rows, [1])),
        ]
        if elements <= 2**20:  # longer ones take milliseconds, and no other time an element
            ops += [
                StandardOp("gelu.default", (x,)),
                StandardOp("gelu_backward.default", (x, x)),
                StandardOp("tanh.default", (x,)),
                StandardOp("bernoulli_.float", (x, 0.9)),
            ]
    return ops


def _list_norms() -> list[StandardOp]:
    ops = []
    for batch, channels, side in (
        *((8, 16, 8), (8, 64, 4), (8, 16, 32), (8, 64, 16), (8, 256, 8)),
        *((8, 32, 64), (8, 128, 32), (64, 32, 16), (64, 64, 32)),
    ):
        x = Tensor((batch, channels, side, side))
        scale = Tensor((channels,), value=1.0)
        settings = (True, 0.1, 1e-5, True)
        ops += [
            StandardOp("batch_norm.default", (x, scale, scale, scale, scale, *settings)),
            StandardOp(
                "native_batch_norm_backward.default",
                (x, x, scale, scale, scale, scale, scale, True, 1e-5, [True, True, True]),
            ),
        ]
    for rows, width in ((8, 512), (256, 64), (512, 128), (1024, 256), (4096, 256), (2048, 1024)):
        x = Tensor((rows, width))
        scale = Tensor((width,), value=1.0)
        norm = StandardOp("native_layer_norm.default", (x, [width], scale, scale, 1e-5))
        moments = (Result(norm, 1, (rows, 1)), Result(norm, 2, (rows, 1)))
        ops += [
            norm,
            StandardOp(
                "native_layer_norm_backward.default",
                (x, x, [width], *moments, scale, scale, [True, True, True]),
            ),
        ]
    for rows, width in ((8, 10), (64, 10), (64, 1000), (512, 128), (4096, 256)):
        x = Tensor((rows, width))
        labels = Tensor((rows,), index_limit=width)
        loss = StandardOp("nll_loss_forward.default", (x, labels, None, 1, -100))
        ops += [
            StandardOp("_softmax.default", (x, 1, False)),
            StandardOp("_log_softmax.default", (x, 1, False)),
            loss,
            StandardOp(
                "nll_loss_backward.default",
                (Result(loss, 0), x, labels, None, 1, -100, Result(loss, 1)),
            ),
        ]
    return ops


def _list_pools() -> list[StandardOp]:
    ops = []
    window = ([2, 2], [2, 2], [0, 0])
    for batch, channels, side in (
        *((8, 16, 8), (8, 64, 16), (8, 32, 32), (8, 32, 64)),
        *((64, 32, 16), (64, 64, 32)),
    ):
        x = Tensor((batch, channels, side, side))
        half = (batch, channels, side // 2, side // 2)
        maximum = StandardOp("max_pool2d_with_indices.default", (x, *window, [1, 1], False))
        ops += [
            maximum,
            StandardOp(
                "max_pool2d_with_indices_backward.default",
                (Tensor(half), x, *window, [1, 1], False, Result(maximum, 1, half)),
            ),
            StandardOp("avg_pool2d.default", (x, *window, False, True, None)),
            StandardOp("mean.dim", (x, [-1, -2], True)),
        ]
    return ops


def _list_products() -> list[StandardOp]:
    ops = []
    for rows, inputs, outputs in (
        *((8, 64, 64), (8, 512, 10), (64, 256, 10), (8, 128, 128), (8, 256, 256)),
        *((8, 512, 512), (8, 1024, 1024), (8, 2048, 2048), (64, 128, 128), (64, 512, 512)),
        *((64, 1024, 1024), (512, 64, 64), (512, 128, 512), (512, 512, 128), (128, 512, 512)),
        *((1024, 256, 256), (1024, 256, 1024), (512, 512, 512), (4096, 128, 128)),
        *((256, 2048, 256), (4096, 256, 512)),
    ):
        x = Tensor((rows, inputs))
        weight = Tensor((outputs, inputs))
        gradient = Tensor((rows, outputs))
        transposed = Tensor((outputs, rows), is_transposed=True)
        ops += [
            StandardOp("linear.default", (x, weight, Tensor((outputs,)))),
            StandardOp("mm.default", (gradient, weight)),
            StandardOp("mm.default", (transposed, x)),
        ]
    for batch, m, k, n in (
        *((32, 32, 32, 32), (32, 64, 32, 64), (32, 128, 64, 128), (64, 64, 128, 64)),
        (8, 256, 64, 256),
    ):
        ops.append(StandardOp("bmm.default", (Tensor((batch, m, k)), Tensor((batch, k, n)))))
    return ops


def _list_convolutions() -> list[StandardOp]:
    ops = []
    for batch, inputs, outputs, side, window, stride, groups in (
        *((8, 1, 8, 28, 5, 1, 1), (8, 3, 16, 32, 3, 1, 1), (8, 3, 64, 64, 3, 2, 1)),
        *((8, 16, 16, 16, 3, 1, 1), (8, 16, 16, 64, 3, 1, 1), (8, 64, 64, 8, 3, 1, 1)),
        *((8, 64, 64, 16, 3, 1, 1), (8, 64, 64, 32, 3, 1, 1), (8, 48, 12, 32, 3, 1, 1)),
        *((8, 128, 256, 8, 3, 2, 1), (8, 256, 256, 8, 3, 1, 1), (8, 32, 64, 16, 5, 1, 1)),
        *((8, 32, 128, 16, 1, 1, 1), (8, 128, 128, 32, 1, 1, 1), (8, 256, 64, 8, 1, 1, 1)),
        *((8, 64, 64, 32, 3, 1, 64), (8, 128, 128, 16, 3, 2, 128), (8, 32, 32, 64, 3, 1, 32)),
        *((64, 16, 16, 16, 3, 1, 1), (64, 64, 64, 16, 3, 1, 1), (64, 3, 16, 32, 3, 1, 1)),
        *((64, 64, 128, 16, 1, 1, 1), (64, 64, 64, 16, 3, 1, 64)),
    ):
        x = Tensor((batch, inputs, side, side))
        weight = Tensor((outputs, inputs // groups, window, window))
        y = Tensor((batch, outputs, side // stride, side // stride))
        settings = ([stride] * 2, [window // 2] * 2, [1, 1], False, [0, 0], groups)
        is_image = inputs <= 3  # that enters a network, and needs no gradient
        ops += _pair_convolution(x, weight, y, settings, mask=[not is_image, True, False])
    for inputs, outputs, side in ((32, 16, 16), (64, 32, 32)):  # images become twice as large
        x = Tensor((8, inputs, side, side))
        weight = Tensor((inputs, outputs, 4, 4))
        y = Tensor((8, outputs, 2 * side, 2 * side))
        settings = ([2, 2], [1, 1], [1, 1], True, [0, 0], 1)
        ops += _pair_convolution(x, weight, y, settings, mask=[True, True, False])
    return ops


def _pair_convolution(
    x: Tensor, weight: Tensor, y: Tensor, settings: tuple[Argument, ...], mask: list[bool]
) -> list[StandardOp]:
    """Return a convolution and its backward op, whose mask says which gradients it makes."""
    return [
        StandardOp("convolution.default", (x, weight, None, *settings)),
        StandardOp("convolution_backward.default", (y, x, weight, None, *settings, mask)),
    ]


def _list_attention() -> list[StandardOp]:
    ops = []
    for batch, heads, length, width in (
        *((4, 2, 32, 32), (8, 4, 32, 32), (8, 4, 128, 32), (4, 8, 64, 64), (2, 8, 256, 64)),
        (32, 4, 128, 32),
    ):
        x = Tensor((batch, heads, length, width))
        name = "_scaled_dot_product_flash_attention_for_cpu"
        forward = StandardOp(f"{name}.default", (x, x, x, 0.0, True))
        results = (Result(forward, 0, x.shape), Result(forward, 1))
        backward = StandardOp(f"{name}_backward.default", (x, x, x, x, *results, 0.0, True))
        ops += [forward, backward]
    return ops


def _list_recurrent() -> list[StandardOp]:
    ops = []
    lstm = 2  # the number of its mode
    for length, batch, inputs, width in (
        *((8, 8, 64, 64), (32, 8, 64, 128), (16, 8, 256, 256), (64, 8, 128, 128)),
        *((16, 64, 128, 256), (16, 8, 64, 512)),
    ):
        x = Tensor((length, batch, inputs))
        weights = (Tensor((4 * width, inputs)), Tensor((4 * width, width)))
        biases = (Tensor((4 * width,)), Tensor((4 * width,)))
        state = Tensor((batch, width), value=0.0)
        read = (x, *weights, *biases, state, state)
        settings: tuple[Argument, ...] = (False, [], lstm, width, 1, True, False, False, True)
        forward = StandardOp("mkldnn_rnn_layer.default", (*read, *settings))
        results = [Result(forward, position) for position in range(4)]
        gradient = Tensor((length, batch, width))
        backward_settings: tuple[Argument, ...]
        backward_settings = (False, lstm, width, 1, True, True, False, [], False)
        arguments = (*read, *results[:3], gradient, None, None, *backward_settings, results[3])
        ops += [forward, StandardOp("mkldnn_rnn_layer_backward.default", arguments)]
    return ops


def _list_lookups() -> list[StandardOp]:
    ops = []
    for rows, width, words in ((1000, 64, 128), (1000, 128, 512), (10000, 256, 512)):
        indices = Tensor((8, words // 8), index_limit=rows)
        gradient = Tensor((8, words // 8, width))
        backward = (gradient, indices, rows, -1, False)
        ops += [
            StandardOp("embedding.default", (Tensor((rows, width)), indices)),
            StandardOp("embedding_dense_backward.default", backward),
        ]
    return ops
