"""PyTorch's own counter as a witness: it sees the same multiplications as `count` does.

The networks live on torch's `meta` device, which knows shapes and holds no numbers, so that large
ones cost nothing. There attention and recurrent layers run as plain products, which it counts.
"""

from __future__ import annotations

from typing import Any

import pytest

from steptime.build import build, build_step, make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.graph import Graph
from steptime.network.count import count
from steptime.network.ops import OPS

pytestmark = pytest.mark.framework

NETWORKS = {
    "fc": "fc:layers=4,nodes=1024,batch=64",
    "cnn residual": "cnn:block=residual,blocks=2,filters=16,image=100,classes=500,batch=8",
    "cnn bottleneck": "cnn:block=bottleneck,blocks=1-2-3-1,filters=32,image=150,batch=2",
    "transformer encoder": "transformer:kind=encoder,layers=2,width=256,length=128,batch=2",
    "transformer decoder": "transformer:kind=decoder,layers=2,width=256,length=128,batch=2",
    "transformer grouped": "transformer:layers=2,width=256,heads=8,kv_heads=2,length=64,norm=rms,"
    "activation=swiglu,positions=rotary,bias=no,tied=no,batch=2",
    "rnn": "rnn:cell=rnn,layers=2,embedding=100,length=10,vocabulary=64,batch=4",
    "lstm": "rnn:cell=lstm,layers=2,embedding=100,length=10,vocabulary=64,batch=4",
    "gru": "rnn:cell=gru,layers=2,embedding=100,length=10,vocabulary=64,batch=4",
    "alexnet": "alexnet:batch=4",
    "vgg16": "vgg16:batch=2",
    "resnet18": "resnet18:batch=2",
    "resnet50": "resnet50:batch=2",
    "resnet50_v1": "resnet50_v1:batch=2",
    "deep_mnist": "deep_mnist:batch=16",
    "bert_base": "bert_base",
    "gpt2": "gpt2",
    "llama_7b": "llama_7b",
}


def witnessed_flop(graph: Graph, training: bool) -> int:
    """What torch's counter sees in a forward pass, and in training in the backward pass too."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from steptime.measure.backends.torch.module import module_of

    tensors: dict[str, Any] = {}
    for name in (*graph.inputs, *graph.weights, *graph.buffers):
        spec = graph.tensors[name]
        tensor = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
        tensors[name] = torch.nn.Parameter(tensor) if name in graph.weights else tensor
    module = module_of(graph, tensors, precision("float32"))
    counter = FlopCounterMode(display=False)
    with counter, torch.set_grad_enabled(training):
        out = module(*(tensors[name] for name in graph.inputs))
        if training:
            out.backward()
    return int(counter.get_total_flops())


def our_flop(graph: Graph) -> int:
    """The FLOP of the ops whose kind says that other counters count it too."""
    return sum(op.flop for op in count(graph).ops if OPS[op.kind].work)


# torch leaves out the gradient of the first state of a recurrent layer, which nobody asked for;
# `count` has the fused kernel's, which is made whole: 2 * batch 4 * gates * 100 * 100 in 2 layers
FIRST_STATE = {"rnn": 1, "lstm": 4, "gru": 3}


LARGE = {"vgg16", "resnet50_v1", "llama_7b"}  # beside an AlexNet, a ResNet-50, a grouped decoder


@pytest.mark.parametrize(
    "network",
    [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in NETWORKS],
)
def test_flop_of_inference_and_training_are_torchs(network):
    for phase in ("infer", "train"):
        work = make_workload(read_model(NETWORKS[network]), phase=phase)
        witness = witnessed_flop(build(work), phase == "train")
        if phase == "train":
            witness += 2 * (2 * 4 * FIRST_STATE.get(network, 0) * 100 * 100)
        assert our_flop(build_step(work)) == witness, phase
