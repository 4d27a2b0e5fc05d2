"""Numbers of many command lines, written down and compared: a net under every rebuild.

    python tests/golden/golden.py capture FILE [--whole]   run the cases, write what they print
    python tests/golden/golden.py compare OLD NEW          what differs by more than 1e-12

A case is a command line that prints JSON. What it prints is kept as a flat table: a path to each
value; a list of rows becomes, column by column, its sum and a sum weighted by place, so that no
changed, lost or moved row goes unseen. `--whole` adds every network x phase x type x device x
method x batch; without it the cases are those that `make test` compares with `golden.json`.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COMMITTED = HERE / "golden.json"
COMMANDS = HERE / "commands.txt"
TOLERANCE = 1e-12
LONG = 8  # a list of more values is kept as sums

NETWORKS = (
    "fc cnn rnn rnn:cell=gru rnn:cell=vanilla transformer transformer:kind=encoder alexnet "
    "alexnet_v2 overfeat nin vgg16 resnet18 resnet50 resnet50_v1 inception_v3 densenet121 "
    "densenet_cifar squeezenet1_0 squeezenet1_1 mobilenet_v1 mobilenet_v2 deep_mnist bert_base gpt2"
)
DTYPES = ("float32", "bfloat16", "float16-mixed")
DEVICES = ("K40", "TITAN_X", "v100-sxm2-16gb", "a100-sxm4-80gb", "h100-sxm5", "tpu-v3")
PAPER_DEVICES = ("K40", "TITAN_X")  # of Paleo: other methods take them as files alone
METHODS = ("roofline", "analytic", "calibrated", "paleo")
BATCHES = (1, 4, 32, 256)
BROAD = "fc rnn transformer:layers=2 alexnet_v2 resnet18 inception_v3 deep_mnist"

Case = tuple[str, ...]


SEQUENCE_MODELS = ("rnn", "transformer", "bert_base", "gpt2", "llama_7b")
DEFAULTS_OF_0_15_0 = {"--dtype": "float32", "--optimizer": "sgd"}  # of every network


def with_old_defaults(case: Case) -> Case:
    """The case with the data type and the optimizer that 0.15.0 took where it says none.

    Since then sequence models have defaults of their own.
    """
    command, model, *words = case
    if command not in ("count", "predict", "scale", "why"):
        return case
    if model.partition(":")[0] not in SEQUENCE_MODELS:
        return case
    lacking = {name: value for name, value in DEFAULTS_OF_0_15_0.items() if name not in words}
    return (*case, *itertools.chain(*lacking.items()))


def cases(whole: bool) -> Iterator[Case]:
    """Every case, small ones first, those of sequence models with the defaults of 0.15.0 too."""
    yield from dict.fromkeys(
        variant for case in _commands(whole) for variant in (case, with_old_defaults(case))
    )


def _commands(whole: bool) -> Iterator[Case]:
    for words in COMMANDS.read_text(encoding="utf-8").splitlines():
        yield tuple(words.split())
    for model, phase in itertools.product(BROAD.split(), ("train", "infer")):
        yield ("count", model, "--phase", phase, "--batch", "4")
        for method in METHODS:
            yield ("predict", model, "--device", "K40", "--method", method, "--phase", phase)
        for dtype in DTYPES[1:]:
            words = ("predict", model, "--device", "A100", "--dtype", dtype, "--phase", phase)
            yield (*words, "--method", "analytic")
    if whole:
        yield from _every()


def _every() -> Iterator[Case]:
    phases = ("train", "infer")
    for model, phase, dtype in itertools.product(NETWORKS.split(), phases, DTYPES):
        for optimizer in ("sgd", "adam") if phase == "train" else ("sgd",):
            yield ("count", model, "--phase", phase, "--dtype", dtype, "--optimizer", optimizer)
        for device, method, batch in itertools.product(DEVICES, METHODS, BATCHES):
            given = ("--phase", phase, "--dtype", dtype, "--batch", str(batch))
            yield ("predict", model, "--device", device, "--method", method, *given)


def printed(case: Case) -> tuple[int, str]:
    """The exit code of a command line and what it prints as JSON."""
    from steptime.cli.main import run
    from steptime.core.toml_files import DATA

    files = {name: str(DATA / f"devices/{name.lower()}.toml") for name in PAPER_DEVICES}
    words = [",".join(files.get(name, name) for name in word.split(",")) for word in case]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*words, "--json"])
    return code, out.getvalue() if code == 0 else err.getvalue()


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a JSON document with its path; rows of a list as sums of their columns."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        yield f"{path}#", len(value)
        columns: dict[str, list[Any]] = {}
        for index, item in enumerate(value):
            for key, cell in flat(item):
                columns.setdefault(f"{path}[].{key}", [None] * index).append(cell)
        for key, cells in columns.items():
            yield key, condensed(cells)
    elif isinstance(value, list):
        yield path, value if len(value) <= LONG else condensed(value)
    else:
        yield path, value


def condensed(cells: Iterable[Any]) -> Any:
    """Two sums of numbers and where there is none, a digest of anything else."""
    cells = list(cells)
    if all(cell is None or type(cell) in {int, float} for cell in cells):
        places = [(1 + index % 97, cell) for index, cell in enumerate(cells)]
        known = [(place, cell) for place, cell in places if cell is not None]
        missing = sum(place for place, cell in places if cell is None)
        sums = math.fsum(cell for _, cell in known), math.fsum(i * cell for i, cell in known)
        return [*sums, missing]
    return hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()[:12]


MIDDLE = ("step_s", "calibrated_s", "tpot_s")  # what `low_s` and `low` are the least of


def intervals(value: Any, path: str = "") -> Iterator[tuple[str, list[float]]]:
    """The least, the value and the most wherever a JSON document says all of them, with its path.

    Raises `KeyError` for an end whose other end or value is missing.
    """
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from intervals(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from intervals(item, f"{path}.{key}")
            words = key.split("_")
            if key == "bounds":
                for name, (low, high) in item.items():
                    yield f"{path}.{name}", [low, value[name], high]
            elif "low" in words:
                high = value["_".join("high" if word == "low" else word for word in words)]
                own = "_".join(word for word in words if word != "low").removeprefix("any_stack_")
                name = next((one for one in (own, *MIDDLE) if one in value), own)
                said = [end for end in (item, value[name], high) if end is not None]
                yield f"{path}.{key}", said


def captured(chosen: Iterable[Case]) -> dict[str, Any]:
    """What each case gives, by its command line."""
    return {" ".join(case): kept(*printed(case)) for case in chosen}


def kept(code: int, text: str) -> dict[str, Any]:
    """What is written down of an exit code and a document."""
    values = dict(flat(json.loads(text))) if code == 0 else {"message": text.strip()}
    return {"code": code, "values": values}


def differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """Case, path, old value and new one, wherever a value of before is lost or another."""
    for case, before in old.items():
        after = new.get(case, {"code": "not run", "values": {}})
        if before["code"] != after["code"]:
            yield case, "exit code", before["code"], f"{after['code']} {after['values']}"[:200]
            continue
        for path, value in before["values"].items():
            other = after["values"].get(path, "missing")
            if not same(value, other):
                yield case, path, value, other


def same(one: Any, other: Any) -> bool:
    """Whether two values agree to 1e-12."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=TOLERANCE)
    return bool(one == other)


def _read(path: str) -> dict[str, Any]:
    data = Path(path).read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if path.endswith(".gz") else data)
    return found


def _write(path: str, found: dict[str, Any]) -> None:
    text = json.dumps(found, indent=0, sort_keys=True) + "\n"
    data = gzip.compress(text.encode()) if path.endswith(".gz") else text.encode()
    Path(path).write_bytes(data)


def main(words: list[str]) -> int:
    """Do what the command line says."""
    if words[:1] == ["capture"] and len(words) > 1:
        _write(words[1], captured(cases("--whole" in words)))
        return 0
    if words[:1] == ["compare"] and len(words) == 3:
        found = list(differences(_read(words[1]), _read(words[2])))
        for case, path, before, after in found[:60]:
            print(f"{case}: {path}: {before} -> {after}")
        paths = Counter((case.split()[0], path) for case, path, _, _ in found)
        for (command, path), count in paths.most_common(40):
            print(f"{count:6} {command} {path}")
        print(f"{len(found)} values differ")
        return 1 if found else 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
