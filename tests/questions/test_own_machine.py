"""`serve` and `fit` of one's own machine, by Python and by commands of other tools."""

from pathlib import Path

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.questions.fit.desktop import DesktopFitAnswer
from steptime.questions.serve.desktop_answer import DesktopAnswer
from tests.formats.gguf_files import decoder_metadata, decoder_tensors, write_gguf


def serve(*words: object, **options: object) -> DesktopAnswer:
    """Return the answer of `serve`, which is one of one's own machine."""
    answer = steptime.serve(*words, **options)
    assert isinstance(answer, DesktopAnswer)
    return answer


def fit(*words: object, **options: object) -> DesktopFitAnswer:
    """Return the answer of `fit`, which is one of one's own machine."""
    answer = steptime.fit(*words, **options)
    assert isinstance(answer, DesktopFitAnswer)
    return answer


def test_weights_of_gguf_mean_llama_cpp() -> None:
    """The stack is assumed and said so; a Mac has it without a word."""
    answer = serve("llama3_8b", "RTX 3070", weights="Q4_K_M", input=1, output=1024)
    assert (answer.stack, answer.assumed["stack"]) == ("llama.cpp", "llama.cpp")
    assert answer.fits
    assert answer.tpot_low_s <= 1 / 70.94 <= answer.tpot_high_s
    mac = serve("llama3_8b", "M2 Ultra", input=1, output=1024, dtype="float16")
    assert (mac.stack, mac.weights) == ("llama.cpp", "f16")
    assert mac.tpot_low_s <= 1 / 36.25 <= mac.tpot_high_s


def test_a_file_is_served_by_what_its_header_says(tmp_path: Path) -> None:
    """MODEL is a GGUF file; its weights are those of its tensors."""
    path = write_gguf(tmp_path / "m.gguf", decoder_metadata("llama"), decoder_tensors(range(2)))
    answer = serve(str(path), "M4 Max", memory="48GB", input=100, output=28)
    assert answer.weights == "q4_k_m"
    assert "weights" not in answer.assumed
    assert answer.usable_bytes == pytest.approx(36 * 2**30, rel=0.01)
    assert fit(str(path), "RTX 3070").rows[0].file_bytes == answer.file_bytes


def test_a_file_of_few_bits_under_a_server(tmp_path: Path) -> None:
    """A server has weights of 4 bits; it is told which types it does not run."""
    metadata = decoder_metadata("llama")
    path = str(write_gguf(tmp_path / "n.gguf", metadata, decoder_tensors(range(2))))
    assert steptime.serve(path, "RTX 4090", stack="vllm", input=64).weights == "int4"
    metadata["general.file_type"] = 18
    path = str(write_gguf(tmp_path / "o.gguf", metadata, decoder_tensors(range(2))))
    with pytest.raises(InputError, match="weights of q6_k"):
        steptime.serve(path, "RTX 4090", stack="vllm", input=64)
    assert steptime.predict(path, "RTX 4090", 1).step_s > 0


def test_all_weights_are_one_table() -> None:
    """The rows fall in size; what fits is the end of the table; speed has intervals."""
    answer = fit("qwen3_14b", "RTX 3070", weights="all", max_context=True)
    sizes = [row.file_bytes for row in answer.rows]
    assert len(sizes) > 12
    assert sizes == sorted(sizes, reverse=True)
    fitting = [bool(row.fits) for row in answer.rows]
    assert fitting == sorted(fitting)
    assert answer.best_weights == next(row.weights for row in answer.rows if row.fits)
    assert "context of" in answer.headline[0]
    for row in answer.rows:
        assert row.tokens_per_s_low < row.tokens_per_s_per_user < row.tokens_per_s_high


def test_what_lacks_memory_names_a_change_that_fits() -> None:
    """The change is an option; with it the answer fits."""
    answer = serve("llama3_70b", "RTX 4090", weights="q4_k_m")
    assert not answer.fits
    assert answer.fitting_change == "--pipeline 2"
    assert serve("llama3_70b", "RTX 4090", weights="q4_k_m", pipeline=2).fits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 2}, "--rate is of servers of many requests"),
        ({"tensor": 2, "pipeline": 2}, "nearest: one"),
        ({"context": 100}, "--context 100"),
        ({"cpu_moe": 3}, "no experts"),
        ({"host": "nosuch"}, "nosuch"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: dict[str, object], message: str
) -> None:
    """Each gets one line with the option."""
    with pytest.raises(InputError, match=message):
        steptime.serve("llama3_8b", "RTX 4090", weights="q4_k_m", **options)


def test_an_unknown_type_names_the_nearest() -> None:
    """A slip in a type of GGUF gets the types of llama.cpp, not those of a training."""
    for question in (steptime.fit, steptime.serve):
        with pytest.raises(InputError, match=r"known: .*q4_k_m"):
            question("llama3_8b", "RTX 3070", weights="q4_k_x")


def test_options_of_llama_cpp_are_refused_beside_a_server() -> None:
    """vLLM has no layers on the host."""
    with pytest.raises(InputError, match=r"--gpu-layers goes with --stack llama\.cpp"):
        steptime.serve("llama3_8b", "RTX 4090", gpu_layers=3)


def test_a_command_of_llama_server_is_priced_as_it_runs() -> None:
    """Layers on the host, the cache's type, slots and their context are read."""
    command = "llama-server -hf a/gemma-3-12b-GGUF:Q4_K_M -c 8192 -np 4 -ngl 20 -ctk q8_0 -ctv q8_0"
    answer = serve(command, "RTX 4090")
    assert (answer.stack, answer.weights, answer.kv) == ("llama.cpp", "q4_k_m", "q8_0")
    assert (answer.context_tokens, answer.running_sequences) == (2048, 4)
    assert any("--running-sequences 1 prices one" in note for note in answer.notes)
    alone = serve(command, "RTX 4090", running_sequences=1)
    assert (alone.context_tokens, alone.running_sequences) == (8192, 1)
    assert alone.cache_bytes < answer.cache_bytes  # each slot has a window of its own
    assert alone.tpot_s < answer.tpot_s < 4 * alone.tpot_s
    slots, whole = (
        serve("llama-server -hf a/Meta-Llama-3-8B-GGUF:Q4_K_M -c 8192 -np 4", "RTX 4090", **words)
        for words in ({}, {"running_sequences": 1})
    )
    assert slots.cache_bytes == whole.cache_bytes  # without windows they share the whole context
    assert (answer.gpu_layers, answer.layer_count) == (20, 49)
    assert answer.host == answer.assumed["host"]


def test_a_command_of_ollama_names_its_size() -> None:
    """The tag says the size and the type."""
    answer = serve("OLLAMA_CONTEXT_LENGTH=16384 ollama run llama3.1:8b-instruct-q8_0", "M4 Max")
    assert (answer.model, answer.weights, answer.stack) == ("llama3_1_8b", "q8_0", "ollama")
    assert answer.context_tokens == 16384


def test_other_words_for_weights_are_those_of_the_stack() -> None:
    """`int4` is a type of the stack that runs it, and a note says which."""
    answer = serve("qwen3_30b_a3b", "M4 Max", weights="int4", stack="mlx", input=2048)
    assert answer.weights == "mlx_4bit"
    assert any("taken as mlx_4bit" in note for note in answer.notes)
    assert answer.tpot_low_s <= 1 / 113.33 <= answer.tpot_high_s  # mlx-lm, BENCHMARKS.md
