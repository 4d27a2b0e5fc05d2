"""Parameters and FLOP of torchvision's and timm's networks, beside PyTorch's own counter.

    python benchmarks/torch_witness.py [torchvision:resnet50 timm:vit_base_patch16_224 ...]

Runs where PyTorch, torchvision and timm are installed; without names, those of `NAMES`. Each is
exported on the meta device, read back without PyTorch, and counted for batch 1 and 8, and for a
training step of batch 2. PyTorch's FlopCounterMode counts products alone, which are compared with
ours; it multiplies the weight gradient of a grouped convolution by its groups (pytorch #183405),
which is put right here. Exit code 1 where a figure differs.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from steptime.build import build_step, make_workload, read_model
from steptime.measure.backends.native.export import export
from steptime.measure.backends.native.inputs import specs_of
from steptime.measure.backends.native.making import without_values
from steptime.measure.backends.native.module import module_of
from steptime.network.count import count
from steptime.network.ops import OPS

IMAGE = ((2, 3, 224, 224), "float32")
NAMES = [
    f"{library}:{name}"
    for library, names in {
        "torchvision": "alexnet convnext_tiny deeplabv3_resnet50 densenet121 efficientnet_b0 "
        "efficientnet_v2_s fcn_resnet50 googlenet inception_v3 lraspp_mobilenet_v3_large maxvit_t "
        "mnasnet1_0 mobilenet_v2 mobilenet_v3_small regnet_y_400mf resnet18 resnet50 "
        "resnext50_32x4d shufflenet_v2_x1_0 squeezenet1_1 swin_t swin_v2_t vgg11 vit_b_16 "
        "wide_resnet50_2",
        "timm": "beit_base_patch16_224 coat_tiny convnext_tiny deit_tiny_patch16_224 "
        "efficientnet_b0 gmlp_s16_224 levit_128 maxvit_tiny_tf_224 mixer_s16_224 mobilevit_xs "
        "poolformer_s12 pvt_v2_b0 regnety_004 resmlp_12_224 resnext50_32x4d "
        "swin_tiny_patch4_window7_224 vit_tiny_patch16_224 xcit_nano_12_p16_224",
    }.items()
    for name in names.split()
]


def witnessed(module: torch.nn.Module, shape: tuple[int, ...], train: bool) -> int:
    """Return the FLOP of PyTorch's counter, grouped weight gradients put right."""
    network, extra = without_values(module).to("meta"), 0
    if train:

        def note(layer: Any, _: Any, made: torch.Tensor) -> None:
            nonlocal extra
            rows = made.numel() * layer.weight[0].numel() * 2
            extra += rows * (layer.groups - 1)

        for one in network.modules():
            if (
                isinstance(one, torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d)
                and one.groups > 1
            ):
                one.register_forward_hook(note)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        made = network(torch.empty(shape, device="meta"))
        if train:
            first = (
                next(iter(made.values()))
                if hasattr(made, "values") and not isinstance(made, torch.Tensor)
                else made
            )
            first.sum().backward()
    return int(counter.get_total_flops()) - extra


def counted(file: str, batch: int, phase: str) -> tuple[int, int]:
    """Return our parameters, and the FLOP of products."""
    found = count(build_step(make_workload(read_model(file), batch, "float32", phase, "sgd")))
    return found.parameters, sum(op.flop for op in found.ops if OPS[op.kind].work)


def row(name: str, folder: Path) -> list[object]:
    """Return a network's figures, and whether they agree."""
    where, _, own = name.partition(":")
    module, inputs = module_of(where, own)
    ((shape, _),) = specs_of(inputs or {"": IMAGE}).values()
    file = folder / "net.pt2"
    why = export(module, specs_of(inputs), file, {})
    ours, theirs = [], []
    for batch, phase in ((1, "infer"), (8, "infer"), (2, "train")):
        parameters, flop = counted(str(file), batch, phase)
        ours.append(flop)
        theirs.append(witnessed(module, (batch, *shape[1:]), phase == "train"))
    of_torch = sum(one.numel() for one in module.parameters())
    same = parameters == of_torch and ours == theirs and ours[1] == 8 * ours[0] and not why
    return [name, parameters, parameters - of_torch, ours[0], ours[0] - theirs[0],
            ours[1] - theirs[1], ours[2], ours[2] - theirs[2], "yes" if same else "NO"]  # fmt: skip


def main() -> int:
    """Print a table; 1 where a figure differs."""
    warnings.simplefilter("ignore")
    print("| network | parameters | off | FLOP | off | off, batch 8 | training, 2 | off | equal |")
    print("|---|---|---|---|---|---|---|---|---|")
    different = 0
    for name in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = row(name, Path(folder))
            except Exception as error:  # noqa: BLE001  # the next one is asked all the same
                found = [name, *[""] * 7, f"{type(error).__name__}: {error}"[:200]]
        different += found[-1] != "yes"
        print("| " + " | ".join(f"{x:,}" if isinstance(x, int) else str(x) for x in found) + " |",
              flush=True)  # fmt: skip
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
