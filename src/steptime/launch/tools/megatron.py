"""Megatron-LM's arguments, and those of ms-swift's `megatron sft`, as facts of a training."""

from __future__ import annotations

from steptime.launch.job import TRAINING, JobBuilder
from steptime.launch.launchers import LaunchedProgram
from steptime.launch.settings import (
    Files,
    ToolSettings,
    count,
    note_unpriced,
    parse_words,
    read_flag,
    set_optimizer,
    take_facts,
)
from steptime.launch.tools import trainer

READ_FROM = "Megatron-LM core 0.14, ms-swift 3.9"
FLAGS = frozenset({"use_mcore_models", "swiglu", "disable_bias_linear"})
FACTS = {
    "tensor_model_parallel_size": ("tensor", count),
    "pipeline_model_parallel_size": ("pipeline", count),
    "context_parallel_size": ("context", count),
    "expert_model_parallel_size": ("expert", count),
    "expert_tensor_parallel_size": ("expert_tensor", count),
    "num_virtual_stages_per_pipeline_rank": ("virtual", count),
    "micro_batch_size": ("micro_batch", count),
    "global_batch_size": ("global_batch", count),
    "seq_length": ("length", count),
    "max_length": ("length", count),
    "sequence_parallel": ("sequence_parallel", read_flag),
    "lora_rank": ("lora_rank", count),
    "packing": ("packed", read_flag),  # of ms-swift
}
SHAPE = (  # options that give the shape of the model, with ours
    ("layers", ("num_layers",)),
    ("width", ("hidden_size",)),
    ("heads", ("num_attention_heads",)),
    ("kv_heads", ("num_query_groups",)),
    ("ffn", ("ffn_hidden_size",)),
    ("head_width", ("kv_channels",)),
    ("max_length", ("max_position_embeddings",)),
    ("vocabulary", ("vocab_size", "padded_vocab_size")),
)
UNPRICED = {
    "moe_token_dispatcher_type": "the way of tokens to experts is the stack's",
    "overlap_param_gather_with_optimizer_step": "this overlap is not priced",
    "cpu_offloading": "activations on the host are given by --offload activations",
    "fp8_format": "the scaling recipe of float8 changes no price",
    "rampup_batch_size": "the batch grows; the whole batch is priced",
    "distribute_saved_activations": "saved activations that are shared out are not priced",
    "moe_extended_tp": "this way of splitting experts is not priced",
}


def read_megatron(launch: LaunchedProgram, words: list[str], files: Files) -> JobBuilder:
    """Read the arguments of a Megatron training.

    Args:
        launch: the command with its number of processes.
        words: arguments of the script.
        files: not read.
    """
    del files
    job = JobBuilder(tool="megatron", kind=TRAINING)
    settings = parse_words(words, FLAGS)
    trainer.read_devices(job, launch)
    take_facts(job, settings, FACTS)
    _read_model(job, settings)
    _read_stages(job, settings)
    _read_types(job, settings, is_swift=launch.program == "megatron")
    if "lora_rank" in job.facts:
        trainer.read_adapter(job, settings)
        if settings.text("train_type", "tuner_type") == "full":  # then the rank says nothing
            job.facts.pop("lora_rank", None)
    for name in ("tensor", "pipeline"):
        job.set_default(name, 1)
    note_unpriced(job, settings, UNPRICED)
    return job


def _read_model(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the model: its name, or its shape as model text of the family `transformer`."""
    job.model = settings.text("model", "load_hf", "hf_model", "model_name")
    shape = {ours: settings.count(*options) for ours, options in SHAPE}
    if job.model or not (shape["layers"] and shape["width"] and shape["heads"]):
        return
    words = [f"{name}={value}" for name, value in shape.items() if value]
    words += [f"{name}={value}" for name, value in _read_layers(settings).items()]
    job.model = "transformer:" + ",".join(words)
    if settings.count("num_experts"):
        job.notes.append("num_experts: the experts are not read from the arguments")


def _read_layers(settings: ToolSettings) -> dict[str, str]:
    """Return Megatron's flags of the layers as settings of the family `transformer`."""
    layers: dict[str, str] = {}
    if (settings.text("normalization") or "").lower() == "rmsnorm":
        layers["norm"] = "rms"
    if settings.flag("swiglu"):
        layers["activation"] = "swiglu"
    is_rotary = settings.text("position_embedding_type") == "rope"
    if is_rotary or settings.flag("use_rotary_position_embeddings"):
        layers["positions"] = "rotary"
    if settings.flag("disable_bias_linear"):
        layers["bias"] = "no"
    if settings.flag("untie_embeddings_and_output_weights"):
        layers["tied"] = "no"
    return layers


def _read_stages(job: JobBuilder, settings: ToolSettings) -> None:
    """Set the stages of a device where the layers of one are said."""
    layers = settings.count("num_layers")
    if not layers:
        return
    per_stage = settings.count("num_layers_per_virtual_pipeline_stage")
    pipeline = settings.count("pipeline_model_parallel_size") or 1
    if per_stage:  # `virtual` is the number of stages of a device
        job.set("virtual", max(1, layers // pipeline // per_stage))
    first_layers = settings.count("decoder_first_pipeline_num_layers")
    last_layers = settings.count("decoder_last_pipeline_num_layers")
    # A stated 0 is an end without layers; None leaves the end to the even share.
    first_stages = [] if first_layers is None else [first_layers]
    last_stages = [] if last_layers is None else [last_layers]
    if (first_stages or last_stages) and pipeline > 1:
        inner_stages = _share_out(
            layers - sum(first_stages) - sum(last_stages),
            stage_count=pipeline - len(first_stages) - len(last_stages),
        )
        job.set("stages", [str(count) for count in (*first_stages, *inner_stages, *last_stages)])


def _share_out(layers: int, stage_count: int) -> list[int]:
    """Return the layers of each of some stages, which share them out equally."""
    return [layers // stage_count] * stage_count if stage_count else []


def _read_types(job: JobBuilder, settings: ToolSettings, is_swift: bool) -> None:
    """Set type, optimizer, sharding and recomputation."""
    if settings.flag("bf16"):
        job.set("dtype", "bfloat16")
    elif settings.flag("fp16"):
        job.set("dtype", "float16")
    if settings.text("fp8_format") or settings.flag("fp8_hybrid", "fp8_e4m3"):
        job.set("dtype", "float8")
    set_optimizer(job, settings.text("optimizer"))
    job.set_default("optimizer", "adam")
    _read_sharding(job, settings, is_swift)
    if settings.flag("optimizer_cpu_offload"):
        job.set("offload", True)
    granularity = settings.text("recompute_granularity")
    if granularity is None and settings.flag("recompute_activations"):
        granularity = "selective"
    job.set("recompute", granularity)
    if not is_swift:
        job.set_default("recompute", "none")


def _read_sharding(job: JobBuilder, settings: ToolSettings, is_swift: bool) -> None:
    """Set the stage of ZeRO by Megatron's kinds of FSDP and its distributed optimizer."""
    if settings.flag("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2"):
        kind = settings.text("data_parallel_sharding_strategy") or "optim_grads_params"
        stages = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        job.set("zero", stages.get(kind, 3))
    elif settings.flag("use_distributed_optimizer"):
        job.set("zero", 1)
    elif not is_swift:  # Megatron-LM's own default; ms-swift has others
        job.set_default("zero", 0)
