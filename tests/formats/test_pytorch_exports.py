"""What PyTorch exports, on the meta device: the figures are PyTorch's own, for any batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from steptime.build import build, build_step, make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.network.count import count
from steptime.network.ops import OPS

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore::UserWarning")]
nn, functional = torch.nn, torch.nn.functional


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, padding="same", groups=16)
        self.squeeze = nn.Conv2d(16, 4, 1)
        self.excite = nn.Conv2d(4, 16, 1)
        self.group = nn.GroupNorm(4, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = functional.hardswish(self.norm(self.stem(x)), inplace=True)
        gate = self.squeeze(functional.adaptive_avg_pool2d(x, 1)).relu_()
        x = x + self.group(self.depthwise(x)) * self.excite(gate).sigmoid()
        x = functional.interpolate(x, scale_factor=2.0, mode="bilinear")
        return self.head(functional.max_pool2d(x, 3, 2, 1).mean([2, 3]))


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
        self.words = nn.Embedding(50, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 50, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: Any) -> Any:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.words(ids) + self.words(places)[None]
        return self.out(self.encoder(x))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.layers = nn.LSTM(8, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(24, 5)

    def forward(self, ids: Any) -> Any:
        return self.tags(self.layers(self.words(ids))[0])


class Windows(nn.Module):
    """Windows of a shifted map, with learnt positions, as Swin has them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.table = nn.Parameter(torch.zeros(9, 2))
        self.register_buffer("at", torch.zeros(16, dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        n = x.shape[0]
        x = torch.roll(x, (-1, -1), (1, 2)).view(n, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5)
        q, k, v = self.qkv(x.reshape(n * 4, 4, 8)).reshape(n * 4, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        bias = self.table[self.at].view(4, 4, 2).permute(2, 0, 1)
        y = torch.softmax(q @ k.transpose(-2, -1) + bias, -1) @ v
        return y.transpose(1, 2).reshape(n, 16, 8)


class Video(nn.Module):
    """Convolutions and pools over three axes, and the windows of what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv3d(3, 8, (3, 5, 5), (1, 2, 2), (1, 2, 2), bias=False)
        self.norm, self.deep = nn.BatchNorm3d(8), nn.Conv3d(8, 8, 3, 2, 1, groups=2)
        self.head = nn.Linear(8 * 4, 10)

    def forward(self, x: Any) -> Any:
        x = self.deep(functional.max_pool3d(self.norm(self.stem(x)).relu(), 2))
        columns = functional.unfold(functional.adaptive_avg_pool3d(x, 1).flatten(2, 3), 1)
        patches = x.mean(2).unfold(2, 2, 2).unfold(3, 2, 1).mean((2, 3))
        return self.head(patches.flatten(1)) + columns.mean()


class Volumes(nn.Module):
    """The 3D U-Net of its paper (Cicek et al. 2016), which counts the parameters without norms."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 32, 64), (64, 64, 128), (128, 128, 256), (256, 256, 512))
        self.down = nn.ModuleList([self._level(*each) for each in sizes])
        self.up = nn.ModuleList([self._level(n + n // 2, n // 2, n // 2) for n in (512, 256, 128)])
        self.wider = nn.ModuleList(
            [nn.ConvTranspose3d(n, n, 2, 2, bias=False) for n in (512, 256, 128)]
        )
        self.out = nn.Conv3d(64, 3, 1)

    def _level(self, inputs: int, *filters: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for channels, made in zip((inputs, *filters), filters, strict=False):
            layers += [nn.Conv3d(channels, made, 3, padding=1), nn.BatchNorm3d(made, affine=False)]
            layers.append(nn.ReLU())
        return nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        maps = []
        for layer in self.down:
            maps.append(layer(functional.max_pool3d(maps[-1], 2) if maps else x))
        x = maps.pop()
        for wider, layer in zip(self.wider, self.up, strict=True):
            x = layer(torch.cat((wider(x), maps.pop()), 1))
        return self.out(x)


class Writes(nn.Module):
    """Writes to parts of tensors, which who reads the whole later sees; folds windows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(16, n) for n in (16, 16, 8))
        self.limit = nn.Parameter(torch.ones(16))
        self.last = nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        y[:, 1:] += self.second(x)[:, 1:]
        y[:, 0] = 0
        y.view(x.shape[0], -1)[:, 4:12].copy_(self.third(x)[:, 0])
        y.transpose(1, 2).mul_(2)
        y = torch.clamp(torch.cat((y[:, :0], y), 1), min=-self.limit, max=self.limit)
        windows = functional.fold(y.transpose(1, 2), (3, 4), 2, padding=(0, 0))
        return self.last(y.tile(1, 2)) + windows.mean()


class Composes(nn.Module):
    """Functions that are written out in others, around one product."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        y = functional.glu(torch.cat((self.layer(x), x.tan()), -1), -1)
        y = torch.addcdiv(y, x.sinh(), x.cosh() + 2, value=0.5) + torch.lerp(x, y, 0.25)
        y = functional.threshold(y, 0.1, 0.0) + torch.triu(y) + y.log2().frac() + y.logit()
        spread, mean = torch.var_mean(y, dim=-1, keepdim=True)
        places = torch.outer(y.mean((0, 2)), mean.mean((0, 2)))
        return (y - mean) / spread + places.sum() + torch.logsumexp(y, 1, keepdim=True)


class Bags(nn.Module):
    """Rows of a table added up, weighed, and multiplied with their mean and with their largest."""

    def __init__(self) -> None:
        super().__init__()
        self.added = nn.EmbeddingBag(50, 8, mode="sum")
        self.means, self.most = nn.EmbeddingBag(50, 6), nn.EmbeddingBag(50, 8, mode="max")
        self.pairs = nn.Bilinear(8, 6, 5)

    def forward(self, ids: Any) -> Any:
        weighed = self.added(ids, per_sample_weights=(ids * 0.5).to(self.added.weight))
        return self.pairs(weighed + self.most(ids), self.means(ids))


class Projects(nn.Module):
    """An LSTM both ways whose outputs are projected, and the last output of another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(8, 12, 2, batch_first=True, bidirectional=True, proj_size=5)
        self.plain = nn.LSTM(10, 6, batch_first=True, proj_size=3, bias=False)
        self.head = nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.plain(self.layers(x)[0])[1][0][0])


def image(n: int) -> Any:
    return torch.empty(n, 3, 32, 32, device="meta")


def words(n: int) -> Any:
    return torch.zeros(n, 12, dtype=torch.int64, device="meta")


NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "vision": (Vision, image),
    "attention": (Attends, words),
    "windows": (Windows, lambda n: torch.empty(n, 4, 4, 8, device="meta")),
    "tagger": (Tagger, lambda n: words(n)[:, :4]),
    "writes": (Writes, lambda n: torch.empty(n, 6, 16, device="meta")),
    "functions": (Composes, lambda n: torch.empty(n, 6, 8, device="meta")),
    "bags": (Bags, words),
    "projects": (Projects, lambda n: torch.empty(n, 3, 8, device="meta")),
    "volumes": (Volumes, lambda n: torch.empty(n, 3, 16, 8, 24, device="meta")),
    "video": (Video, lambda n: torch.empty(n, 3, 8, 32, 32, device="meta")),
}
LONG = ("attention", "projects", "volumes")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function from a network's name to it and its file, which is exported once."""
    folder = tmp_path_factory.mktemp("exports")

    @cache
    def export(name: str, static: bool) -> tuple[Any, str]:
        make, given = NETWORKS[name]
        with torch.device("meta"):
            net = make().eval()
        dynamic = None if static else ({0: torch.export.Dim("batch")},)
        file = folder / f"{name}-{static}.pt2"
        x = torch.zeros_like(given(2), device="cpu")  # with storage, by which a file states ties
        torch.export.save(torch.export.export(make().eval(), (x,), dynamic_shapes=dynamic), file)
        return net, str(file)

    return lambda name, static=False: export(name, static)


def products(graph: Graph) -> int:
    return sum(op.flop for op in count(graph).ops if OPS[op.kind].work)


def counted(net: Any, x: Any, train: bool = False) -> int:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        y = net(x)
        if train:
            y.sum().backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    "static", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["free", "fixed"]
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NETWORKS],
)
def test_figures_are_pytorchs(name, static, made):
    net, file = made(name, static)
    given = NETWORKS[name][1]
    flops = {}
    for batch in (1, 2, 8):
        graph = build(make_workload(read_model(file), batch, phase="infer"))
        assert graph.parameters == sum(one.numel() for one in net.parameters())
        flops[batch] = products(graph)
        if name not in {"tagger", "bags"}:  # counts an LSTM and a bilinear layer as 0
            assert flops[batch] == counted(net, given(batch))
    assert flops[8] == 8 * flops[1]
    step = build_step(make_workload(read_model(file), 4))
    if name in {"attention", "windows", "volumes"}:
        assert products(step) == counted(net, given(4), train=True)


def test_the_3d_u_net_has_the_parameters_of_its_paper(made):
    _, file = made("volumes")
    graph = build(make_workload(read_model(file), 1, phase="infer"))
    assert graph.parameters == 19_069_955
    kinds = {op.kind for op in graph.ops}
    assert kinds == {
        *("conv3d", "bias", "batch_norm", "relu", "max_pool3d", "conv_transpose3d", "concat")
    }


def test_an_lstm_is_one_op_for_each_layer_and_way(made):
    _, file = made("tagger")
    graph = build(make_workload(read_model(file), 3, phase="infer"))
    assert [op.name for op in graph.ops if op.kind == "lstm"] == [
        *("layers/lstm/layer1", "layers/lstm/layer1/back"),
        *("layers/lstm/layer2", "layers/lstm/layer2/back"),
    ]
    # 2 ways: 2 x (gates 4x12) x (inputs 8, then 2x12, and 12 of the state) a token
    assert products(graph) == 3 * 4 * (2 * 2 * 48 * (8 + 12 + 24 + 12) + 2 * 24 * 5)


def test_a_projected_lstm_is_an_lstm_with_one_more_product(made):
    _, file = made("projects")
    graph = build(make_workload(read_model(file), 3, phase="infer"))
    assert [len(op.inputs) for op in graph.ops if op.kind == "lstm"] == [6] * 5
    # both ways: gates 4x12 of inputs 8, then 2x5, and of 5 that each step's 12 are projected to
    layers = 2 * (48 * (8 + 5) + 5 * 12 + 48 * (10 + 5) + 5 * 12)
    plain = 24 * (10 + 3) + 3 * 6
    assert products(graph) == 2 * 3 * (3 * (layers + plain) + 3 * 4)


def test_the_last_cells_of_a_projected_lstm_are_not_projected(tmp_path):
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(8, 12, batch_first=True, proj_size=5)

        def forward(self, x: Any) -> Any:
            return self.layer(x)[1][1][0]

    program = torch.export.export(Cells(), (torch.zeros(3, 6, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    graph = build(make_workload(read_model(str(tmp_path / "net.pt2")), 4, phase="infer"))
    assert graph.tensors[graph.outputs[0]].shape == (4, 12)


def test_bags_are_rows_reduced_and_a_bilinear_layer_two_products(made):
    _, file = made("bags")
    graph = build(make_workload(read_model(file), 3, phase="infer"))
    ops = {op.name: op for op in count(graph).ops}
    # 3 bags of 12 rows of 8: places and rows are read, rows written; then these are added up
    assert ops["added/embedding_bag"].traffic_bytes == 3 * 12 * (8 + 2 * 8 * 4)
    assert ops["added/embedding_bag/reduce"].flop == 3 * 12 * 8
    assert ops["added/embedding_bag/reduce"].traffic_bytes == 3 * (12 + 1) * 8 * 4
    # torch's profiler: for each of 5 outputs a product of 8 x 6 and one of 6, an example
    assert products(graph) == 3 * 5 * 2 * (8 * 6 + 6)


def test_bags_that_offsets_tell_apart_are_of_one_length(tmp_path):
    ids, offsets = torch.zeros(28, dtype=torch.int64), torch.arange(0, 28, 7)
    for name, at in (("even", offsets), ("odd", offsets[:3])):
        program = torch.export.export(nn.EmbeddingBag(9, 2), (ids, at))
        torch.export.save(program, tmp_path / f"{name}.pt2")
    graph = build(make_workload(read_model(str(tmp_path / "even.pt2")), 28, phase="infer"))
    assert graph.tensors[graph.outputs[0]].shape == (4, 2)
    assert graph.remarks == ("embedding_bag: 4 bags, taken to be of 7 rows each",)
    graph = build(make_workload(read_model(str(tmp_path / "odd.pt2")), 28, phase="infer"))
    assert graph.remarks[0].startswith("1 op of unknown work (aten.embedding_bag.")


@pytest.mark.parametrize("name", ["bags", "projects"])
def test_values_are_the_modules(name, tmp_path):
    from steptime.measure.backends.torch.module import join_recurrent_weights, module_of

    torch.manual_seed(3)
    make, given = NETWORKS[name]
    net, x = make().eval().double(), torch.zeros_like(given(3), device="cpu")
    x = torch.randint(0, 50, x.shape) if name == "bags" else torch.rand(x.shape).double()
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    model = read_model(str(tmp_path / "net.pt2"))
    graph = build(make_workload(model, 3, phase="infer", dtype="float64"))
    values = {  # the weight of pairs is kept as it is read, inputs first
        path: one.transpose(0, 1) if path == "pairs.weight" else one
        for path, one in net.named_parameters()
    }
    values |= {name: torch.zeros(graph.tensors[name].shape).double() for name in graph.buffers}
    join_recurrent_weights(graph, values)
    ours = module_of(graph, values, precision("float64"))
    wanted = net(x)
    torch.testing.assert_close(ours(x), wanted)
    grads = [torch.autograd.grad(y.square().sum(), [*net.parameters()]) for y in (ours(x), wanted)]
    torch.testing.assert_close(*grads)


def test_all_outputs_are_trained(tmp_path):
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.classes, self.box = nn.Linear(8, 6), nn.Linear(6, 5), nn.Linear(6, 4)

        def forward(self, x: Any) -> Any:
            y = self.trunk(x)
            return self.box(y), self.classes(y.relu())

    torch.export.save(torch.export.export(Heads(), (torch.zeros(3, 8),)), tmp_path / "net.pt2")
    model = read_model(str(tmp_path / "net.pt2"))
    trunk, classes, box = 2 * 3 * 8 * 6, 2 * 3 * 6 * 5, 2 * 3 * 6 * 4
    graph = build(make_workload(model, 3, phase="infer"))
    assert products(graph) == trunk + classes + box
    assert graph.remarks == ()
    graph = build(make_workload(model, 3))
    assert products(graph) == trunk + classes + box
    assert graph.remarks == ("loss: the sum of its outputs' means, guessed from 2 outputs",)


def test_names_of_layers_are_kept_and_tied_weights_are_one(made):
    _, file = made("attention")
    graph = build(make_workload(read_model(file), 2, phase="infer"))
    assert "encoder.layers.1.self_attn/scaled_dot_product_attention" in {o.name for o in graph.ops}
    assert "encoder.layers.0.linear1.weight" in graph.weights
    assert len([name for name in graph.weights if name in ("words.weight", "out.weight")]) == 1


def test_sizes_that_were_left_open_are_hyperparameters(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).to("meta").eval()
    dims = ({0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=4, max=64)},)
    program = torch.export.export(net, (image(2),), dynamic_shapes=dims)
    torch.export.save(program, tmp_path / "net.pt2")
    file = str(tmp_path / "net.pt2")
    graph = build(make_workload(read_model(f"{file}:height=20"), 5, phase="infer"))
    assert graph.tensors[graph.outputs[0]].shape == (5, 4, 18, 30)
    with pytest.raises(InputError, match="height 100; it was exported for 4 to 64"):
        build(make_workload(read_model(f"{file}:height=100"), 5))


def test_a_batch_that_is_fixed_in_the_network_is_refused(tmp_path):
    class Mixes(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.reshape(3, -1).sum(0)

    program = torch.export.export(Mixes(), (torch.empty(6, 5, device="meta"),))
    torch.export.save(program, tmp_path / "net.pt2")
    with pytest.raises(InputError, match=r"net\.pt2"):
        build(make_workload(read_model(str(tmp_path / "net.pt2")), 4, phase="infer"))
