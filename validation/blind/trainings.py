"""Blind trainings: pre-training and fine-tuning of language models, and image networks."""

import json
from collections.abc import Mapping

from steptime.core.errors import InputError
from validation.blind.cells import GIB, BlindRow, Cells, parse_number, parse_pairs
from validation.layouts import stack_at

QWEN = "activation=swiglu,norm=rms,positions=rotary,bias=no,tied=no,qkv_bias=yes,max_length=8192"
MODELS = {  # networks that the table of language models does not name
    "Qwen-1.8B": f"transformer:layers=24,width=2048,heads=16,ffn=5504,vocabulary=151936,{QWEN}",
    "Qwen-7B": f"transformer:layers=32,width=4096,heads=32,ffn=11008,vocabulary=151936,{QWEN}",
    "Qwen-14B": f"transformer:layers=40,width=5120,heads=40,ffn=13696,vocabulary=152064,{QWEN}",
}
BERT = {"bert_base_squad": "bert_base", "bert_large_squad": "bert_large"}
BLOOM_CHANGE = "embedding gets its own"  # from that day on gradients were 32 bit wide
LAMBDA_LENGTH = 384  # tokens of SQuAD in NVIDIA's scripts
AMD_RECOMPUTED_LAYERS = 21  # ACG=full, ACM=block, ACL=21 of its configurations of MI300X and MI325X
MLPERF = {
    "llama2_70b_lora": ("llama2_70b", "fine_tuning"),
    "llama31_8b": ("llama3_1_8b", "step"),
}
PEFT_LENGTH, PEFT_PEAK_LENGTH = 210, 768  # mean tokens of the time, most tokens of the peak


def read_bloom(cells: Cells) -> BlindRow:
    """Return an iteration of Megatron-DeepSpeed on 320 or 384 A100."""
    plan = parse_pairs(cells["plan"])
    sizes = f"layers={plan['layers']},width={plan['hidden']},heads={plan['heads']}"
    model = f"transformer:{sizes},vocabulary={plan['vocab']},activation=gelu_tanh,length=2048"
    is_wide = BLOOM_CHANGE in cells["plan"]
    texts = {
        "model": f"{model},max_length=2048",
        "device": cells["device"],
        "dtype": "bfloat16" if is_wide else "float16",
        "stack": "megatron-deepspeed-2022",
        "recompute": "full",
        "link": "omni-path-100",
    }
    numbers = {
        "device_count": cells["devices"],
        "tensor": float(plan["tp"]),
        "pipeline": float(plan["pp"]),
        "data": float(plan["dp"]),
        "microbatch": float(plan["micro_batch"]),
        "global_batch": float(plan["global_batch"]),
        "length": 2048,
        "zero": 1,
        "links_per_node": 4,
    }
    if not is_wide:
        numbers["gradients"] = 16
    measured = {"step_s": cells["seconds"], "memory_bytes": cells["memory_bytes"]}
    return BlindRow("step", texts, numbers, measured, cells["oom"] != "yes")


def read_automodel(cells: Cells) -> BlindRow:
    """Return a step of NeMo AutoModel: FSDP2 on H100."""
    plan = parse_pairs(cells["plan"])
    names = {"GPT-OSS 20B": "gpt_oss_20b", "GPT-OSS 120B": "gpt_oss_120b"}
    names |= {"Qwen2.5 32B": "qwen2_5_32b", "Qwen2.5 32B 2-node": "qwen2_5_32b"}
    if cells["model"] not in names:
        raise InputError(f"{cells['model']}: its layers of state spaces are not modelled")
    is_lora = cells["method"] == "lora"
    texts = {
        "model": names[cells["model"]],
        "device": cells["device"],
        "dtype": "bfloat16",
        "stack": "automodel-2025",
        # activation_checkpointing: true in its benchmark of LoRA, false in those of mixtures
        "recompute": "full" if is_lora else "none",
        **({"lora": "r=8,on=all", "weights": "", "optimizer": "adam"} if is_lora else {}),
    }
    tensor = float(plan.get("tp", 1))
    numbers = {
        "device_count": cells["devices"],
        "tensor": tensor,
        # DeepEP joins the experts of all devices where the page prints no `ep`
        "expert": float(plan.get("ep", cells["devices"] if "DeepEP" in cells["plan"] else 1)),
        "data": cells["devices"] / tensor,
        "microbatch": float(plan["micro_batch"]),
        "global_batch": float(plan["global_batch"]),
        "length": cells["length"],
        "zero": 3,
        "update_early": 0,
    }
    measured = {"step_s": cells["seconds"]}
    return BlindRow("fine_tuning" if is_lora else "step", texts, numbers, measured)


def read_ironwood(cells: Cells) -> BlindRow:
    """Return a step of MaxText on TPU7x; weights are shared out over all chips."""
    names = {"llama3.1-405b": "llama3_1_405b", "gpt-oss-120b": "gpt_oss_120b"}
    names |= {"qwen3-235b-a22b": "qwen3_235b_a22b"}
    if cells["model"] not in names:
        raise InputError(f"{cells['model']}: no such model is known")
    texts = {
        "model": names[cells["model"]],
        "device": cells["device"],
        "dtype": "float8" if "fp8" in cells["dtype"] else "bfloat16",
        "stack": stack_at("maxtext", "2025-06"),
        "recompute": "full",
        "offload": "activations" if "decoder_layer_input=offload" in cells["plan"] else "none",
        "inside": "ici-tpu-v7",
        "link": "ethernet-200",
    }
    numbers = {
        "device_count": cells["devices"],
        "microbatch": cells["batch"],
        "global_batch": cells["batch"] * cells["devices"],
        "length": cells["length"],
        "per_node": min(cells["devices"], 9216),
        "zero": 3,
    }
    return BlindRow("step", texts, numbers, {"step_s": cells["seconds"]})


def read_mlperf(cells: Cells) -> BlindRow:
    """Return a step of an audited training on one node."""
    if cells["method"] not in MLPERF:
        raise InputError(f"{cells['method']}: hand-written kernels of no stack")
    model, kind = MLPERF[cells["method"]]
    plan = parse_pairs(cells["plan"])
    is_lora = kind == "fine_tuning"
    is_of_amd = is_lora and cells["device"].startswith("AMD")
    recomputed_layers = AMD_RECOMPUTED_LAYERS if is_of_amd else 0
    texts = {
        "model": model,
        "device": cells["device"],
        "dtype": "float8",
        "stack": "megatron-mlperf-2025" if is_lora else stack_at("megatron", "2025-06"),
        "recompute": "full" if recomputed_layers else "none",
        **({"lora": "r=16,on=attention", "weights": "", "optimizer": "adam"} if is_lora else {}),
    }
    replicas = float(plan["dp"])
    microbatch = max(1.0, cells["batch"])
    numbers = {
        "device_count": cells["devices"],
        "tensor": cells["devices"] / replicas if replicas else 1,
        "data": replicas,
        "microbatch": microbatch,
        "global_batch": float(plan["global_batch"]),
        "length": cells["length"],
        "zero": 1,
        "per_node": 8,
        "update_early": 0,
        "recompute_layers": recomputed_layers,
    }
    return BlindRow(kind, texts, numbers, {"step_s": cells["seconds"]})


def read_qwen(cells: Cells) -> BlindRow:
    """Return a fine-tuning or a generation of Qwen by transformers."""
    name = cells["model"].removesuffix("-Chat")
    if name not in MODELS:
        raise InputError("GPTQ weights that operations of PyTorch unpack are not modelled")
    if cells["phase"] == "infer":
        return _generation(cells, MODELS[name])
    plan = parse_pairs(cells["plan"])
    if "embedding" in plan["trainable"]:
        raise InputError("embeddings trained beside LoRA are not modelled")
    is_lora = cells["method"] == "lora"
    texts = {
        "model": MODELS[name],
        "device": cells["device"],
        "dtype": "bfloat16" if is_lora else "bfloat16-mixed",
        "stack": "hf-2025" if is_lora else "deepspeed-2023",
        "recompute": "full",
        "lora": "r=64,on=all" if is_lora else "",
        "weights": "",
        "optimizer": "adam",
        "meter": "used",
    }
    numbers = {
        "device_count": cells["devices"],
        "microbatch": 1,
        "global_batch": 8 * cells["devices"],
        "length": cells["length"],
        "zero": 3 if plan.get("zero") == "3" else 0,
        "update_early": 0,
    }
    memory_bytes = cells["memory_bytes"] or 0
    measured = {
        "step_s": cells["seconds"],
        "memory_bytes": memory_bytes / cells["devices"],
    }
    return BlindRow("fine_tuning", texts, numbers, measured)


def _generation(cells: Cells, model: str) -> BlindRow:
    if "int8" in str(cells["plan"]):
        raise InputError("a cache of 8 bit of transformers is not modelled")
    texts = {
        "model": model.replace("max_length=8192", "max_length=16384"),
        "device": cells["device"],
        "dtype": "bfloat16",
        "weights": "",
        "stack": "hf-2025",
    }
    numbers = {"batch": cells["batch"], "input": 1, "output": cells["length"]}
    return BlindRow("serve", texts, numbers, {"tpot_s": cells["seconds"]})


def read_peft(cells: Cells) -> BlindRow:
    """Return the time of a step of PEFT's comparison on an L40S."""
    texts, numbers = _adapter(cells, PEFT_LENGTH)
    return BlindRow("fine_tuning", texts, numbers, {"step_s": cells["seconds"]})


def read_peft_peak(cells: Cells) -> BlindRow:
    """Return the peak of PEFT's comparison: the 99th percentile of its steps."""
    texts, numbers = _adapter(cells, PEFT_PEAK_LENGTH)
    peak_bytes = parse_number(str(cells["note"]).partition("p99 of training steps")[2])
    return BlindRow("tune_peak", texts, numbers, {"memory_bytes": peak_bytes})


def _adapter(cells: Cells, length: int) -> tuple[dict[str, str], dict[str, float]]:
    if "FLUX" in cells["model"] or cells["method"] not in ("LORA", "full"):
        raise InputError(f"{cells['method']} of {cells['model']} is not modelled")
    text = cells["plan"]
    adapter: Mapping[str, object] = json.loads(text[text.index("{") :])
    if {"use_dora", "use_bdlora"} & adapter.keys() or cells["optimizer"] == "lora-fa":
        raise InputError("a variant of LoRA that is not modelled")
    is_lora = cells["method"] == "LORA"
    on = "q+v" if "q_proj" in str(adapter.get("target_modules", "")) else "gate+up+down"
    texts = {
        "model": "llama3_2_3b",
        "device": cells["device"],
        "dtype": "bfloat16",
        "stack": "hf-2026",
        "recompute": "none",
        "lora": f"r={adapter.get('r', 32)},on={on}" if is_lora else "",
        "weights": "",
        "optimizer": "adam",
        "meter": "reserved",
    }
    numbers = {
        "device_count": 1,
        "microbatch": cells["batch"],
        "global_batch": cells["batch"],
        "length": length,
        "zero": 0,
        "update_early": 0,
    }
    return texts, numbers


def read_lambda(cells: Cells) -> BlindRow:
    """Return a step of Lambda's benchmark on one device: ResNet-50 or BERT."""
    if cells["devices"] != 1:
        raise InputError("several devices: reductions of apex and DDP are not told apart")
    method = cells["method"]
    if method != "resnet50" and method not in BERT:
        raise InputError(f"{cells['model']}: no such network is known")
    model = "resnet50" if method == "resnet50" else f"{BERT[method]}:length={LAMBDA_LENGTH}"
    texts = {
        "model": model,
        "device": cells["device"],
        "dtype": "float16-mixed" if "amp" in cells["dtype"] else "float32",
        # NVIDIA's BERT of these containers computes attention in ops of its own, scores in memory
        "stack": "torch-eager" if method == "resnet50" else "torch-eager-1",
        "phase": "train",
        "optimizer": "sgd" if method == "resnet50" else "adam",
        "tf32": "on",
    }
    numbers = {"batch": cells["batch"]}
    return BlindRow("network", texts, numbers, {"seconds": cells["seconds"]})


def read_simumax(cells: Cells) -> BlindRow:
    """Return a step of Megatron-LM on a node of eight B200, with its peak."""
    sizes = {"llama3_70b": "llama3_70b", "llama3_405b": "llama3_1_405b"}
    if cells["model"] not in sizes:
        raise InputError(f"{cells['model']} of {cells['layers']} layers is no model of the table")
    shape = {
        "llama3_70b": "width=8192,heads=64,kv_heads=8,ffn=28672",
        "llama3_405b": "width=16384,heads=128,kv_heads=8,ffn=53248",
    }[cells["model"]]
    more = "vocabulary=128256,activation=swiglu,norm=rms,positions=rotary,bias=no,tied=no"
    model = f"transformer:layers={int(cells['layers'])},{shape},{more}"
    texts = {
        "model": f"{model},max_length=131072",
        "device": "B200",
        "dtype": "bfloat16",
        "stack": stack_at("megatron", "2025-06"),
        "recompute": "none",
    }
    numbers = {
        "device_count": cells["devices"],
        "tensor": cells["tp"],
        "pipeline": cells["pp"],
        "data": cells["dp"],
        "context": cells["cp"],
        "microbatch": cells["micro_batch"],
        "global_batch": cells["micro_batch"] * cells["micro_batches"] * cells["dp"],
        "length": cells["length"],
        "zero": 1,
        "sequence": 1,
    }
    measured = {
        "step_s": cells["seconds"],
        "allocated_bytes": cells["allocated_GiB"] * GIB,
    }
    return BlindRow("step", texts, numbers, measured)
