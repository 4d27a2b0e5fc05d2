#!/usr/bin/env python3
"""Fine-tuning and decoding by transformers and PEFT on a GPU, as rows that steptime reads.

Needs a Python that has transformers, peft and torch, and a GPU; weights are drawn, none is loaded.
The rows of trainings have the columns of docs/examples/fine-tuning.csv, so that
`steptime evaluate` scores them; those of decoding have the first token's time and a token's.

    python benchmarks/transformers_gpu.py --device-name h100-sxm5 --out DIR
"""

from __future__ import annotations

import argparse
import csv
import gc
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

WARM_UP, STEPS = 2, 5
LLAMA: dict[str, dict[str, Any]] = {
    "llama3_1_8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    "llama3_2_3b": {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28},
    "llama3_2_1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
}
HEADS = {"llama3_1_8b": 32, "llama3_2_3b": 24, "llama3_2_1b": 32, "tiny": 8}
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ON = {"attention": LINEAR[:4], "linear": LINEAR}

Training = tuple[str, int, int, tuple[int, str] | None, bool]
TRAININGS: tuple[Training, ...] = (  # of a model: batch, length, rank of LoRA, and if recomputed
    ("llama3_2_1b", 2, 2048, None, False),
    ("llama3_2_1b", 8, 2048, None, True),
    ("llama3_2_1b", 8, 1024, (16, "linear"), False),
    ("llama3_2_3b", 1, 2048, None, False),
    ("llama3_2_3b", 4, 2048, None, True),
    ("llama3_2_3b", 4, 2048, (16, "linear"), False),
    ("llama3_1_8b", 1, 2048, (16, "linear"), False),
    ("llama3_1_8b", 2, 2048, (8, "attention"), False),
    ("llama3_1_8b", 4, 2048, (16, "linear"), True),
    ("llama3_1_8b", 1, 8192, (16, "linear"), True),
)
DECODING = (  # model, batch, prompt
    ("llama3_2_1b", 1, 512),
    ("llama3_2_1b", 32, 512),
    ("llama3_1_8b", 1, 512),
    ("llama3_1_8b", 8, 2048),
    ("llama3_1_8b", 64, 512),
)


def model_of(name: str, place: str) -> Any:
    """Return a model of transformers in bfloat16 with weights that are drawn on the device."""
    tied = name in ("llama3_2_1b", "llama3_2_3b")
    config = transformers.LlamaConfig(
        **LLAMA[name],
        num_attention_heads=HEADS[name],
        num_key_value_heads=8,
        vocab_size=1000 if name == "tiny" else 128256,
        max_position_embeddings=131072,
        tie_word_embeddings=tied,
        attn_implementation="sdpa",
        dtype="bfloat16",
    )
    with torch.device(place):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def finish(place: str) -> None:
    """Wait until the device has done what it was given."""
    if place != "cpu":
        torch.cuda.synchronize()


def seconds(call: Callable[[], object], number: int, place: str) -> float:
    """Return the median time of a call."""
    taken = []
    for _ in range(number):
        finish(place)
        begin = time.perf_counter()
        call()
        finish(place)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def train(
    name: str, batch: int, length: int, lora: tuple[int, str] | None, recompute: bool, place: str
) -> tuple[float, int, int]:
    """Return the seconds of a training step, and the most bytes allocated and reserved."""
    if place != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = model_of(name, place)
    if lora is not None:
        rank, on = lora
        config = peft.LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules=list(ON[on]), task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # as transformers 5
        model.enable_input_require_grads()
    model.train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-5, fused=place != "cpu")
    tokens = torch.randint(0, model.config.vocab_size, (batch, length), device=place)

    def step() -> None:
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds(step, WARM_UP, place)
    taken = seconds(step, STEPS, place)
    if place == "cpu":
        return taken, 0, 0
    return taken, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


@torch.inference_mode()
def decode(name: str, batch: int, prompt: int, place: str) -> tuple[float, float]:
    """Return the seconds until the first tokens, and of each token after them."""
    model = model_of(name, place).eval()
    tokens = torch.randint(0, model.config.vocab_size, (batch, prompt), device=place)

    def first() -> Any:
        return model(input_ids=tokens, use_cache=True, logits_to_keep=1)

    torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for each length, for 50 ms
    seconds(first, 1, place)
    ttft_s = seconds(first, 3, place)
    state = {"cache": first().past_key_values, "next": tokens[:, -1:]}

    def following() -> None:
        result = model(input_ids=state["next"], past_key_values=state["cache"], use_cache=True)
        state["next"] = result.logits[:, -1:].argmax(-1)

    seconds(following, 4, place)
    return ttft_s, seconds(following, 24, place)


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as CSV, all that there are so far."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Measure each training and each decoding; a row that fails is said and left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", default="cuda")
    parser.add_argument("--device-name", default="h100-sxm5")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--tiny", action="store_true", help="a small model, to try this file")
    chosen = parser.parse_args()
    day = datetime.now(UTC).date().isoformat()
    versions = (
        f"torch {torch.__version__}; transformers {transformers.__version__}; "
        f"peft {peft.__version__}"
    )
    trainings: list[dict[str, object]] = []
    decodings: list[dict[str, object]] = []
    for name, batch, length, lora, recompute in TRAININGS:
        model = "tiny" if chosen.tiny else name
        size = min(length, 64) if chosen.tiny else length
        row = f"{model} batch {batch} length {size} {lora or 'full'} recompute {recompute}"
        try:
            taken, allocated, reserved = train(model, batch, size, lora, recompute, chosen.place)
        except RuntimeError as error:
            print(f"{row}: {str(error).splitlines()[0]}", flush=True)
            continue
        finally:
            gc.collect()
        print(f"{row}: {taken:.4f} s, {allocated / 2**30:.2f} GiB", flush=True)
        trainings.append(
            {
                "set": "measured",
                "model": name,
                "device": chosen.device_name,
                "device_count": 1,
                "batch": batch,
                "length": size,
                "lora": f"r={lora[0]},on={lora[1]}" if lora else "",
                "weights": "",
                "optimizer": "adam",
                "recompute": "full" if recompute else "no",
                "update_early": "no",
                "zero": 0,
                "offload": "none",
                "dtype": "bfloat16",
                "stack": "hf-2026",
                "tokens_per_s": round(batch * size / taken, 1),
                "memory_GiB": round(allocated / 2**30, 3),
                "date": day,
                "source": f"benchmarks/transformers_gpu.py; {versions}",
                "assumed": f"reserved {reserved / 2**30:.3f} GiB",
            }
        )
        write(chosen.out / "fine-tuning.csv", trainings)
    for name, batch, prompt in DECODING:
        model = "tiny" if chosen.tiny else name
        size = min(prompt, 64) if chosen.tiny else prompt
        try:
            ttft_s, tpot_s = decode(model, batch, size, chosen.place)
        except RuntimeError as error:
            print(f"{model} batch {batch}: {str(error).splitlines()[0]}", flush=True)
            continue
        finally:
            gc.collect()
        times = f"{1e3 * ttft_s:.2f} ms, then {1e3 * tpot_s:.2f} ms"
        print(f"{model} batch {batch} prompt {size}: {times}", flush=True)
        decodings.append(
            {
                "model": name,
                "device": chosen.device_name,
                "batch": batch,
                "prompt": size,
                "dtype": "bfloat16",
                "ttft_ms": round(1e3 * ttft_s, 3),
                "tpot_ms": round(1e3 * tpot_s, 3),
                "date": day,
                "versions": versions,
            }
        )
        write(chosen.out / "decoding.csv", decodings)


if __name__ == "__main__":
    main()
