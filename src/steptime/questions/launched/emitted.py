"""Answers as commands and recipes of other tools: `--emit`."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from steptime.core.adapters import ADAPTERS
from steptime.core.errors import InputError
from steptime.core.toml_files import read_packaged_toml
from steptime.core.workload import LORA, Tuning
from steptime.launch.emit import check_emitter, emit_job
from steptime.launch.job import SERVING, TRAINING, Facts, FactValue
from steptime.serving.speculation import ACCEPTED_SHARES

EMITTED_DTYPES = {
    "bfloat16-mixed": "bfloat16",
    "float16-mixed": "float16",
    "bfloat16": "bfloat16-pure",
}
LORA_TARGETS_BY_PRODUCTS: Mapping[str, FactValue] = {
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "linear": "all-linear",
}
SEQUENCE_STEP = 256  # to which the longest sequence of a server is rounded up
MAX_SEQUENCES = 256  # at once, unless memory allows fewer


def find_hub_id(model: str) -> str:
    """Return the id of a network on the Hugging Face Hub.

    Args:
        model: name of the network, with its hyperparameters or without; a path stays.

    Raises:
        InputError: if no id of the network is known.
    """
    name = model.partition(":")[0]
    if "/" in name:
        return name
    ids = read_packaged_toml("hub_ids.toml")
    if name not in ids:
        raise InputError(f"--emit: no id on the Hugging Face Hub is known for {name}")
    return str(ids[name])


def emit_training(tool: str, model: str, facts: Facts, tuning: Tuning) -> str:
    """Return a training as the command or recipe of a tool.

    Args:
        tool: the tool.
        model: name of the network.
        facts: facts of the job but the type and what is trained; `dtype` is ours.
        tuning: what of the network is trained.

    Raises:
        InputError: for what the tool cannot say.
    """
    check_emitter(tool, TRAINING)
    all_facts = dict(facts)
    dtype = str(facts.get("dtype"))
    all_facts["dtype"] = EMITTED_DTYPES.get(dtype, dtype)
    all_facts["recompute"] = all_facts.get("recompute", tuning.recompute)
    # Such as prefix tuning: these tools have only adapters with a rank, as LoRA.
    has_adapter_without_rank = tuning.has_adapter and not tuning.rank
    if has_adapter_without_rank:
        title = ADAPTERS[tuning.adapter].title
        raise InputError(f"--emit {tool}: it has no {title}; nearest: --lora r=16")
    if tuning.rank:
        # Recipes take LoRA for granted and name only other adapters.
        if tuning.adapter != LORA:
            all_facts["adapter"] = tuning.adapter
        if tuning.saved:
            all_facts["modules_to_save"] = tuning.saved.split("+")  # "embedding+output"
        all_facts["lora_rank"] = tuning.rank
        # `on`: the adapted products, "q+v", or a word for several of them.
        products = [f"{name}_proj" for name in tuning.on.split("+")]
        all_facts["lora_targets"] = LORA_TARGETS_BY_PRODUCTS.get(tuning.on, products)
        if tuning.weights:
            all_facts["weights"] = tuning.weights
    if tuning.packed:
        all_facts["packed"] = True
    return emit_job(tool, TRAINING, find_hub_id(model), all_facts)


def emit_server(
    tool: str, model: str, facts: Facts, request_tokens: int, sequences_in_memory: int | None
) -> str:
    """Return a server as the command of a tool.

    Args:
        tool: the tool.
        model: name of the network.
        facts: facts of the job but its limits.
        request_tokens: tokens of the longest sequence.
        sequences_in_memory: sequences for which there is memory; None where unknown.

    Raises:
        InputError: for what the tool cannot say.
    """
    check_emitter(tool, SERVING)
    max_model_len = ceil(request_tokens / SEQUENCE_STEP) * SEQUENCE_STEP
    max_sequences = MAX_SEQUENCES
    if sequences_in_memory is not None:
        max_sequences = max(1, min(MAX_SEQUENCES, sequences_in_memory))
    limits: Facts = {"max_model_len": max_model_len, "max_num_seqs": max_sequences}
    limits |= facts  # limits of the stack and of the user win over what fits
    draft = limits.get("draft")
    # `draft` is a way of guessing, such as ngram, or a network with an id on the hub.
    if draft is not None and draft not in ACCEPTED_SHARES:
        limits["draft"] = find_hub_id(str(draft))
    if tool == "sglang" and "gpu_memory_utilization" in limits:
        # SGLang's name of this share.
        limits["mem_fraction_static"] = limits.pop("gpu_memory_utilization")
    return emit_job(tool, SERVING, find_hub_id(model), limits)


def emit_desktop(model: str, facts: Facts) -> str:
    """Return a server of one's own machine as a command of llama.cpp.

    Args:
        model: name of the network.
        facts: facts of the job; the type of the weights stands in the name of their file.

    Raises:
        InputError: for what llama.cpp cannot say.
    """
    weights_type = str(facts["weights"]).upper()
    weights_file = f"{find_hub_id(model)}-{weights_type}"
    server_facts = {name: value for name, value in facts.items() if name != "weights"}
    return emit_job("llama-server", SERVING, weights_file, server_facts)
