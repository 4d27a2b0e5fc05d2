"""`vllm serve` and vLLM's `api_server`: their options as facts of a server."""

from __future__ import annotations

import json

from steptime.launch.engines import EngineFormat
from steptime.launch.job import JobBuilder
from steptime.launch.settings import (
    ToolSettings,
    count,
    quantised_type,
    read_flag,
    read_number,
    split_names,
    storage_type,
)

READ_FROM = "vLLM 0.11"
DEFAULT_MEMORY_SHARE = 0.9
FLAGS = split_names(
    "enable_expert_parallel ep enforce_eager trust_remote_code enable_prefix_caching "
    "no_enable_prefix_caching enable_chunked_prefill no_enable_chunked_prefill "
    "disable_log_requests disable_log_stats enable_auto_tool_choice enable_lora headless "
    "async_scheduling enable_reasoning disable_custom_all_reduce enable_eplb "
    "enable_sleep_mode enable_dbo language_model_only disable_sliding_window enable_log_requests "
    "disable_uvicorn_access_log enable_server_load_tracking use_v2_block_manager "
    "data_parallel_hybrid_lb data_parallel_external_lb no_async_scheduling ray "
    "enable_prompt_tokens_details enable_force_include_usage skip_mm_profiling"
)
FACTS = {
    **dict.fromkeys(("tensor_parallel_size", "tp"), ("tensor", count)),
    **dict.fromkeys(("pipeline_parallel_size", "pp"), ("pipeline", count)),
    **dict.fromkeys(("data_parallel_size", "dp"), ("data", count)),
    "nnodes": ("nodes", count),
    "max_model_len": ("max_model_len", count),
    "max_num_seqs": ("max_num_seqs", count),
    "max_num_batched_tokens": ("max_num_batched_tokens", count),
    "gpu_memory_utilization": ("gpu_memory_utilization", read_number),
    "kv_cache_dtype": ("kv_dtype", storage_type),
    "enable_prefix_caching": ("prefix_caching", read_flag),
    "enable_chunked_prefill": ("chunked_prefill", read_flag),
}
UNPRICED = {
    "cpu_offload_gb": "weights on the host are not priced",
    "swap_space": "swapped caches are not priced",
    "enable_lora": "adapters beside the weights are not priced",
    "enforce_eager": "without CUDA graphs decoding is slower; the stack is priced with them",
    "enable_eplb": "balancing experts is not priced; --imbalance says how uneven they are",
    "enable_dbo": "two overlapping batches are not priced",
    "kv_transfer_config": "transfers of caches between servers are not priced",
    **dict.fromkeys(
        ("decode_context_parallel_size", "dcp"),
        "a cache that tensor-parallel devices share out is not priced",
    ),
    "hf_overrides": "changes of the model's configuration are not read",
    "rope_scaling": "a longer context changes no size",
}


def _set_combinations(job: JobBuilder, settings: ToolSettings) -> None:
    """Set what takes more than one option, or an option and its opposite."""
    method = settings.text("quantization", "q")
    job.set("weights", quantised_type(method))  # None stays open
    if method and quantised_type(method) is None:
        job.notes.append(f"quantization {method}: its weights are read from the model's files")
    _read_speculation(job, settings)
    if (settings.text("max_model_len") or "").lower() in {"auto", "-1"}:
        job.notes.append(
            "max_model_len auto: the longest sequence that fits, which --max-context says"
        )
    for name in ("no_enable_prefix_caching", "no_enable_chunked_prefill"):
        if settings.flag(name):
            job.set(name.removeprefix("no_enable_"), False)
    for name in ("tensor", "pipeline", "data"):
        job.set_default(name, 1)
    if settings.flag("enable_expert_parallel", "ep"):  # over all devices of a pipeline stage
        job.set("expert", (job.find_count("tensor") or 1) * (job.find_count("data") or 1))
    job.set_default("gpu_memory_utilization", DEFAULT_MEMORY_SHARE)


def _read_speculation(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the number of draft tokens of a step, and the draft model or method.

    They stand in the JSON of `--speculative-config`, in its keys as options
    (`--speculative-config.model NAME`), or in options of older versions.
    """
    config: dict[str, object] = {}
    json_text = settings.text("speculative_config")
    if json_text and json_text.lstrip().startswith("{"):
        config = json.loads(json_text)
    for option in list(settings.values):
        if option.startswith("speculative_config."):
            key = option.removeprefix("speculative_config.")
            config[key] = settings.text(option)
    draft_tokens = config.get("num_speculative_tokens", settings.count("num_speculative_tokens"))
    if draft_tokens is None:  # nothing is guessed
        return
    job.set("speculative", int(str(draft_tokens)))
    draft = config.get("model") or settings.text("speculative_model") or config.get("method")
    job.set("draft", str(draft) if draft else None)


def list_words(settings: ToolSettings) -> list[str]:
    """Return a file of options as the words of a command; a true value is a flag."""
    words: list[str] = []
    for name, values in settings.values.items():
        is_flag = values in (["True"], ["true"])
        words += [f"--{name}"] if is_flag else [f"--{name}", *values]
    return words


ENGINE = EngineFormat(
    name="vllm",
    flags=FLAGS,
    model_options=("model", "model_tag"),
    has_positional_model=True,
    file_options=("config",),
    facts=FACTS,
    unpriced=UNPRICED,
    set_combinations=_set_combinations,
)
