"""`trtllm-serve` and `trtllm-bench`, with their YAML of further options, as facts of a server."""

from __future__ import annotations

from steptime.launch.engines import EngineFormat
from steptime.launch.job import JobBuilder
from steptime.launch.settings import (
    ToolSettings,
    count,
    read_flag,
    read_number,
    split_names,
    storage_type,
)

READ_FROM = "TensorRT-LLM 1.0"
SUBCOMMANDS = split_names("serve throughput latency build disaggregated")
FLAGS = frozenset({"trust_remote_code", "streaming", "verbose", "enable_chunked_prefill"})
FACTS = {
    **dict.fromkeys(("tp", "tp_size", "tensor_parallel_size"), ("tensor", count)),
    **dict.fromkeys(("pp", "pp_size", "pipeline_parallel_size"), ("pipeline", count)),
    **dict.fromkeys(("cp_size", "context_parallel_size"), ("context", count)),
    **dict.fromkeys(("ep", "ep_size", "moe_expert_parallel_size"), ("expert", count)),
    "max_batch_size": ("max_num_seqs", count),
    "max_num_tokens": ("max_num_batched_tokens", count),
    "max_seq_len": ("max_model_len", count),
    "concurrency": ("concurrency", count),
    "kv_cache_config.dtype": ("kv_dtype", storage_type),
    "kv_cache_dtype": ("kv_dtype", storage_type),
    "kv_cache_config.max_tokens": ("kv_tokens", count),
    "kv_cache_config.enable_block_reuse": ("prefix_caching", read_flag),
    "enable_chunked_prefill": ("chunked_prefill", read_flag),
    "kv_cache_free_gpu_memory_fraction": ("kv_free_fraction", read_number),
    "kv_cache_free_gpu_mem_fraction": ("kv_free_fraction", read_number),
    "kv_cache_config.free_gpu_memory_fraction": ("kv_free_fraction", read_number),
}
UNPRICED = {
    "disable_overlap_scheduler": "scheduling that waits for the device is not priced",
    "moe_cluster_parallel_size": "clusters of experts are not priced",
    "kv_cache_config.host_cache_size": "a cache on the host is not priced",
}


def _set_combinations(job: JobBuilder, settings: ToolSettings) -> None:
    """Set what takes more than one option."""
    if settings.flag("enable_attention_dp"):
        job.set("attention_data", True)
    _read_speculation(job, settings)
    for name in ("tensor", "pipeline"):
        job.set_default(name, 1)


def _read_speculation(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the number of draft tokens of a step, and the draft model or the kind of decoding."""
    draft_tokens = settings.count(
        "speculative_config.num_nextn_predict_layers", "speculative_config.max_draft_len"
    )
    job.set("speculative", draft_tokens)
    draft_model = settings.text(
        "speculative_config.speculative_model_dir", "speculative_config.speculative_model"
    )
    decoding_type = settings.text("speculative_config.decoding_type")
    if draft_model:
        job.set("draft", draft_model)
    elif decoding_type:
        job.set("draft", decoding_type.lower())


ENGINE = EngineFormat(
    name="trtllm",
    flags=FLAGS,
    model_options=("model", "m", "model_path"),
    has_positional_model=True,
    file_options=("extra_llm_api_options", "config", "config_file"),
    is_file_stronger=True,
    subcommands=SUBCOMMANDS,
    facts=FACTS,
    unpriced=UNPRICED,
    set_combinations=_set_combinations,
)
