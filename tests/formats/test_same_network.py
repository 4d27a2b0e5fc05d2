"""One network by family, config.json, .pt2 and ONNX: the same parameters, FLOP, traffic and ops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from steptime import count_step
from steptime.build import build, build_step, make_workload, read_model
from steptime.cli.main import run

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore::UserWarning")]
nn, functional = torch.nn, torch.nn.functional

WORDS, WIDTH, HEADS, GROUPS, FFN, LENGTH, LAYERS = 60, 32, 4, 2, 48, 16, 2
HEAD = WIDTH // HEADS


class Conv1D(nn.Module):
    """GPT-2's linear layer, whose weights lie the other way round."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inside, outside))
        self.bias = nn.Parameter(torch.empty(outside))

    def forward(self, x: Any) -> Any:
        rows = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return rows.view(*x.size()[:-1], rows.size(-1))


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH))

    def forward(self, x: Any) -> Any:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def apart(x: Any, heads: int) -> Any:
    return x.view(x.shape[0], x.shape[1], heads, HEAD).transpose(1, 2)


def joined(x: Any) -> Any:
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], WIDTH)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    half = torch.cat((-x[..., HEAD // 2 :], x[..., : HEAD // 2]), -1)
    return x * cos + half * sin


def repeated(x: Any, way: str) -> Any:
    n, groups, length, head = x.shape
    times = HEADS // groups
    if way == "expand":
        wide = x[:, :, None, :, :].expand(n, groups, times, length, head)
        return wide.reshape(n, groups * times, length, head)
    return x.repeat_interleave(times, dim=1) if way == "interleave" else x


class Llama(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, shared = way, GROUPS * HEAD
        self.words = nn.Embedding(WORDS, WIDTH)
        sizes = [(WIDTH, WIDTH), (WIDTH, shared), (WIDTH, shared), (WIDTH, WIDTH)]
        sizes += [(WIDTH, FFN), (WIDTH, FFN), (FFN, WIDTH)]
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.Linear(*s, bias=False) for s in sizes] + [RMSNorm(), RMSNorm()])
            for _ in range(LAYERS)
        )
        self.norm, self.head = RMSNorm(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Any) -> Any:
        x, length = self.words(ids), ids.shape[1]
        angles = torch.arange(length, device=ids.device)[:, None] / torch.arange(
            1, HEAD // 2 + 1, device=ids.device
        )
        both = torch.cat((angles, angles), -1)
        cos, sin = both.cos()[None, None], both.sin()[None, None]
        for wq, wk, wv, wo, gate, up, down, first, second in self.layers:
            y = first(x)
            q, k = turned(apart(wq(y), HEADS), cos, sin), turned(apart(wk(y), GROUPS), cos, sin)
            k, v = repeated(k, self.way), repeated(apart(wv(y), GROUPS), self.way)
            y = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=self.way == "gqa"
            )
            x = x + wo(joined(y))
            y = second(x)
            x = x + down(functional.silu(gate(y)) * up(y))
        return self.head(self.norm(x))


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        sizes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
        self.layers = nn.ModuleList(
            nn.ModuleList([Conv1D(*s) for s in sizes] + [nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
            for _ in range(LAYERS)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Any) -> Any:
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.words(ids) + self.places(places)
        for merged, out, up, down, first, second in self.layers:
            q, k, v = (apart(one, HEADS) for one in merged(first(x)).split(WIDTH, dim=2))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(joined(y))
            x = x + down(functional.gelu(up(second(x)), approximate="tanh"))
        return self.head(self.norm(x))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.kinds, self.norm = nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH)
        sizes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, FFN), (FFN, WIDTH)]
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.Linear(*s) for s in sizes] + [nn.LayerNorm(WIDTH) for _ in "ab"])
            for _ in range(LAYERS)
        )
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Any, kinds: Any) -> Any:
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.words(ids) + self.kinds(kinds) + self.places(places)
        x = self.norm(x)
        for wq, wk, wv, wo, up, down, first, second in self.layers:
            q, k, v = (apart(w(x), HEADS) for w in (wq, wk, wv))
            weights = (q @ k.transpose(-2, -1) / HEAD**0.5).softmax(-1)
            x = first(wo(joined(weights @ v)) + x)
            x = second(down(functional.gelu(up(x))) + x)
        return self.pooler(x[:, 0]).tanh()


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.classes = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(WIDTH, 5)
        self.token = nn.Parameter(torch.empty(1, 1, WIDTH))
        self.places = nn.Parameter(torch.empty(1, LENGTH + 1, WIDTH))
        sizes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, FFN), (FFN, WIDTH)]
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.Linear(*s) for s in sizes] + [nn.LayerNorm(WIDTH) for _ in "ab"])
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, image: Any) -> Any:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(image.shape[0], -1, -1), x), 1) + self.places
        for wq, wk, wv, wo, up, down, first, second in self.layers:
            y = first(x)
            q, k, v = (apart(w(y), HEADS) for w in (wq, wk, wv))
            x = wo(joined(functional.scaled_dot_product_attention(q, k, v))) + x
            x = down(functional.gelu(up(second(x)))) + x
        return self.classes(self.norm(x)[:, 0, :])


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        steps = [(inside, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        self.steps = nn.ModuleList(self._step(*s) for s in steps)
        grows = inside != 4 * width
        self.shortcut = self._step(inside, 4 * width, 1, stride) if grows else nn.Identity()

    @staticmethod
    def _step(inside: int, outside: int, kernel: int, stride: int) -> Any:
        convolution = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outside))

    def forward(self, x: Any) -> Any:
        y = self.steps[0](x).relu()
        y = self.steps[2](self.steps[1](y).relu())
        return (y + self.shortcut(x)).relu()


def residual() -> Any:
    """A ResNet-50 with fewer blocks in a group."""
    first = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    blocks, inside = [], 64
    for group, count in enumerate((1, 2, 1, 1)):
        for i in range(count):
            width = 64 * 2**group
            blocks.append(Bottleneck(inside, width, 2 if group and not i else 1))
            inside = 4 * width
    stem = (first, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    return nn.Sequential(*stem, *blocks, *end)


IDS = ((2, LENGTH), "int64")
CONFIGS: dict[str, dict[str, object]] = {
    "llama": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
        "intermediate_size": FFN, "vocab_size": WORDS, "max_position_embeddings": LENGTH,
        "tie_word_embeddings": False,
    },
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": WIDTH,
        "n_layer": LAYERS, "n_head": HEADS, "vocab_size": WORDS, "n_positions": LENGTH,
    },
    "bert": {
        "model_type": "bert", "architectures": ["BertModel"], "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": FFN,
        "vocab_size": WORDS, "max_position_embeddings": LENGTH,
    },
    "vit": {
        "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": FFN,
        "image_size": 16, "patch_size": 4, "num_labels": 5,
    },
}  # fmt: skip
FAMILIES = {
    "llama": f"transformer:kind=decoder,layers={LAYERS},width={WIDTH},heads={HEADS},"
    f"kv_heads={GROUPS},ffn={FFN},vocabulary={WORDS},length={LENGTH},norm=rms,"
    "activation=swiglu,positions=rotary,bias=no,tied=no",
    "bert": f"transformer:kind=encoder,layers={LAYERS},width={WIDTH},heads={HEADS},ffn={FFN},"
    f"vocabulary={WORDS},length={LENGTH},pooler=yes",
    "gpt2": f"transformer:kind=decoder,layers={LAYERS},width={WIDTH},heads={HEADS},"
    f"vocabulary={WORDS},length={LENGTH},activation=gelu_tanh,tied=yes,merged_qkv=yes",
    "vit": f"transformer:kind=encoder,stem=patches,layers={LAYERS},width={WIDTH},heads={HEADS},"
    f"ffn={FFN},image=16,patch=4,norms=before,head=classes,classes=5,pooler=no",
    "residual": "cnn:block=bottleneck,blocks=1-2-1-1",
}


def exported(module: Any, path: Path, inputs: dict[str, Any]) -> str:
    from steptime.measure.backends.native.export import export

    assert export(module, inputs, path, {}) == ""
    return str(path)


def figures(model: str, phase: str, batch: int = 2) -> tuple[int, ...]:
    found = count_step(model, batch=batch, phase=phase)
    return found.parameters, found.flop, found.traffic_bytes, len(found.ops)


def written_again(model: str, path: Path) -> str:
    assert run(["convert", model, "--batch", "2", "-o", str(path)]) == 0
    return str(path)


WAYS = ["vit"] + [
    pytest.param(way, marks=pytest.mark.slow)
    for way in ("expand", "interleave", "gqa", "bert", "gpt2", "residual")
]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_figures(way, tmp_path, capsys):
    with torch.device("meta"):
        own = {"residual": residual, "bert": Bert, "gpt2": GPT2, "vit": ViT}.get(way)
        module = own() if own else Llama(way)
    name = way if way in FAMILIES else "llama"
    side = 16 if way == "vit" else 224
    image = {"input" if way != "vit" else "image": ((2, 3, side, side), "float32")}
    inputs = {"residual": image, "vit": image, "bert": {"ids": IDS, "kinds": IDS}}.get(
        name, {"ids": IDS}
    )
    ways = [FAMILIES[name], exported(module, tmp_path / "net.pt2", inputs)]
    if name in CONFIGS:
        (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
        ways.append(str(tmp_path / "config.json"))
    for phase, batch in (("infer", 1), ("infer", 8), ("train", 1), ("train", 8)):
        assert {one: figures(one, phase, batch) for one in ways} == dict.fromkeys(
            ways, figures(ways[0], phase, batch)
        )
    again = written_again(ways[1], tmp_path / "net.onnx")  # of batch 2
    for phase, batch in (("infer", 1), ("infer", 8), ("train", 8)):
        assert figures(again, phase, batch) == figures(ways[0], phase, batch)


def test_the_gradient_of_a_product_cut_in_parts_is_joined_once():
    apart = FAMILIES["gpt2"].removesuffix(",merged_qkv=yes")
    # three products for the gradient of the input are added up, one is not; a sum is 1 FLOP
    sums = LAYERS * 2 * 8 * LENGTH * WIDTH
    flop = [figures(one, "train", 8)[1] for one in (apart, FAMILIES["gpt2"])]
    assert flop[0] - flop[1] == sums
    graph = build_step(make_workload(read_model(FAMILIES["gpt2"]), 2))
    (joined,) = (op for op in graph.ops if op.forward_op == "block1/attention/parts")
    assert (joined.kind, len(joined.inputs)) == ("concat", 3)


def test_flattened_rows_and_constant_places_leave_no_views(tmp_path):
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.places = nn.Linear(8, 6), nn.Embedding(9, 8)

        def forward(self, x: Any) -> Any:
            x = x + self.places(torch.arange(5, device=x.device))
            rows = torch.mm(x.reshape(-1, 8), self.inner.weight.t()) + self.inner.bias
            return rows.view(-1, 5, 6)

    with torch.device("meta"):
        file = exported(Rows(), tmp_path / "net.pt2", {"x": ((2, 5, 8), "float32")})
    graph = build(make_workload(read_model(file), 4, phase="infer"))
    assert [op.kind for op in graph.ops] == ["slice", "add", "linear", "bias"]
    step = count_step(file, batch=4)
    assert step.parameters == 8 * 6 + 6 + 9 * 8
