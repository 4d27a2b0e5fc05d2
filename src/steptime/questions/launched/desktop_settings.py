"""Facts of a job of llama.cpp or Ollama as options of `serve`."""

from collections.abc import Mapping

from steptime.core.json_types import JsonObject
from steptime.launch.job import Facts

DESKTOP_STACKS = {"llamacpp": "llama.cpp", "ollama": "ollama"}
ALL_LAYERS_OF_EXPERTS = 1000  # of `--cpu-moe` without a number: more than any network has
DEFAULT_WEIGHTS = "q4_k_m"  # of a download without a type (common/arg.cpp; Ollama's library)
MAX_INPUT_TOKENS = 1024  # the request that `serve` assumes
MAX_OUTPUT_TOKENS = 128
OPTION_BY_FACT = {"ubatch": "ubatch", "n_cpu_moe": "cpu_moe", "max_model_len": "context"}


def make_desktop_options(tool: str, facts: Facts, user_options: Mapping[str, object]) -> JsonObject:
    """Return the options of `serve` for a job of one's own machine.

    Args:
        tool: the tool of the job.
        facts: the facts of the job.
        user_options: options that the user gives; a longer request widens the context, and slots
            that are busy share it.
    """
    options: JsonObject = {"stack": DESKTOP_STACKS[tool]}
    for fact, option in OPTION_BY_FACT.items():
        if fact in facts:
            options[option] = facts[fact]
    job_slots = facts.get("max_num_seqs")
    if isinstance(job_slots, int) and job_slots > 1:
        options["running_sequences"] = job_slots
    total_context = facts.get("context_total")
    if isinstance(total_context, int):
        # All slots share it equally. The user's number of slots comes before the job's.
        slots = user_options.get("running_sequences") or options.get("running_sequences", 1)
        options["context"] = max(1, total_context // int(str(slots)))
    if isinstance(facts.get("gpu_layers"), int):
        options["gpu_layers"] = facts["gpu_layers"]
    if facts.get("experts_on_cpu"):
        options["cpu_moe"] = ALL_LAYERS_OF_EXPERTS
    options["weights"] = facts.get("weights", DEFAULT_WEIGHTS)
    # `kv_dtype_k`: llama.cpp sets the types of keys and values apart; the keys' stands for both.
    cache_type = facts.get("kv_dtype", facts.get("kv_dtype_k"))
    if cache_type:
        options["kv"] = cache_type
    has_user_lengths = "input" in user_options or "output" in user_options
    if "context" in options and not has_user_lengths:
        options |= _request_lengths(int(options["context"]))
    return options


def _request_lengths(context: int) -> JsonObject:
    """Return the tokens of the usual request of `serve`, fewer where the context has less room."""
    output_tokens = min(MAX_OUTPUT_TOKENS, context // 2)
    return {"output": output_tokens, "input": min(MAX_INPUT_TOKENS, context - output_tokens)}
