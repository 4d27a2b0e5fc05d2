"""Predictions that only blind tables ask for: networks on one device, bursts, arrival rates."""

from dataclasses import replace
from typing import Any

from steptime.build import make_workload, read_model
from steptime.calibration.plan_rows import Question, Reply, integer_of, site_of
from steptime.hardware import catalog
from steptime.prediction.conformal import FIRST_TOKENS
from steptime.prediction.kernel import Interval
from steptime.prediction.method import Method
from steptime.prediction.steps.step_model import StepModel
from steptime.serving.demand import Demand
from steptime.serving.load import LoadRun
from steptime.serving.phases import Phases
from steptime.serving.queueing import Load
from steptime.serving.service import Service
from steptime.serving.times import run_service

MAX_REQUESTS = 1500  # of a stage under an arrival rate: a longer one tells the same


def predict_network(question: Question, method: str | Method) -> Reply:
    """Return the step of a network on one device: `seconds`."""
    texts = question.texts
    workload = make_workload(
        read_model(texts["model"]),
        integer_of(question, "batch"),
        texts["dtype"],
        texts["phase"],
        texts["optimizer"] or None,
    )
    options = {"stack": texts["stack"]}
    peaks = catalog.device(texts["device"]).datasheet.peak_flop_per_s
    if texts.get("tf32") == "on" and texts["dtype"] == "float32" and "tf32" in peaks:
        options["tf32"] = "on"
    model = StepModel(workload, texts["device"], method=method, options=options)
    times = model.predict().times
    step = Interval(times.step_s, times.low_s, times.high_s)
    return Reply({"seconds": step}, 1, texts["stack"], form="network")


def predict_burst(question: Question, method: str | Method) -> Reply:
    """Return the time of requests that all come at once: `burst_s`."""
    count = integer_of(question, "requests")
    lengths = question.texts.get("lengths", "")
    demand = Demand(concurrency=count, count=count, lengths=lengths)
    service = _service(question, method, demand)
    phases = service.phases()
    load = demand.load(service.input, service.output)
    run = run_service(service, load, phases)
    return _loaded(phases, run, {"burst_s": phases.interval_of(run.duration_s, FIRST_TOKENS)})


def predict_rate(question: Question, method: str | Method) -> Reply:
    """Return the mean times of requests that come at a constant rate: `ttft_s`, `tpot_s`, ..."""
    rate = float(question.numbers["rate"])
    count = min(MAX_REQUESTS, integer_of(question, "requests"))
    most = int(question.numbers["max_batch"])
    demand = Demand(rate=rate, count=count, max_running_sequences=most)
    service = _service(question, method, demand)
    service = replace(service, prefix=question.numbers["prefix"] / service.input)
    phases = service.phases()
    arrivals_s = [i / rate for i in range(count)]
    run = run_service(
        service, Load([service.input] * count, [service.output] * count, arrivals_s), phases
    )
    tpot_s = run.request.mean_s if run.tpot is None else run.tpot.mean_s
    values = {
        "ttft_s": phases.interval_of(run.ttft.mean_s, FIRST_TOKENS),
        "tpot_s": phases.interval_of(tpot_s),
        "request_s": phases.interval_of(run.request.mean_s),
    }
    return _loaded(phases, run, values)


def _loaded(phases: Phases, run: LoadRun, values: dict[str, Interval]) -> Reply:
    stack = phases.problem.method.settings.stack
    return Reply(values, run.device_count, stack, form=phases.interval_form)


def _service(question: Question, method: str | Method, demand: Demand) -> Service:
    texts = question.texts
    formats: Any = {name: texts.get(name) or None for name in ("dtype", "weights")}
    split: Any = {
        name: integer_of(question, name)
        for name in ("tensor", "data", "expert")
        if question.numbers.get(name)
    }
    return Service(
        texts["model"],
        site_of(question),
        input=integer_of(question, "input"),
        output=integer_of(question, "output"),
        stack=texts["stack"] or None,
        method=method,
        demand=demand,
        **formats,
        **split,
    )
