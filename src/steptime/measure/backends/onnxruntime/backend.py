"""ONNX Runtime, inference alone: the graph as an ONNX file in memory, run by one session.

Inputs lie on the device and are bound once, weights are given beside the file, by name: a file of
protocol buffers cannot have more than 2 GB.
"""

from collections.abc import Mapping
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from steptime.core.graph import Graph, TensorSpec
from steptime.core.workload import Workload
from steptime.formats.export.onnx import export_onnx
from steptime.formats.export.onnx_kinds import KINDS
from steptime.formats.export.onnx_nodes import TYPES, NoOnnxError
from steptime.measure import contract, machine
from steptime.measure.infeed import chain_calls, time_input
from steptime.measure.synthetic import initial_values

__all__ = ["PHASES", "RUNS", "STRATEGIES", "device_facts", "prepare", "translate_error"]

RUNS = KINDS
STRATEGIES = ()  # it runs on one device
PHASES = ("infer",)
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_DEVICE_COUNTS = {"cpu": 1, "cuda": inf}  # it does not tell how many GPUs there are
_DTYPES = {"cpu": ("float32", "float64"), "cuda": ("float32", "float64", "float16", "bfloat16")}
_NO_KERNEL = (errors.NotImplemented, errors.InvalidGraph, errors.InvalidArgument)
_NO_MEMORY = ("bad allocation", "bad_alloc", "Failed to allocate memory", "out of memory")


def device_facts(device: str) -> contract.DeviceFacts:
    """Return the facts of a device: of a GPU its name, and that it is one."""
    kind, number = _find(device)
    if kind == "cpu":
        return machine.host_facts()
    query = ("nvidia-smi", f"--id={number}", "--query-gpu=name", "--format=csv,noheader")
    product = (machine.read_command_output(*query) or "").strip() or "a CUDA device"
    return contract.DeviceFacts(
        product, memory_bytes=None, room_bytes=None, cache_bytes=None, is_accelerator=True
    )


def _find(device: str) -> tuple[str, int]:
    """Return the kind and number of a device; raises `InputError` where it is not here."""
    available = ort.get_available_providers()
    counts = {
        kind: _DEVICE_COUNTS[kind] for kind, provider in _PROVIDERS.items() if provider in available
    }
    return contract.pick_device(device, counts, "to onnxruntime")


def translate_error(error: Exception) -> Exception | None:
    """Return the error of `contract` for one of ONNX Runtime: no kernel, or no memory."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, NoOnnxError):
        return contract.UnsupportedError(str(error))
    if isinstance(error, _NO_KERNEL):
        return contract.UnsupportedError(f"onnxruntime has no kernel for it here: {text}")
    # ONNX Runtime has no class of its own for a lack of memory: only the text tells.
    is_failed_run = isinstance(error, errors.RuntimeException | errors.Fail)
    names_memory = any(sign in text for sign in _NO_MEMORY)
    if isinstance(error, MemoryError) or (is_failed_run and names_memory):
        return contract.OutOfMemoryError(text or "no memory left")
    return None


def prepare(
    graph: Graph, workload: Workload, options: contract.Options, feed: contract.Feed | None = None
) -> contract.Prepared:
    """Return the step of an inference graph, optimized for its device, its values there."""
    kind, number = _find(options.device)
    contract.check_plan("onnxruntime", STRATEGIES, workload, options)
    dtype = workload.dtype
    supported = _DTYPES[kind]
    lack = f"onnxruntime has no kernels for {dtype} on {kind}, but for {', '.join(supported)}"
    contract.refuse(
        {
            "onnxruntime runs inference alone: --phase infer": workload.phase != "infer",
            "onnxruntime optimizes every graph: leave out --compile": options.compile,
            "a CPU has no TF32": options.tf32 and kind == "cpu",
            lack: dtype not in supported,
        }
    )
    arrays = initial_values(graph, options.seed, np.dtype if kind == "cpu" else _element_type)
    # `pop` frees each array once it is copied, so that weights do not lie in memory twice.
    values = {name: _place_array(arrays.pop(name), graph.tensors[name]) for name in list(arrays)}
    model = export_onnx(graph, external_values=True)  # the session gets the weights beside it

    settings = _session_options(options.threads)
    parameters = list(dict.fromkeys((*graph.weights, *graph.buffers)))
    if parameters:
        settings.add_external_initializers(parameters, [values[name] for name in parameters])
    is_cuda = kind == "cuda"
    device_options = {"device_id": number, "use_tf32": int(options.tf32)} if is_cuda else {}
    providers = {_PROVIDERS["cpu"]: {}, _PROVIDERS[kind]: device_options}
    start_s = perf_counter()
    # The first provider that has a kernel runs an op: the CPU runs what a GPU's provider lacks.
    session = ort.InferenceSession(model, settings, providers=list(reversed(providers.items())))
    compile_s = perf_counter() - start_s
    binding = _bind_tensors(session, graph, values, kind, number)
    copies_inputs = options.input != "device"  # else they are on the device from the start
    synthetic_inputs = {
        name: values[name].numpy().copy() for name in graph.inputs if copies_inputs and not feed
    }
    dtypes = {name: _element_type(graph.tensors[name].dtype) for name in graph.inputs}

    def copy_inputs() -> None:
        for name, array in (feed.next() if feed else synthetic_inputs).items():
            values[name].update_inplace(np.ascontiguousarray(array, dtypes[name]))

    timed_copy, waited = time_input(copy_inputs) if copies_inputs else (None, None)

    def forward() -> None:
        session.run_with_iobinding(binding)

    facts = {
        "onnxruntime": ort.__version__,
        "compile": "graph optimizations of ONNX Runtime, all",
        "compile_s": compile_s,
        "providers": session.get_providers(),
        "intra_op_threads": session.get_session_options().intra_op_num_threads,
    }
    return contract.Prepared(
        step=chain_calls(timed_copy, forward),
        sync=lambda: None,  # a run returns when its outputs are there
        parts={"forward": forward},
        memory=lambda: (None, "resident set, by the worker" if kind == "cpu" else "not metered"),
        waited=waited,
        facts=facts,
    )


def _session_options(threads: int | None) -> Any:
    """Return the options of a session: all optimizations, and so many threads."""
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads or 0  # 0: as many as there are cores
    settings.inter_op_num_threads = 1
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.log_severity_level = 3  # errors, no warnings
    return settings


def _element_type(dtype: str) -> Any:
    """Return numpy's type; what it has not, bfloat16, is rounded from float32 when it is placed."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def _place_array(array: Any, spec: TensorSpec) -> Any:
    """Return an array as a value of the runtime."""
    array = np.ascontiguousarray(array)
    if spec.dtype != "bfloat16":
        return ort.OrtValue.ortvalue_from_numpy(array)
    # A bfloat16 is the upper half of a float32; numpy has no such type.
    upper = (array.view(np.uint32) >> 16).astype(np.uint16)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(upper, TYPES["bfloat16"])


def _bind_tensors(
    session: Any, graph: Graph, values: Mapping[str, Any], kind: str, number: int
) -> Any:
    """Bind inputs to their values on the device, and outputs to memory there."""
    binding = session.io_binding()
    for name in graph.inputs:
        binding.bind_ortvalue_input(name, values[name])
    for name in graph.outputs:
        binding.bind_output(name, kind, number)
    if kind != "cpu":
        binding.synchronize_inputs()
    return binding
