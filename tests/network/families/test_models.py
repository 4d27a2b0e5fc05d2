"""Networks are those that were published: parameters, multiply-adds, ranges, labels, defaults."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from every import every
from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.core.values import is_range, parse_range
from steptime.network.count import op_cost
from steptime.network.families import FAMILIES, ZOO, family, find_network_name
from steptime.network.families.family import Family, Parameter, resolve
from steptime.network.ops import OPS


def network(text: str, batch: int = 1, phase: str = "infer") -> Graph:
    return build(make_workload(read_model(text), batch, phase=phase))


def macs(graph: Graph, kinds: tuple[str, ...] = ("conv2d", "linear")) -> int:
    """Multiply-adds of the kinds that published figures count; biases are ops of their own."""
    return sum(op_cost(graph, op).flop for op in graph.ops if op.kind in kinds) // 2


PUBLISHED = {  # parameters, biases and norms included
    "alexnet": 61_100_840,  # torchvision
    "alexnet_v2": 50_303_912,  # TensorFlow-Slim
    "overfeat": 145_704_424,  # the paper says 145 million of its fast model
    "nin": 7_595_176,  # Caffe's file of it has 29 MB: 4 bytes each
    "vgg16": 138_357_544,  # Simonyan, Zisserman 2014, configuration D
    "resnet18": 11_689_512,  # torchvision
    "resnet34": 21_797_672,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnet50": 25_557_032,  # He et al. 2015
    "resnet50_v1": 25_557_032,
    "cnn:block=bottleneck,blocks=3-4-6-3,filters=64,image=224,classes=1000": 25_557_032,
    "inception_v3:variant=published": 23_834_568,  # torchvision less its auxiliary classifier
    "inception_v3": 23_834_568 - (3 * 3 * 96 * 96 + 2 * 96),  # Paleo's file lacks a convolution
    "densenet121": 7_978_856,  # torchvision
    "densenet_cifar": 1_019_722,  # Huang et al. 2016: 1.0 million; by hand in test_zoo
    "squeezenet1_0": 1_248_424,  # torchvision; Iandola et al. 2016
    "squeezenet1_1": 1_235_496,  # torchvision
    "mobilenet_v1": 4_231_976,  # Howard et al. 2017: 4.2 million; Keras, trainable ones
    "mobilenet_v2": 3_504_872,  # torchvision; Sandler et al. 2018: 3.4 million
    "efficientnet_b0": 5_288_548,  # torchvision; Tan, Le 2019: 5.3 million
    "convnext_tiny": 28_589_128,  # torchvision; Liu et al. 2022: 28.6 million
    "vit_b_16": 86_567_656,  # torchvision; Dosovitskiy et al. 2020: 86 million
    "vit_l_16": 304_326_632,  # torchvision; the same: 307 million
    "bert_large": 335_141_888,  # Devlin et al. 2018, with pooler: 340 million
    "deep_mnist": 3_274_634,  # 5*5*32+32 + 5*5*32*64+64 + 3136*1024+1024 + 1024*10+10
    "bert_base": 109_482_240,  # Devlin et al. 2018, with pooler
    "gpt2": 124_439_808,  # Radford et al. 2019, the output tied to the embedding
    "llama_7b": 6_738_415_616,  # Touvron et al. 2023
}


@every("text", PUBLISHED)
@every("phase", ["train", "infer"])
def test_parameters_are_the_published_ones(text, phase):
    assert network(text, phase=phase).parameters == PUBLISHED[text]


def test_every_named_network_has_its_published_count():
    assert PUBLISHED.keys() >= ZOO.keys()
    for name in ZOO:
        stated = re.search(r"([\d,]+) parameters", family(name).source)
        if stated:
            assert int(stated[1].replace(",", "")) == PUBLISHED[name]


@every(
    ("text", "count", "published"),
    [  # products of convolutions and of the final linear layers of one image, nothing else
        ("resnet50", 4_089_184_256, 4.09e9),  # stride on the 3x3
        ("cnn", 4_089_184_256, 4.09e9),
        ("resnet50_v1", 3_857_973_248, 3.86e9),  # stride on the 1x1
        ("resnet18", 1_814_073_344, 1.81e9),
        ("vgg16", 15_470_264_320, 15.47e9),
        ("alexnet", 714_188_480, 0.714e9),
    ],
)
def test_multiply_adds_of_convolutions_and_linear_layers(text, count, published):
    assert macs(network(text)) == count
    assert count == pytest.approx(published, rel=3e-3)
    assert macs(network(text, batch=3)) == 3 * count


def test_stem_of_resnet50_by_hand():
    graph = network("resnet50")
    shapes = {op.name: graph.tensors[op.outputs[0]].shape for op in graph.ops}
    assert shapes["stem/conv/conv2d"] == (1, 64, 112, 112)
    assert shapes["stem/pool"] == (1, 64, 56, 56)
    assert [shapes[f"group{i}/block1/relu"] for i in (1, 2, 3, 4)] == [
        (1, 256, 56, 56), (1, 512, 28, 28), (1, 1024, 14, 14), (1, 2048, 7, 7),
    ]  # fmt: skip
    first = next(op for op in graph.ops if op.kind == "conv2d")
    assert op_cost(graph, first).flop == 2 * 7 * 7 * 3 * 64 * 112 * 112


@pytest.mark.parametrize(("name", "strided"), [("resnet50", "conv2"), ("resnet50_v1", "conv1")])
def test_where_the_stride_is(name, strided):
    ops = {op.name: op for op in network(name).ops}
    for conv in ("conv1", "conv2", "conv3"):
        stride = ops[f"group2/block1/{conv}/conv/conv2d"].attrs["stride"]
        assert stride == ((2, 2) if conv == strided else (1, 1))


def projections(text: str) -> list[str]:
    ops = [op.name for op in network(text).ops if op.kind == "conv2d"]
    return [name.removesuffix("/shortcut/conv/conv2d") for name in ops if "shortcut" in name]


def test_every_group_begins_with_a_projection_as_in_paradnn_but_not_in_resnet18():
    first = [f"group{i}/block1" for i in (1, 2, 3, 4)]
    for block in ("residual", "bottleneck"):
        assert projections(f"cnn:block={block},blocks=2,filters=16,image=64") == first
    assert projections("resnet18") == first[1:]
    settings = "cnn:block=residual,blocks=2,filters=64,image=224,classes=1000"
    # one 1x1 convolution of 64 to 64 and its norm more than torchvision's
    assert network(settings).parameters - PUBLISHED["resnet18"] == 64 * 64 + 2 * 64


sizes = st.integers(1, 60)


@given(st.integers(1, 9), sizes, sizes, sizes)
def test_fc_counts_layers_as_paradnn_does(layers, nodes, inputs, outputs):
    text = f"fc:layers={layers},nodes={nodes},inputs={inputs},outputs={outputs}"
    graph = network(text, 2, "train")
    weights = inputs * nodes + (layers - 1) * nodes**2 + nodes * outputs
    assert graph.parameters == weights + layers * nodes + outputs  # biases
    assert macs(graph) == 2 * weights
    assert [op.kind for op in graph.ops].count("relu") == layers
    assert graph.ops[-1].kind == "cross_entropy"


@given(st.sampled_from([("rnn", 1), ("gru", 3), ("lstm", 4)]), st.integers(1, 4), sizes, sizes)
def test_parameters_of_recurrent_networks(cell, layers, width, words):
    name, gates = cell
    vocabulary = words + 1
    text = f"rnn:cell={name},layers={layers},embedding={width},vocabulary={vocabulary},length=3"
    stacked = layers * gates * (2 * width * width + 2 * width)  # two matrices, two bias vectors
    ends = vocabulary * width + width * vocabulary + vocabulary
    graph = network(text, 2, "train")
    assert graph.parameters == stacked + ends
    logits = next(op for op in graph.ops if op.name == "output/linear")
    assert graph.tensors[logits.outputs[0]].shape == (2, 3, vocabulary)  # at every step


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(2, 30))
def test_parameters_of_decoders(layers, heads, length, vocabulary):
    width = 4 * heads
    base = f"transformer:layers={layers},width={width},heads={heads},length={length}"
    gpt = network(f"{base},vocabulary={vocabulary}").parameters
    block = 4 * (width**2 + width) + (8 * width**2 + 5 * width) + 4 * width
    assert gpt == vocabulary * width + length * width + layers * block + 2 * width
    how = "norm=rms,activation=swiglu,positions=rotary,bias=no,tied=no,kv_heads=1,ffn=10"
    llama = network(f"{base},vocabulary={vocabulary},{how}").parameters
    block = 2 * width**2 + 2 * width * 4 + 3 * width * 10 + 2 * width  # q, out; k, v of one head
    assert llama == 2 * vocabulary * width + layers * block + width


_LLAMA = "norm=rms,activation=swiglu,positions=rotary,bias=no,tied=no"
_DEEPSEEK = (
    "layers=61,width=7168,heads=128,ffn=18432,vocabulary=129280,experts=256,experts_per_token=8,"
    "expert_ffn=2048,shared_ffn=2048,dense_layers=3,latent_q=1536,latent_kv=512,head_width=192,"
    "value_width=128,rotary_width=64,length=2048"
)


@every(
    ("settings", "parameters", "flop"),
    [  # as transformers 5.23 builds them; FLOP of products as torch counts those
        (
            (
                "layers=32,width=4096,heads=32,kv_heads=8,ffn=14336,vocabulary=32000,experts=8,"
                f"length=2048,{_LLAMA}"
            ),
            46_702_792_704,  # Mixtral 8x7B
            54_417_235_640_320,
        ),
        (f"{_DEEPSEEK},{_LLAMA}", 671_026_404_352, 170_973_789_683_712),  # DeepSeek-V3
        (  # Qwen3 8B
            (
                "layers=36,width=4096,heads=32,kv_heads=8,ffn=12288,vocabulary=151936,head_width=128,"
                f"qk_norm=head,{_LLAMA}"
            ),
            8_190_735_360,
            None,
        ),
        (  # phi-2
            (
                "layers=32,width=2560,heads=32,ffn=10240,vocabulary=51200,norms=parallel,tied=no,"
                "activation=gelu_tanh,head_bias=yes,positions=rotary,rotary_width=32"
            ),
            2_779_683_840,
            None,
        ),
        (  # Pythia 160M
            "width=768,vocabulary=50304,norms=parallel_two,tied=no,positions=rotary,rotary_width=16",
            162_322_944,
            None,
        ),
    ],
)
def test_settings_of_the_family_are_the_decoders_of_others(settings, parameters, flop):
    graph = network(f"transformer:{settings}")
    assert graph.parameters == parameters
    assert flop is None or flop == sum(
        op_cost(graph, op).flop for op in graph.ops if OPS[op.kind].work
    )


def test_blocks_see_a_window_and_have_experts_in_a_pattern():
    text = (
        "transformer:layers=6,width=8,heads=2,length=4,vocabulary=10,window=2,windows=wwa,"
        "experts=3,dense_layers=1,expert_every=2"
    )
    ops = network(text).ops
    seen = [op.attrs.get("window") for op in ops if op.kind == "attention"]
    assert seen == [2, 2, None, 2, 2, None]
    mixtures = [op.name for op in ops if op.kind == "experts"]
    assert mixtures == [f"block{i}/experts/experts" for i in (2, 4, 6)]


def test_an_encoder_has_segments_and_a_pooler_unless_told_not_to():
    base = "transformer:kind=encoder,layers=1,width=8,heads=2,length=4,vocabulary=10"
    whole = network(base).parameters
    assert whole - network(f"{base},segments=0").parameters == 2 * 8
    assert whole - network(f"{base},pooler=no").parameters == 8 * 8 + 8
    graph = network(base, 3)
    assert graph.inputs == ("tokens", "segments")
    assert graph.tensors[graph.outputs[0]].shape == (3, 8)  # the first token, pooled


def expanded(sweep: object) -> list[object]:
    if is_range(sweep):
        return list(parse_range(str(sweep), "sweep"))
    assert isinstance(sweep, tuple)
    return list(sweep)


SWEEPS = {  # Wang, Wei, Brooks 2019
    "fc": {
        "layers": [4, 8, 16, 32, 64, 128],
        "nodes": [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192],
        "inputs": [2000, 4000, 6000, 8000],
        "outputs": [200, 400, 600, 800, 1000],
        "batch": [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384],
    },
    "cnn": {
        "block": ["residual", "bottleneck"],
        "blocks": [1, 2, 3, 4, 5, 6, 7, 8],
        "filters": [16, 32, 64],
        "image": [100, 150, 200, 250, 300],
        "classes": [500, 1000, 1500],
        "batch": [64, 128, 256, 512, 1024],
    },
    "rnn": {
        "cell": ["rnn", "lstm", "gru"],
        "layers": [1, 5, 9, 13],
        "embedding": [100, 500, 900],
        "length": [10, 50, 90],
        "vocabulary": [2, 16, 128, 1024],
        "batch": [16, 64, 256, 1024],
    },
}


@every("name", SWEEPS)
def test_default_sweeps_are_the_published_ranges(name):
    found = family(name)
    sweeps = {key: expanded(p.sweep) for key, p in found.parameters.items() if p.sweep}
    assert {**sweeps, "batch": expanded(found.batch_sweep)} == SWEEPS[name]


@every("name", [*FAMILIES, *ZOO])
def test_every_value_of_a_sweep_is_accepted(name):
    found = family(name)
    assert found.source
    for key, parameter in found.parameters.items():
        assert parameter.meaning
        for value in expanded(parameter.sweep) if parameter.sweep else []:
            assert resolve(found, {key: value})[key] == value


def test_a_family_of_others_reads_a_text_by_itself():
    how = Parameter(3, "sides", read=lambda text: int(text) if text != "many" else 9)
    mine = Family("mine", lambda *_: "", {"sides": how}, "me")
    assert resolve(mine, {"sides": "many"}) == {"sides": 9}
    with pytest.raises(InputError, match=r"mine: sides: invalid literal for int.*'x'"):
        resolve(mine, {"sides": "x"})


def test_defaults_follow_what_they_depend_on():
    transformer = family("transformer")
    encoder = resolve(transformer, {"kind": "encoder", "width": 512})
    assert (encoder["length"], encoder["vocabulary"], encoder["heads"]) == (512, 30522, 8)
    assert (encoder["ffn"], encoder["kv_heads"], encoder["max_length"]) == (2048, 8, 512)
    assert (encoder["segments"], encoder["pooler"]) == (2, True)
    decoder = resolve(transformer, {})
    assert (decoder["length"], decoder["vocabulary"], decoder["segments"]) == (1024, 50257, 0)
    assert family("llama_7b").parameters["length"].default == 2048
    batches = {name: family(name).batch for name in (*FAMILIES, *ZOO)}
    ones = {name for name, batch in batches.items() if batch == 1}
    assert ones == {"transformer", "bert_base", "gpt2", "llama_7b"}
    assert set(batches.values()) == {1, 64}


def test_bert_and_gpt2_are_settings_of_the_family():
    bert = network("transformer:kind=encoder,layers=12,width=768,heads=12")
    assert bert.parameters == PUBLISHED["bert_base"]
    gpt2 = network("transformer:layers=12,width=768,heads=12,length=1024")
    assert gpt2.parameters == PUBLISHED["gpt2"]


def test_a_shorter_text_changes_no_parameter():
    for name in ("gpt2", "bert_base"):
        assert network(f"{name}:length=64").parameters == PUBLISHED[name]


@every(
    "text", ["BERT-Base", "bert base", "Bert_Base", "bert-base-uncased", "google/bert-base-cased"]
)
def test_a_name_is_what_it_is_before_a_part_of_it_is_left_out(text):
    assert find_network_name(text) == "bert_base"


def test_each_setting_says_its_own_range():
    scale = Parameter(1.0, "a width")
    share = Parameter(0.0, "a share", within=(0, 1))
    one = Family("net", lambda *_: "", {"scale": scale, "share": share}, "ours")
    assert resolve(one, {"scale": "1.4"}) == {"scale": 1.4, "share": 0.0}
    with pytest.raises(InputError, match=r"share: must be at least 0 and below 1, not '1\.4'"):
        resolve(one, {"share": 1.4})
    with pytest.raises(InputError, match="scale: must be a number, not 'inf'"):
        resolve(one, {"scale": "inf"})
