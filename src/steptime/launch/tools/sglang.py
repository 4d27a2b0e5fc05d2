"""`python -m sglang.launch_server` and `sglang serve`: their options as facts of a server."""

from __future__ import annotations

from steptime.launch.engines import EngineFormat
from steptime.launch.job import JobBuilder
from steptime.launch.settings import (
    ToolSettings,
    count,
    quantised_type,
    read_number,
    split_names,
    storage_type,
)

READ_FROM = "SGLang 0.5"
FLAGS = split_names(
    "trust_remote_code enable_dp_attention enable_ep_moe enable_deepep_moe disable_radix_cache "
    "enable_torch_compile disable_cuda_graph enable_mixed_chunk enable_metrics log_requests "
    "enable_dp_lm_head enable_two_batch_overlap enable_eplb disable_overlap_schedule "
    "disable_shared_experts_fusion enable_flashinfer_mla enable_multimodal enable_p2p_check "
    "enable_hierarchical_cache skip_server_warmup enable_symm_mem enable_nccl_nvls "
    "disable_custom_all_reduce enable_lora is_embedding enable_deterministic_inference "
    "enable_cache_report disable_flashinfer_autotune enable_memory_saver"
)
FACTS = {
    **dict.fromkeys(("tp", "tp_size", "tensor_parallel_size"), ("tensor", count)),
    **dict.fromkeys(("pp", "pp_size", "pipeline_parallel_size"), ("pipeline", count)),
    **dict.fromkeys(("ep", "ep_size", "expert_parallel_size"), ("expert", count)),
    **dict.fromkeys(("dp", "dp_size", "data_parallel_size"), ("data", count)),
    "nnodes": ("nodes", count),
    "context_length": ("max_model_len", count),
    "max_running_requests": ("max_num_seqs", count),
    "max_total_tokens": ("kv_tokens", count),
    "mem_fraction_static": ("mem_fraction_static", read_number),
    "kv_cache_dtype": ("kv_dtype", storage_type),
}
UNPRICED = {
    "cpu_offload_gb": "weights on the host are not priced",
    "enable_torch_compile": "compiled kernels are not priced",
    "disable_cuda_graph": "without CUDA graphs decoding is slower; the stack is priced with them",
    "enable_two_batch_overlap": "two overlapping batches are not priced",
    "enable_hierarchical_cache": "a cache on the host is not priced",
    "disable_overlap_schedule": "scheduling that waits for the device is not priced",
    "disaggregation_mode": "give prompts' replicas by --prefill-replicas",
    "json_model_override_args": "changes of the model's configuration are not read",
    "lora_paths": "adapters beside the weights are not priced",
}


def _set_combinations(job: JobBuilder, settings: ToolSettings) -> None:
    """Set what takes more than one option."""
    job.set("weights", quantised_type(settings.text("quantization")))
    _read_prefill(job, settings)
    _read_speculation(job, settings)
    if settings.flag("disable_radix_cache"):
        job.set("prefix_caching", False)
    job.set_default("tensor", 1)
    if settings.flag("enable_dp_attention"):  # within the tensor-parallel devices: no replicas
        job.set("attention_data", job.find_count("data") or 1)
        job.facts.pop("data", None)
    has_expert_backend = settings.text("moe_a2a_backend") in {"deepep", "mooncake"}
    has_expert_flag = settings.flag("enable_ep_moe") or settings.flag("enable_deepep_moe")
    if has_expert_flag or has_expert_backend:  # experts lie on the tensor-parallel ranks
        job.set("expert", job.find_count("tensor") or 1)
    for name in ("pipeline", "data"):
        job.set_default(name, 1)


def _read_prefill(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the tokens of one step; a negative size switches the chunks off."""
    chunk = settings.text("chunked_prefill_size")
    if chunk and chunk.startswith("-"):
        job.set("chunked_prefill", False)
    else:
        job.set("max_num_batched_tokens", settings.count("chunked_prefill_size"))


def _read_speculation(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the number of draft tokens of a step, and the draft model or the algorithm.

    A chain of drafts (top-k of 1) has a token for each step of the draft model; a tree has all its
    tokens but the root.
    """
    algorithm = settings.text("speculative_algorithm", "speculative_algo")
    if algorithm is None:
        return
    # A chain of guesses (top-k 1) has a token a step of the draft model, a tree as many as it says.
    draft_steps = settings.count("speculative_num_steps")
    tree_tokens = settings.count("speculative_num_draft_tokens")
    top_k = settings.count("speculative_eagle_topk") or 1
    is_chain = top_k == 1
    if tree_tokens and not (is_chain and draft_steps):
        job.set("speculative", tree_tokens - 1)  # the root is no guess
    else:
        job.set("speculative", draft_steps)
    draft_model = settings.text("speculative_draft_model_path", "speculative_draft_model")
    job.set("draft", draft_model or algorithm.lower())


ENGINE = EngineFormat(
    name="sglang",
    flags=FLAGS,
    model_options=("model_path", "model"),
    has_positional_model=False,
    file_options=("config",),
    facts=FACTS,
    unpriced=UNPRICED,
    set_combinations=_set_combinations,
)
