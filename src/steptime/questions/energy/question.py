"""Latency and energy of a network on published accelerators: the question `energy`."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.graph import Graph
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import File, Kind, text_of
from steptime.core.workload import Plan, Workload
from steptime.energy.accelerator import (
    FODLAM_PROCESS,
    FODLAM_SCALING,
    Chip,
    Estimate,
    estimate,
    published_chips,
    scale_chips,
)
from steptime.energy.accelerators import accelerators
from steptime.energy.diagnosis import (
    average_per_mac,
    cross_predictions,
    layers_per_mac,
    rival_platforms,
)
from steptime.energy.operations import (
    ESTIMATED_DTYPE,
    ESTIMATED_HIERARCHY,
    estimate_ops,
    sum_energy,
)
from steptime.energy.process import Process, describe_range, read_process
from steptime.energy.request import (
    ChipRequest,
    is_configuration,
    json_document,
    request_of_configuration,
    request_of_graph,
)
from steptime.formats import LARGEST_FILE_BYTES, read_content
from steptime.questions import options
from steptime.questions.energy.answer import (
    CostSums,
    DiagnosisAnswer,
    DramEnergy,
    EnergyAnswer,
    EstimatedEnergy,
    FodlamAnswer,
    FodlamSums,
    LayerEnergy,
    OpEnergyRow,
    UncoveredOp,
)

METHODS = ("accelerator", "fodlam")
STANDARD_INPUT = "standard input"
NO_COST = FodlamSums(energy=0.0, latency=0.0)
Network = Annotated[File | Workload, Kind("CONFIG|MODEL", is_argument=True)]


@dataclass(frozen=True)
class _ScaledChips:
    """Accelerators at the process that they are scaled to.

    Args:
        chips: the accelerators with the factors of their scaling.
        process: the process.
        scaling: the rule of scaling.
    """

    chips: Sequence[Chip]
    process: Process
    scaling: str

    def as_texts(self) -> dict[str, str]:
        """Return the process and the scaling by the names of their options."""
        return {"process": self.process.label, "scaling": self.scaling}


def energy(
    network: Network | None = None,
    accelerator: Annotated[str | Sequence[str], Kind("NAME+...")] = "eyeriss+eie",
    method: Annotated[str, Kind("NAME", choices=METHODS)] = "accelerator",
    process: Annotated[str, Kind("NODE")] | None = None,
    scaling: Annotated[str, Kind("NAME")] | None = None,
    nets: Annotated[File, Kind("DIR")] | None = None,
    dram: bool = False,
    diagnose: bool = False,
    by_op: bool = False,
) -> EnergyAnswer | FodlamAnswer | DiagnosisAnswer:
    """Estimate latency and energy on published accelerators.

    Of one example; layers run one after another.

    Args:
        network: A configuration of FODLAM (.json with net or netfile), or a network as for count.
            Default: a configuration from standard input.
        accelerator: The chips, each for its kind of layer: `eyeriss` for convolutions, `eie` for
            fully connected layers.
        method: `accelerator` (corrected), or `fodlam` (the model FODLAM as published).
        process: Manufacturing process to which the chips are scaled: `65nm` (default), `45nm-lp`,
            `65nm@1.1V`.
        scaling: Rule of this scaling: `dennard` (default), `constant-voltage`, `stillmaker-baas` or
            `none`.
        nets: Folder in which the `netfile` of a configuration is looked for first.
        dram: Also show the energy of the external memory (DRAM).
        diagnose: Show the cost of a multiply-add in each measured layer, and the error if each
            network is predicted from the other networks of its chip.
        by_op: Show every op.

    Raises:
        InputError: for unknown names, options that do not go together, and a configuration or
            network that cannot be read.
    """
    check_choice("--method", method, METHODS)
    names = accelerator if isinstance(accelerator, str) else "+".join(accelerator)
    scaled_chips = _scale_chips(names, method, process, scaling)
    diagnosis = _diagnose(scaled_chips.chips) if diagnose else None
    if diagnosis is not None and network is None:  # the chips by themselves
        if by_op or dram or nets is not None:
            raise InputError("--by-op, --dram and --nets need a network beside --diagnose")
        return diagnosis
    request, graph = _read_chip_request_and_graph(network, None if nets is None else Path(nets))
    chip_estimate = estimate(request, scaled_chips.chips)
    if method == "fodlam":
        refused_options = {"--by-op": by_op, "--dram": dram, "--diagnose": diagnose}
        options.refuse(refused_options, "{}: method fodlam prints only what the original does")
        for line in _describe_uncovered_and_pruned(chip_estimate, "counted as nothing"):
            print_note(f"note: {line}")
        return _make_fodlam_answer(chip_estimate)
    return _make_energy_answer(
        request, graph, scaled_chips, chip_estimate, diagnosis, dram=dram, by_op=by_op
    )


def _scale_chips(names: str, method: str, process: str | None, scaling: str | None) -> _ScaledChips:
    """Return the accelerators at a process, those of FODLAM at its own."""
    designs = accelerators(names)
    if method == "fodlam":
        scale_options = {"--process": process, "--scaling": scaling}
        options.refuse(scale_options, "{} is of method accelerator; fodlam has a fixed one")
        return _ScaledChips(published_chips(designs), FODLAM_PROCESS, FODLAM_SCALING)
    target = FODLAM_PROCESS if process is None else read_process(process)
    rule = FODLAM_SCALING if scaling is None else scaling
    return _ScaledChips(scale_chips(designs, target, rule), target, rule)


def _read_chip_request_and_graph(
    network: Network | None, nets: Path | None
) -> tuple[ChipRequest, Graph | None]:
    """Return the layers to run, from a configuration or a network; a network has a graph."""
    if nets is not None and not nets.is_dir():
        raise InputError(f"--nets {shorten(str(nets))}: no such folder")
    folders = [] if nets is None else [nets]
    if network is None:
        table = json_document(_read_standard_input(), STANDARD_INPUT)
        # A configuration names the file of its network, which lies in --nets or here.
        return request_of_configuration(table, STANDARD_INPUT, [*folders, Path()]), None
    is_json_file = not isinstance(network, Workload) and str(network).lower().endswith(".json")
    if is_json_file:
        path = str(network)
        table = json_document(read_content(path, "configuration"), path)
        if is_configuration(table):
            folders.append(Path(path).parent)
            return request_of_configuration(table, path, folders), None
    if nets is not None:
        raise InputError("--nets is for the netfile of a configuration; this is a network")
    workload = _make_single_example_workload(network)
    graph = build(workload)
    return request_of_graph(workload.label, graph), graph


def _read_standard_input() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("give CONFIG or MODEL, or a configuration on standard input")
    content = sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        raise InputError(f"{STANDARD_INPUT}: larger than {LARGEST_FILE_BYTES} bytes")
    return content


def _make_single_example_workload(network: Network) -> Workload:
    """Return the inference of one example, whatever the batch of the network."""
    if isinstance(network, Workload):
        return replace(network, batch_per_replica=1, phase="infer", optimizer="none", plan=Plan())
    choice = read_model(str(text_of(network)), trusted=True)
    return make_workload(replace(choice, batch=None), 1, "float32", phase="infer")


def _diagnose(chips: Sequence[Chip]) -> DiagnosisAnswer:
    return DiagnosisAnswer(
        layers=tuple(row for chip in chips for row in layers_per_mac(chip)),
        averages=tuple(average_per_mac(chips)),
        cross=tuple(row for chip in chips for row in cross_predictions(chip)),
        rivals=tuple(row for chip in chips for row in rival_platforms(chip.accelerator)),
    )


def _make_fodlam_answer(chip_estimate: Estimate) -> FodlamAnswer:
    costs_by_part = {
        name: FodlamSums(energy=costs.energy_j, latency=costs.latency_s)
        for name, costs in _sum_costs_by_part(chip_estimate).items()
    }
    return FodlamAnswer(
        conv=costs_by_part.get("conv", NO_COST),
        fc=costs_by_part.get("fc", NO_COST),
        total=costs_by_part["total"],
    )


def _sum_costs_by_part(chip_estimate: Estimate) -> dict[str, CostSums]:
    """Return the sums of `conv`, `fc` and `total`."""
    sums: Mapping[str, Any] = chip_estimate.sums()
    return {part: CostSums(**costs) for part, costs in sums.items()}


def _make_energy_answer(
    request: ChipRequest,
    graph: Graph | None,
    scaled_chips: _ScaledChips,
    chip_estimate: Estimate,
    diagnosis: DiagnosisAnswer | None,
    dram: bool,
    by_op: bool,
) -> EnergyAnswer:
    costs_by_part = _sum_costs_by_part(chip_estimate)
    notes = _describe_uncovered_and_pruned(
        chip_estimate,
        # A configuration has no graph, so its uncovered ops have no shapes to estimate from.
        "counted as nothing" if graph is None else "energy estimated, latency left out",
    )
    extrapolation = describe_range(scaled_chips.process)
    if scaled_chips.scaling != "none" and extrapolation:
        notes.append(f"{extrapolation}: scaled by the rule of {scaled_chips.scaling} alone")
    uncovered_energy = None
    if graph is not None:
        uncovered_energy = _estimate_uncovered(graph, chip_estimate, scaled_chips)
    return EnergyAnswer(
        model=request.name,
        method="accelerator",
        accelerators=tuple(chip.accelerator.name for chip in scaled_chips.chips),
        **scaled_chips.as_texts(),
        sources=tuple(chip.accelerator.source for chip in scaled_chips.chips),
        conv=costs_by_part.get("conv"),
        fc=costs_by_part.get("fc"),
        total=costs_by_part["total"],
        not_covered=tuple(UncoveredOp(**asdict(layer)) for layer in chip_estimate.not_covered),
        supposed_pruned=chip_estimate.supposed_pruned,
        rows=tuple(LayerEnergy(**asdict(layer)) for layer in chip_estimate.layers),
        estimated=uncovered_energy,
        dram=DramEnergy(**chip_estimate.dram()) if dram else None,
        diagnosis=diagnosis,
        notes=tuple(notes),
        _by_op=by_op,
    )


def _estimate_uncovered(
    graph: Graph, chip_estimate: Estimate, scaled_chips: _ScaledChips
) -> EstimatedEnergy:
    """Return the energy of the ops that no accelerator runs, from their operations."""
    names = {layer.name for layer in chip_estimate.not_covered}
    ops = estimate_ops(graph, names, scaled_chips.process, scaled_chips.scaling)
    total = sum_energy(ops)
    return EstimatedEnergy(
        dtype=ESTIMATED_DTYPE,
        hierarchy=ESTIMATED_HIERARCHY,
        energy_j=total.total_j,
        energy_low_j=total.low_j,
        energy_high_j=total.high_j,
        rows=tuple(OpEnergyRow(name=op.name, energy_j=op.total_j) for op in ops),
    )


def _describe_uncovered_and_pruned(chip_estimate: Estimate, treatment_text: str) -> list[str]:
    """Return remarks on the ops that no accelerator runs, and on pruned weights."""
    lines = []
    layer_counts = Counter(layer.kind for layer in chip_estimate.not_covered)
    if layer_counts:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in layer_counts.items())
        lines.append(f"not covered by the chips, {treatment_text}: {kinds}")
    if chip_estimate.supposed_pruned:
        layers = ", ".join(chip_estimate.supposed_pruned)
        lines.append(f"supposed to be pruned as the measured layers were: {layers}")
    return lines
