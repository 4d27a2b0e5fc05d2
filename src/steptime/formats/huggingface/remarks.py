"""Remarks on a `config.json`: fields that are not counted, or not read."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from steptime.core.errors import shorten
from steptime.formats.huggingface.quantised import describe_quantisation

MAX_FIELD_NAMES = 8
HARMLESS = re.compile(  # fields that change neither shapes nor work
    r"""^_|^(name|architectures|auto_map|model_type|id2label|label2id|num_labels|problem_type
    |torch_dtype|dtype|quantization_config|is_encoder_decoder|is_decoder|finetuning_task
    |pretraining_tp|torchscript|use_bfloat16|tie_encoder_decoder|cross_attention_hidden_size
    |length_penalty|prefix|chunk_size_feed_forward|decoder_start_token_id
    |position_embedding_type|n_ctx|n_group|topk_group|topk_method|norm_topk_prob|scoring_func
    |ep_size|num_nextn_predict_layers|moe_layer_freq|query_pre_attn_scalar|hidden_activation
    |original_max_position_embeddings)$
    |token|rop(e|out)|drop|pdrop|^use_cache|version|init|eps|^task_|^summary_|scal|coef|jitter
    |softcap|^output_|^return_|gradient_|penalty|beam|temperature|top_[kp]$|^max_length
    |^min_length|_act_fn$|swiglu_limit|swiglu_alpha|^attn_implementation|^router_|seq_aux
    |^use_mla|mtp|^attn_type_list$|^use_routing_bias$|^moe_norm_min$|^mamba_ssm_dtype$
    |^attn_output_gate$|^time_step|^mamba_(ssm|hidden_act|chunk|proj_bias|norm_before)|residual|multiplier|^use_mamba|^hc_eps$|
    ^index_(skip|share|topk_)|^(image|video|vision)_|^media_""",
    re.VERBOSE,
)


def describe_file(table: Mapping[str, Any], read_fields: Collection[str]) -> list[str]:
    """Describe what a reader must know of a file whose network is counted."""
    remarks = []
    if table.get("auto_map"):
        remarks.append("the code that auto_map names is not run")
    remarks += describe_quantisation(table)
    dtype = table.get("dtype") or table.get("torch_dtype")
    if isinstance(dtype, str) and dtype not in ("float32", "auto"):
        remarks.append(f"its weights are {shorten(dtype)[1:-1]}; --dtype says what is computed")
    return [*remarks, *describe_unread(table, read_fields)]


def describe_unread(table: Mapping[str, Any], read_fields: Collection[str]) -> list[str]:
    """Describe the fields of a file that are not read, if there are any."""
    unread = [key for key in table if key not in read_fields and not HARMLESS.search(key)]
    if not unread:
        return []
    names = ", ".join(shorten(key)[1:-1] for key in unread[:MAX_FIELD_NAMES])
    return [f"fields that are not read: {names}" + (", ..." if unread[MAX_FIELD_NAMES:] else "")]
