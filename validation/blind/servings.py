"""Blind servings: bursts, fixed numbers of users, arrival rates, static batches, and watts."""

from math import ceil

from steptime.core.errors import InputError
from validation.blind.cells import BlindRow, Cells, parse_number, parse_pairs
from validation.layouts import stack_at

MODELS = {
    "Qwen/Qwen3-14B": "qwen3_14b",
    "Qwen/Qwen3-32B": "qwen3_32b",
    "Qwen/Qwen3-8B": "qwen3_8b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "qwen3_235b_a22b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3_30b_a3b",
    "Qwen/Qwen3-30B-A3B-Thinking-2507": "qwen3_30b_a3b",
    "openai/gpt-oss-20b": "gpt_oss_20b",
    "openai/gpt-oss-120b": "gpt_oss_120b",
    "zai-org/GLM-4.5-Air": "glm4_5_air",
    "zai-org/GLM-4.6": "glm4_5",
    "meta-llama/Llama-2-7b-hf": "llama2_7b",
    "meta-llama/Llama-2-7b-chat-hf": "llama2_7b",
    "meta-llama/Llama-2-70b-hf": "llama2_70b",
    "meta-llama/Llama-3.1-8B": "llama3_1_8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3_1_8b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama3_1_70b",
    "meta-llama/Llama-3.1-405B-Instruct-FP8": "llama3_1_405b",
    "meta-llama/Meta-Llama-3-8B": "llama3_8b",
    "meta-llama/Meta-Llama-3-70B": "llama3_70b",
    "mistralai/Mistral-7B-v0.1": "mistral_7b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral_8x7b",
    "mistralai/Mixtral-8x22B-v0.1": "mixtral_8x22b",
    "mistralai/Mixtral-8x22B-Instruct-v0.1": "mixtral_8x22b",
    "codellama/CodeLlama-34b-Instruct-hf": "llama2_34b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama3_3_70b",
    "Qwen/Qwen2-7B": "qwen2_5_7b",
    "Qwen/Qwen2-72B": "qwen2_5_72b",
    "Llama-3.1-70B": "llama3_1_70b",
    "Qwen3-32B": "qwen3_32b",
}
YI_34B = (
    "transformer:layers=60,width=7168,heads=56,kv_heads=8,ffn=20480,vocabulary=64000,norm=rms,"
    "activation=swiglu,positions=rotary,bias=no,tied=no,max_length=4096"
)
NEMO_12B = (
    "transformer:layers=40,width=5120,heads=32,kv_heads=8,head_width=128,ffn=14336,norm=rms,"
    "vocabulary=131072,activation=swiglu,positions=rotary,bias=no,tied=no,max_length=131072"
)
QWEN_14B = (
    "transformer:layers=48,width=5120,heads=40,kv_heads=8,ffn=13824,vocabulary=152064,norm=rms,"
    "activation=swiglu,positions=rotary,bias=no,tied=no,qkv_bias=yes,max_length=32768"
)
MODELS |= {
    "01-ai/Yi-34B": YI_34B,
    "mistralai/Mistral-Nemo-Instruct-2407": NEMO_12B,
    "Qwen2.5-14B": QWEN_14B,
}
SOFTWARE = {
    "vLLM": "vllm",
    "SGLang": "sglang",
    "TensorRT-LLM": "trt-llm",
}
FEW = 8  # requests in flight up to which a page shows no queue
CHAT_TOKENS = 200  # of a prompt of a chat: the source does not say it
SHAREGPT_MEANS = ((213.0, 235.0),)  # tokens of a prompt, by the tokeniser of each model
CACHE_BLOCK = 16  # tokens: vLLM's, of which the last of a prompt is computed again
LONG_COLLECTIVE_S = 1e-4  # below it the time is that of starting a collective
NODE_DEVICES = 8
HALF_BYTES = 2
AT_ONCE = 0.6  # of the sequences that make a token between two tokens of one, where all of them run
STATIC_MOST = 64  # sequences of a static batch that servers run at once


def find_model(text: str) -> str:
    """Return the named network of a repository of weights; raises `InputError`."""
    base = text.removesuffix("-FP8").removesuffix("-fp8")
    name = MODELS.get(text) or MODELS.get(base)
    if name is None:
        raise InputError(f"{text}: no such model is known")
    return name


def find_formats(text: str) -> dict[str, str]:
    """Return the data type of products and that of weights, of a source's words for both."""
    if "mxfp4" in text:
        return {"dtype": "bfloat16", "weights": "mxfp4"}
    return {"dtype": "float8" if "fp8" in text else "bfloat16", "weights": ""}


def read_gpustack(cells: Cells) -> BlindRow:
    """Return a server of gpustack's pages: few users, or a burst of all requests at once."""
    software = SOFTWARE[cells["framework"]]
    plan = parse_pairs(cells["plan"])
    if plan.get("speculative", "no") != "no":
        raise InputError("guessed tokens whose rate of acceptance is not said")
    is_burst = plan.get("max_concurrency", "unlimited") == "unlimited"
    requests = parse_number(plan.get("requests", 0))
    if is_burst and not requests:
        raise InputError("how many requests come at once is not said")
    if "8RPS" in str(cells["note"]) or "rate=" in cells["plan"]:
        raise InputError("requests come at a rate: their time is not the server's")
    what = cells["what"]
    if is_burst and what != "run":
        raise InputError("a token of a burst waits for the queue: the whole burst is compared")
    input_tokens, output_tokens = (float(part) for part in str(cells["length"]).split("+"))
    texts = {
        "model": find_model(cells["model"]),
        "device": cells["device"],
        **find_formats(str(cells["dtype"])),
        "stack": stack_at(software, "2025-12"),
    }
    numbers = {
        "tensor": parse_number(plan.get("tp", 1), 1),
        "data": parse_number(plan.get("dp", 1), 1),
        "input": max(1, round(input_tokens)),
        "output": max(1, round(output_tokens)),
        "concurrency": requests if is_burst else float(plan["max_concurrency"]),
        "requests": requests,
    }
    if is_burst and is_chat(input_tokens):
        texts["lengths"] = "sharegpt"
    quantity = {"run": "burst_s", "token": "tpot_s", "first_token": "ttft_s"}[what]
    if what == "run" and not is_burst:
        raise InputError("a whole run of few users says what its tokens say")
    kind = "burst" if is_burst else "serve"
    return BlindRow(kind, texts, numbers, {quantity: cells["seconds"]})


def is_chat(input_tokens: float) -> bool:
    """Whether requests of a page are ShareGPT's: random ones have the mean of a round length."""
    return any(low <= input_tokens <= high for low, high in SHAREGPT_MEANS)


def read_blis(cells: Cells) -> BlindRow:
    """Return a stage of a vLLM server under a constant arrival rate."""
    texts = {
        "model": find_model(cells["model"]),
        "device": cells["gpu"],
        **find_formats(str(cells["dtype"])),
        "stack": stack_at("vllm", "2026-01"),
    }
    input_tokens = round(cells["mean_input_tokens"])
    numbers = {
        "tensor": cells["tp"],
        "rate": cells["rate_per_s"],
        "requests": cells["requests"] or cells["rate_per_s"] * cells["stage_s"],
        "input": input_tokens,
        "output": _output_tokens(cells),
        "prefix": max(0, input_tokens - CACHE_BLOCK),  # users repeat one question (README)
        "max_batch": cells["max_num_seqs"] or 0,
    }
    measured = {
        "request_s": cells["e2e_mean_s"],
        "ttft_s": cells["ttft_mean_s"],
        "tpot_s": cells["itl_mean_s"],
    }
    return BlindRow("rate", texts, numbers, measured)


def _output_tokens(cells: Cells) -> int:
    """Return the mean output of a stage, which its own times tell.

    Where a run's own file is not public, the table's column is the mean of runs of other models
    under the same load. Llama 3.1 8B ends 4 % earlier than these, Llama 2 once 23 %.
    """
    decoding_s = float(cells["e2e_mean_s"] - cells["ttft_mean_s"])
    return 1 + max(0, round(decoding_s / float(cells["itl_mean_s"])))


def read_ml_energy(cells: Cells) -> BlindRow:
    """Return watts of a device and seconds of a token of a vLLM server of chats."""
    if "FP8" in cells["model"]:
        cells = {**cells, "weights": "fp8"}
    texts = {
        "model": find_model(cells["model"]),
        "device": cells["gpu"],
        **find_formats(str(cells["weights"])),
        "stack": stack_at("vllm", "2025-12"),
    }
    numbers = {
        "tensor": cells["gpus"] / cells["dp"],  # vLLM's experts lie on tensor x data ranks
        "data": cells["dp"],
        "expert": cells["ep"] if cells["dp"] > 1 else 1,
        "batch": max(1, round(cells["avg_batch_size"])),
        "input": CHAT_TOKENS,
        "output": round(cells["avg_output_len"]),
    }
    tpot_s = cells["median_itl_ms"] / 1000
    decoding_sequences = cells["output_throughput_tokens_per_sec"] * tpot_s
    if decoding_sequences < AT_ONCE * cells["avg_batch_size"]:
        raise InputError("sequences wait for room in the cache: how many run at once is not said")
    measured = {"device_w": cells["avg_power_watts"] / cells["gpus"], "tpot_s": tpot_s}
    return BlindRow("serve", texts, numbers, measured)


def read_pipeweave(cells: Cells) -> BlindRow:
    """Return a static batch of SGLang: its prefill, and a step of decoding."""
    texts = {
        "model": find_model(cells["model"]),
        "device": cells["gpu"],
        "dtype": "bfloat16",
        "weights": "",
        "stack": stack_at("sglang", "2025-06"),
    }
    numbers = {
        "tensor": cells["tp"],
        "batch": cells["batch"],
        "input": round(cells["input_tokens"]),
        "output": cells["output_tokens"],
    }
    measured = {"prefill_s": cells["prefill_s"], "tpot_s": cells["decode_step_s"]}
    return BlindRow("serve", texts, numbers, measured)


def read_inference_bench(cells: Cells) -> BlindRow:
    """Return a whole static batch of LLM-Inference-Bench; software of 2024."""
    software = {"vLLM": ("vllm", "2024-12"), "TensorRT-LLM": ("trt-llm", "2023-12")}
    framework = cells["framework"]
    if framework not in software:
        raise InputError(f"{framework}: no stack is known")
    if cells["batch"] > STATIC_MOST:
        raise InputError(f"more than {STATIC_MOST} sequences: what runs at once is not said")
    stack, date = software[framework]
    texts = {
        "model": find_model(cells["model"]),
        "device": cells["device"],
        "dtype": "bfloat16",
        "weights": "",
        "stack": stack_at(stack, date),
    }
    numbers = {
        "tensor": cells["devices"],
        "batch": cells["batch"],
        "input": cells["input_tokens"],
        "output": cells["output_tokens"],
    }
    return BlindRow("serve", texts, numbers, {"request_s": cells["seconds"]})


def read_exchange(cells: Cells) -> BlindRow:
    """Return a collective of PipeWeave's tables."""
    kinds = {"all_reduce": "all_reduce", "send_recv": "send", "sendrecv": "send"}
    kind = kinds.get(cells["collective"])
    if kind is None:
        raise InputError(f"{cells['collective']} is not asked")
    texts = {"device": cells["gpu"], "collective": kind, "stack": "torch-eager"}
    numbers = {
        "device_count": cells["devices"],
        "per_node": max(cells["per_node"], 2),
        "bytes": ceil(cells["bytes"]),
    }
    return BlindRow("exchange", texts, numbers, {"exchange_s": cells["seconds"]})


def read_nccl(cells: Cells) -> BlindRow:
    """Return a collective of nccl-tests in one node, of AIConfigurator's tables.

    Shorter ones are left out: nccl-tests issues collectives back to back and pays no start.
    """
    kinds = {"alltoall": "all_to_all"}
    kind = kinds.get(cells["op"], cells["op"])
    if cells["table"] != "nccl" or cells["dtype"] != "half":
        raise InputError("not one of nccl-tests in 16 bit")
    if cells["seconds"] < LONG_COLLECTIVE_S or cells["num_gpus"] > NODE_DEVICES:
        raise InputError("too short, or of several nodes")
    texts = {"device": cells["device"], "collective": kind, "stack": "torch-eager"}
    numbers = {
        "device_count": cells["num_gpus"],
        "per_node": cells["num_gpus"],
        "bytes": HALF_BYTES * ceil(cells["message_size"]),
    }
    return BlindRow("exchange", texts, numbers, {"exchange_s": cells["seconds"]})
