"""Commands of shell scripts, found without running anything."""

import pytest

from steptime.launch.shell import read_script


def words_of(script: str) -> list[tuple[str, ...]]:
    return [command.words for command in read_script(script).commands]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("run --a 'b c' --d=\"e f\"", ("run", "--a", "b c", "--d=e f")),
        ("run a \\\n  --b 1 \\\n  # a remark\n  --c 2", ("run", "a", "--b", "1", "--c", "2")),
        ("N=4\nrun --n $N --m ${M:-8}", ("run", "--n", "4", "--m", "8")),
        ("N=4\nrun --n=$((N * 2 / 3))", ("run", "--n=2")),
        ('A=(--x 1 # why\n "y z")\nrun "${A[@]}"', ("run", "--x", "1", "y z")),
        ("A=(--x)\nA+=(--y)\nrun ${A[@]}", ("run", "--x", "--y")),
        ("P=/models/llama.gguf\nrun ${P##*/} ${P%.*}", ("run", "llama.gguf", "/models/llama")),
        ("if [ -z $N ]; then N=2; else N=3; fi\nrun $N", ("run", "2")),
        ('if [[ "$1" == big ]]; then N=2; elif [ 3 -gt 2 ]; then N=5; fi\nrun $N', ("run", "5")),
        ("while [[ $# -gt 0 ]]; do N=9; shift; done\nrun x$N", ("run", "x")),
        ("case ${GPU:-h100} in a100) N=1;; h*) N=2;; esac\nrun $N", ("run", "2")),
        ('f() { run "$@" --n $1; }\nf a b', ("run", "a", "b", "--n", "a")),
        ("[ -z $N ] && N=7\nrun $N", ("run", "7")),
        ("N=$(nvidia-smi -L | wc -l)\nrun --n ${N:-8}", ("run", "--n", "8")),
        ("CUDA_VISIBLE_DEVICES=0,1 run a 2>&1", ("run", "a")),
    ],
)
def test_words_after_expansion(script, words):
    assert words in words_of(script)


def test_a_loop_runs_its_body_for_each_value():
    assert words_of("for n in 1 2; do run $n; done") == [("run", "1"), ("run", "2")]


def test_a_command_sees_its_variables():
    (command,) = read_script("A=1\nexport B=2\nC=3 run").commands
    assert {"A": "1", "B": "2", "C": "3"}.items() <= command.environment.items()


def test_a_here_document_is_a_file():
    script = "N=4\ncat > ./extra.yml <<EOF\nsize: $N\nEOF\ncat > raw.yml <<'EOF'\nsize: $N\nEOF\n"
    assert read_script(script).files == {"extra.yml": "size: 4\n", "raw.yml": "size: $N\n"}


def test_slurm_directives_are_variables():
    script = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nrun --n $SLURM_NNODES"
    assert words_of(script) == [("run", "--n", "4")]


def test_nothing_is_run(tmp_path):
    read_script(f"touch {tmp_path / 'made'}; $(touch {tmp_path / 'made'})")
    assert not (tmp_path / "made").exists()
