"""Predicted peak memory against PyTorch's memory tracker, on fake tensors: nothing is allocated.

The networks are written by hand with torch's own modules, so that only their mathematics is shared
with ours. The tracker sees every tensor that PyTorch makes (weights, gradients, optimizer state,
activations, temporaries), not the workspace of kernels: of an LSTM it sees nothing that oneDNN
keeps for the backward pass, so oneDNN is switched off, and torch's own cells run.

Training agrees to a part in a thousand, but for recurrent layers. In inference the tracker sees
more: while a module runs, the frames of its callers still hold tensors that nothing reads again
(`test_autocast.py` compares with the module that is measured, which has no such frames).
A linear layer whose input is not contiguous (a recurrent layer's output) adds its bias in place,
but on fake tensors it makes a second copy; here the bias is added by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from steptime.build import build_step, make_workload, read_model
from steptime.network.count import peak_bytes

if TYPE_CHECKING:
    from torch import nn

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN"),  # of switching it off
]

TOLERANCE = 0.085
OF_TRAINING = 0.001  # without recurrent layers


def fc(inputs: int, nodes: int, layers: int, outputs: int) -> nn.Module:
    from torch import nn

    parts: list[nn.Module] = []
    for width in (inputs, *(nodes,) * (layers - 1)):
        parts += [nn.Linear(width, nodes), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(nodes, outputs))


def conv_relu(*args: int, **how: int) -> list[nn.Module]:
    from torch import nn

    return [nn.Conv2d(*args, **how), nn.ReLU()]


def alexnet() -> nn.Module:
    from torch import nn

    return nn.Sequential(
        *conv_relu(3, 64, 11, stride=4, padding=2),
        nn.MaxPool2d(3, 2),
        *conv_relu(64, 192, 5, padding=2),
        nn.MaxPool2d(3, 2),
        *conv_relu(192, 384, 3, padding=1),
        *conv_relu(384, 256, 3, padding=1),
        *conv_relu(256, 256, 3, padding=1),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(256 * 6 * 6, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 1000),
    )


def vgg16() -> nn.Module:
    from torch import nn

    parts: list[nn.Module] = []
    channels = 3
    for repeats, width in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(repeats):
            parts += conv_relu(channels, width, 3, padding=1)
            channels = width
        parts.append(nn.MaxPool2d(2))
    dense = (nn.Linear(512 * 7 * 7, 4096), nn.Linear(4096, 4096))
    classifier = [part for layer in dense for part in (layer, nn.ReLU(), nn.Dropout())]
    return nn.Sequential(*parts, nn.Flatten(), *classifier, nn.Linear(4096, 1000))


def deep_mnist() -> nn.Module:
    from torch import nn

    return nn.Sequential(
        *conv_relu(1, 32, 5, padding=2),
        nn.MaxPool2d(2),
        *conv_relu(32, 64, 5, padding=2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 1024),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(1024, 10),
    )


def resnet(block: str, repeats: tuple[int, ...], filters: int, classes: int) -> nn.Module:
    """A projection at the head of every group, the stride on the 3x3."""
    from torch import nn

    def conv(c_in: int, c_out: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False)
        return [layer, nn.BatchNorm2d(c_out)]

    class Block(nn.Module):
        def __init__(self, c_in: int, width: int, stride: int, project: bool) -> None:
            super().__init__()
            if block == "bottleneck":
                out = 4 * width
                first = (*conv(c_in, width, 1), nn.ReLU(), *conv(width, width, 3, stride))
                self.branch = nn.Sequential(*first, nn.ReLU(), *conv(width, out, 1))
            else:
                out = width
                first = (*conv(c_in, width, 3, stride), nn.ReLU())
                self.branch = nn.Sequential(*first, *conv(width, out, 3))
            shortcut = conv(c_in, out, 1, stride) if project else [nn.Identity()]
            self.shortcut = nn.Sequential(*shortcut)

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.branch(x) + self.shortcut(x))

    parts = [*conv(3, filters, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = filters
    for group, times in enumerate(repeats):
        width = filters * 2**group
        for i in range(times):
            parts.append(Block(channels, width, 2 if group and i == 0 else 1, i == 0))
            channels = width * (4 if block == "bottleneck" else 1)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    return nn.Sequential(*parts, *head)


def recurrent(cell: str, layers: int, width: int, vocabulary: int) -> nn.Module:
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            make = getattr(nn, cell)
            self.embedding = nn.Embedding(vocabulary, width)
            self.cells = nn.ModuleList(make(width, width, batch_first=True) for _ in range(layers))
            self.output = nn.Linear(width, vocabulary)

        def forward(self, ids: Any) -> Any:
            x = self.embedding(ids)
            for one in self.cells:
                x = one(x)[0]
            return nn.functional.linear(x, self.output.weight).add_(self.output.bias)

    return Recurrent()


def transformer(
    kind: str, layers: int, length: int, width: int, heads: int, vocabulary: int
) -> nn.Module:
    """BERT's encoder with segments and pooler, or GPT-2's decoder with tied weights."""
    from torch import nn, zeros, zeros_like

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def attention(self, x: Any) -> Any:
            def by_head(y: Any) -> Any:
                return y.view(*x.shape[:2], heads, width // heads).transpose(1, 2)

            y = nn.functional.scaled_dot_product_attention(
                by_head(self.q(x)),
                by_head(self.k(x)),
                by_head(self.v(x)),
                is_causal=kind == "decoder",
            )
            return self.out(y.transpose(1, 2).reshape(x.shape))

        def forward(self, x: Any) -> Any:
            gelu = nn.functional.gelu
            if kind == "decoder":
                x = x + self.attention(self.norm1(x))
                return x + self.down(gelu(self.up(self.norm2(x))))
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.down(gelu(self.up(x))))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(vocabulary, width)
            self.positions = nn.Parameter(zeros(length, width))
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            if kind == "encoder":
                self.segments, self.pooler = nn.Embedding(2, width), nn.Linear(width, width)

        def forward(self, ids: Any) -> Any:
            x = self.table(ids)
            if kind == "encoder":
                x = x + self.segments(zeros_like(ids))
            x = x + self.positions
            if kind == "encoder":
                x = self.norm(x)
            for block in self.blocks:
                x = block(x)
            if kind == "encoder":
                return self.pooler(x[:, 0]).tanh()
            return nn.functional.linear(self.norm(x), self.table.weight)

    return Transformer()


Shape = tuple[int, ...]
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Shape]] = {  # (network, input): ids if 2-D
    "fc:layers=4,nodes=1024": (lambda: fc(2000, 1024, 4, 200), (64, 2000)),
    "fc:layers=8,nodes=256,outputs=1000": (lambda: fc(2000, 256, 8, 1000), (4096, 2000)),
    "fc:layers=32,nodes=32,inputs=8000": (lambda: fc(8000, 32, 32, 200), (16384, 8000)),
    "alexnet": (alexnet, (128, 3, 224, 224)),
    "vgg16": (vgg16, (16, 3, 224, 224)),
    "deep_mnist": (deep_mnist, (256, 1, 28, 28)),
    "resnet50": (lambda: resnet("bottleneck", (3, 4, 6, 3), 64, 1000), (16, 3, 224, 224)),
    "cnn:block=residual,blocks=2,filters=16,image=100,classes=500": (
        lambda: resnet("residual", (2, 2, 2, 2), 16, 500),
        (64, 3, 100, 100),
    ),
    "rnn:cell=rnn,layers=5": (lambda: recurrent("RNN", 5, 500, 1024), (64, 50)),
    "rnn:cell=rnn,vocabulary=2": (lambda: recurrent("RNN", 1, 500, 2), (64, 50)),
    "rnn:cell=lstm,layers=2": (lambda: recurrent("LSTM", 2, 500, 1024), (64, 50)),
    "rnn:cell=lstm,embedding=100,length=10": (lambda: recurrent("LSTM", 1, 100, 1024), (256, 10)),
    "rnn:cell=gru,embedding=100,length=10": (lambda: recurrent("GRU", 1, 100, 1024), (256, 10)),
    "transformer:layers=4,width=256,length=512,vocabulary=1000": (
        lambda: transformer("decoder", 4, 512, 256, 4, 1000),
        (8, 512),
    ),
    "bert_base": (lambda: transformer("encoder", 12, 512, 768, 12, 30522), (4, 512)),
}


def tracked_bytes(make: Callable[[], nn.Module], shape: Shape, optimizer: str | None) -> int:
    """Return PyTorch's peak of the second step, when the optimizer has its state."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    no_onednn = torch.backends.mkldnn.flags(enabled=False)
    with FakeTensorMode(), no_onednn:
        net = make().train(optimizer is not None)
        is_image = len(shape) == 4
        ids = not is_image and any(isinstance(m, torch.nn.Embedding) for m in net.modules())
        x = torch.zeros(shape, dtype=torch.int64 if ids else torch.float32)
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        foreach = {"foreach": True}  # the default on a CUDA device
        update = kinds[optimizer](net.parameters(), lr=0.1, **foreach) if optimizer else None

        def step() -> Any:
            if update is None:
                with torch.no_grad():
                    return net(x)
            update.zero_grad()
            out = net(x)
            if hasattr(net, "pooler"):
                loss = out.mean()
            else:
                out = out.flatten(0, -2)
                labels = torch.zeros(len(out), dtype=torch.int64)
                loss = torch.nn.functional.cross_entropy(out, labels)
            del out
            loss.backward()
            return update.step()

        tracker = MemTracker()
        tracker.track_external(net, x, *([update] if update else []))
        with tracker:
            step()
            tracker.reset_mod_stats()
            step()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
        return peak["Total"]


LARGE = (  # for seconds
    *("cnn:block=residual", "fc:layers=32"),
    "transformer:layers=4",
)
LARGEST = (  # test_autocast.py and smaller networks hold them
    *("resnet50", "rnn:cell=rnn,layers=5", "bert_base", "rnn:cell=lstm,layers=2"),
)


def _time_marks(text: str) -> list[pytest.MarkDecorator]:
    if text.startswith(LARGEST):
        return [pytest.mark.rare]
    return [pytest.mark.slow] if text.startswith(LARGE) else []


NETWORKS_BY_TIME = [pytest.param(text, marks=_time_marks(text)) for text in NETWORKS]


@pytest.mark.parametrize("text", NETWORKS_BY_TIME)
@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.rare), "adam", None])
def test_peak_memory(text, optimizer):
    make, shape = NETWORKS[text]
    witness = tracked_bytes(make, shape, optimizer)
    phase = "train" if optimizer else "infer"
    workload = make_workload(read_model(text), shape[0], "float32", phase, optimizer or "sgd")
    tolerance = OF_TRAINING if optimizer and not text.startswith("rnn") else TOLERANCE
    assert peak_bytes(build_step(workload)) == pytest.approx(witness, rel=tolerance)
