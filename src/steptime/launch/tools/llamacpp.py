"""`llama-server` and its relatives, and `ollama run`: their options as facts of a server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from steptime.launch.job import SERVING, JobBuilder
from steptime.launch.settings import (
    ToolSettings,
    count,
    note_unpriced,
    parse_words,
    split_names,
    take_facts,
)

READ_FROM = "llama.cpp b6500"
ALL_LAYERS = 99  # people write 99 or 999 for every layer
FLAGS = split_names(
    "jinja no_mmap mlock cpu_moe cmoe no_warmup no_webui cont_batching cb metrics swa_full "
    "embedding embeddings no_kv_offload nkvo verbose v kv_unified reranking no_perf"
)
FACTS = {
    **dict.fromkeys(("ub", "ubatch_size"), ("ubatch", count)),
    **dict.fromkeys(("np", "parallel"), ("max_num_seqs", count)),
    **dict.fromkeys(("ncmoe", "n_cpu_moe"), ("n_cpu_moe", count)),
    **dict.fromkeys(("draft", "draft_max", "draft_n"), ("speculative", count)),
}
UNPRICED = {
    **dict.fromkeys(("nkvo", "no_kv_offload"), "a cache on the host is not priced"),
    **dict.fromkeys(("ts", "tensor_split"), "uneven shares of several cards are not priced"),
    **dict.fromkeys(("rope_scaling", "rope_scale"), "a longer context changes no size"),
    "lora": "adapters beside the weights are not priced",
}
QUANT = re.compile(
    r"(?:^|[-._/:])((?:UD-)?(?:I?Q\d(?:_[01KSMLX]+|_NL|_XXS|_XS)*|MXFP4|BF16|F16|F32))"
    r"(?=[-._:]|$)",
    re.IGNORECASE,
)
PLAIN_FILES = {"f16", "bf16", "f32"}  # their tensors say more than the name of the file
ENVIRONMENT = re.compile(r"LLAMA_ARG_(\w+)")
OPTION_BY_VARIABLE = {"n_parallel": "parallel", "ubatch": "ubatch_size"}  # where they differ


def read_llamacpp(words: list[str], environment: Mapping[str, str]) -> JobBuilder:
    """Read the words behind `llama-server`.

    Args:
        words: arguments of the command.
        environment: variables, of which `LLAMA_ARG_...` are options, too.
    """
    job = JobBuilder(tool="llamacpp", kind=SERVING)
    settings = parse_words(words, FLAGS)
    _add_variables(settings, environment)
    file, repository = settings.text("m", "model"), settings.text("hf", "hf_repo", "hfr")
    job.model = repository or file
    take_facts(job, settings, FACTS)
    _read_weights(job, [settings.text("hff", "hf_file"), file, repository])
    context = settings.count("c", "ctx_size")
    job.set("context_total", context or None)  # 0 is that of the model; None stays open
    _read_host(job, settings)
    _read_cache(job, settings)
    job.set("draft", settings.text("md", "model_draft", "hfd"))
    note_unpriced(job, settings, UNPRICED)
    return job


def _add_variables(settings: ToolSettings, environment: Mapping[str, str]) -> None:
    """Add the options that variables say, `LLAMA_ARG_...`, where the command does not say them."""
    for name, value in environment.items():
        match = ENVIRONMENT.fullmatch(name)
        if match:
            variable = match[1].lower()
            option = OPTION_BY_VARIABLE.get(variable, variable)
            if option not in settings:
                settings.put(option, [value])


def _read_weights(job: JobBuilder, names_of_files: Sequence[str | None]) -> None:
    """Set the type of the weights that the name of a file or of a download says."""
    for name in names_of_files:
        # The last type of a name counts: `llama-7b-bf16-q4_k_m.gguf` is quantised to `q4_k_m`.
        types = QUANT.findall(name.removesuffix(".gguf")) if name else []
        weights = types[-1].lower().removeprefix("ud-") if types else ""
        if weights and weights not in PLAIN_FILES:
            job.set("weights", weights)
            return


def _read_host(job: JobBuilder, settings: ToolSettings) -> None:
    """Set how many layers, and which experts, lie on the device."""
    layers_text = settings.text("ngl", "gpu_layers", "n_gpu_layers")
    if layers_text is not None:
        layer_count = int(layers_text) if layers_text.isdigit() else None
        is_large_number = layer_count is not None and layer_count >= ALL_LAYERS
        is_all = layers_text in {"all", "-1"} or is_large_number
        job.set("gpu_layers", "all" if is_all else layer_count)
    patterns = settings.texts("ot", "override_tensor")  # such as `.ffn_.*_exps.=CPU`
    moves_experts = any("exps" in text and text.upper().endswith("CPU") for text in patterns)
    moves_all_experts = moves_experts and not _names_layers(patterns)  # not only some layers'
    if settings.flag("cpu_moe", "cmoe") or moves_all_experts:
        job.set("experts_on_cpu", "all")
    elif patterns:
        job.notes.append(f"override-tensor {','.join(patterns)}: which tensors lie on the host")


def _names_layers(patterns: list[str]) -> bool:
    """Return whether a pattern of tensors chooses layers by their number."""
    return any(re.search(r"blk\\?\.[\[(\d]", pattern) for pattern in patterns)


def _read_cache(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the types of keys and values; float16 is the documented default."""
    words = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
    key_word = settings.text("ctk", "cache_type_k")
    value_word = settings.text("ctv", "cache_type_v")
    key_dtype = words.get(key_word, key_word) if key_word else "float16"  # llama.cpp's default
    value_dtype = words.get(value_word, value_word) if value_word else "float16"
    if key_dtype != value_dtype:
        job.set("kv_dtype_k", key_dtype)
        job.set("kv_dtype_v", value_dtype)
    elif key_word:
        job.set("kv_dtype", key_dtype)
    else:
        job.set_default("kv_dtype", key_dtype)


def read_ollama(words: list[str], environment: Mapping[str, str]) -> JobBuilder:
    """Read the words behind `ollama`: `run NAME`; sizes come from its variables.

    Args:
        words: arguments of the command.
        environment: variables, such as `OLLAMA_CONTEXT_LENGTH`.
    """
    job = JobBuilder(tool="ollama", kind=SERVING)
    settings = parse_words(words, frozenset({"verbose"}))
    subcommands = {"run", "serve", "pull"}
    models = [word for word in settings.positional if word not in subcommands]  # `run NAME`
    job.model = models[0] if models else None
    _read_weights(job, models[:1])
    for variable, fact in (
        ("OLLAMA_CONTEXT_LENGTH", "max_model_len"),
        ("OLLAMA_NUM_PARALLEL", "max_num_seqs"),
    ):
        if environment.get(variable, "").isdigit():
            job.set(fact, int(environment[variable]))
    cache_type = environment.get("OLLAMA_KV_CACHE_TYPE", "")
    kv_dtype = "float16" if cache_type == "f16" else cache_type
    job.set("kv_dtype", kv_dtype or None)
    note_unpriced(job, settings, reasons={})  # lists the options that no fact holds
    return job
