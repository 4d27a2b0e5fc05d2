"""ParaDnn's logs: `LABEL.out` and `LABEL.err` of one run, in a folder such as `fc_tpu_bfloat16`.

`.out` has TensorFlow's version, the flags (`***node: 1024`) and the profiler's counts of FLOP and
parameters; `.err` has TensorFlow's messages, with the speed of each interval of steps and errors.
Flags go before the label: the released scripts give the number of nodes as input and output size.
Like the authors' own script, this takes the best interval as the speed of a run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from steptime.build import make_workload
from steptime.core.record import Method, Quantity, Record
from steptime.core.workload import Workload
from steptime.readers.found import Found
from steptime.readers.paradnn_json import BEST, CORES, GPU, SOURCE, TPU
from steptime.readers.paradnn_label import is_label, network
from steptime.readers.platforms import platform_of
from steptime.readers.sources import Source, Unread

__all__ = ["SOURCE", "read", "recognises", "together"]
ENDINGS = (".out", ".err")
STATES = (  # what .err says, ParaDnn's word for it, status
    (r"OOM|RESOURCE_EXHAUSTED|ResourceExhausted|\bout of memory\b", "OOM", "oom"),
    (r"Socket closed", "Socket closed", "failed"),
    (r"Deadline Exceeded|DEADLINE_EXCEEDED", "Deadline Exceeded", "timeout"),
    (r"Negative dimension size", "Negative dimension size", "failed"),
    (r"NaN value|NaN loss", "NaN value", "failed"),
    (r"unhealthy", "unhealthy", "failed"),
    (r"FAILED state", "FAILED state", "failed"),
)
OPTIONS = {"statistic": BEST}
LARGEST = 1e300
FC_FLAGS = {"layer": "layers", "node": "nodes", "input_size": "inputs", "output_size": "outputs"}
OPTIMIZERS = {"rms": "rmsprop", "sgd": "sgd", "momentum": "momentum"}
MIXED = {"float16": "float16-mixed", "bfloat16": "bfloat16-mixed", "float32": "float32"}
UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)"


def recognises(source: Source) -> bool:
    """Whether the file has the name of a run, or the text of one."""
    name = source.name.rpartition("/")[2]
    return name.endswith(ENDINGS) and (is_label(name) or "global_step/sec" in source.text)


def together(name: str) -> str:
    """Give the name of the run whose output and errors these are."""
    return name.rpartition(".")[0]


def read(group: Sequence[Source]) -> Found:
    """Give the record of a run, or why there is none."""
    texts = {source.name.rpartition(".")[2]: source.text for source in group}
    run = together(group[0].name)
    if "err" not in texts:
        return Found(unread=(Unread(group[0].name, None, "its .err, with the speeds, is absent"),))
    return Found((_record(run, texts.get("out", ""), texts["err"]),))


def _record(run: str, out: str, err: str) -> Record:
    folder, _, label = run.rpartition("/")
    flags: Mapping[str, str] = dict(re.findall(r"^\*\*\*(\w+): ([^\s]*)", out, re.MULTILINE))
    choice, batch = network(label, folder)
    flagged = {
        name: flags[flag]
        for flag, name in FC_FLAGS.items()
        if choice.model == "fc" and flag in flags and flags[flag] != choice.given[name]
    }
    workload = make_workload(
        replace(choice, batch=None, given={**choice.given, **flagged}),
        batch=flags.get("batch_size", batch),
        dtype=_dtype(folder, flags),
        phase="train" if flags.get("mode", "train") == "train" else "infer",
        optimizer=OPTIMIZERS.get(flags.get("optimizer", "rms"), "rmsprop"),
    )
    platform = _platform(folder, flags, err)
    rates = [float(text) for text in re.findall(rf"global_step/sec: *{_NUMBER}", err)]
    rates = [rate for rate in rates if 0 < rate < LARGEST]
    status, cause = _state(err, rates)
    cores = CORES if platform == TPU else 1
    return Record(
        origin="published",
        method=Method("paradnn", _first(out, r"Tenso\w+ version: (\S+)") or "unknown", OPTIONS),
        workload=workload,
        platform=platform,
        quantities=_quantities(workload, rates, out, cores) if status == "ok" else {},
        status=status,
        cause=cause,
        note=f"the flags say {', '.join(map(_said, flagged.items()))}, not the label's name"
        if flagged
        else "",
        env={"cores": cores, "source_entry": label},
    )


def _said(item: tuple[str, str]) -> str:
    return f"{item[0]} {item[1]}"


def _quantities(
    workload: Workload, rates: Sequence[float], out: str, cores: int
) -> Mapping[str, Quantity]:
    best = max(rates)
    flop, parameters = _profiled(out, "flops"), _profiled(out, "params")
    known = {
        "step_s": 1 / best,
        "published_speed_per_s": workload.batch_per_replica * best,
        "published_flop": flop and flop * cores,
        "published_flop_per_s": flop and flop * cores * best,
        "published_parameters": parameters,
    }
    found = {name: Quantity(value) for name, value in known.items() if value is not None}
    return {**found, "published_steps_per_s": Quantity(samples=tuple(rates))}


def _profiled(out: str, what: str) -> float | None:
    """Give a count of the profiler: `_TFProfRoot (--/17.63b flops)` is 17.63e9."""
    found = re.search(rf"_TFProfRoot \(\S{{0,99}}/{_NUMBER}([kmb]?) {what}\)", out)
    return float(found[1]) * UNITS[found[2]] if found else None


def _state(err: str, rates: Sequence[float]) -> tuple[str, str]:
    for pattern, cause, status in STATES:
        if re.search(pattern, err):
            return status, cause
    if rates:
        return "ok", ""
    done = "finished but no performance" if "final step" in err else "no error but not finished"
    return "failed", done


def _dtype(folder: str, flags: Mapping[str, str]) -> str:
    """Give the type by the flag, else by the folder's name; ParaDnn casts float32 weights."""
    words = [flags.get("data_type", ""), *re.split(r"[_/-]", folder)]
    return next((MIXED[word] for word in words if word in MIXED), "float32")


def _platform(folder: str, flags: Mapping[str, str], err: str) -> str:
    """Give the GPU that TensorFlow prints, else what flag and folder say: a TPU v2-8 or a V100."""
    product = _first(err, r"\bname: ((?:Tesla|Quadro|GeForce|NVIDIA) [\w -]*?\w)(?=,| major|$)")
    if product:
        return platform_of(product)
    words = re.split(r"[_/-]", folder.lower())
    if flags.get("use_tpu") == "True" or ("use_tpu" not in flags and "tpu" in words):
        return TPU
    return GPU if "gpu" in words else "cpu-unknown" if "cpu" in words else "unknown"


def _first(text: str, pattern: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""
