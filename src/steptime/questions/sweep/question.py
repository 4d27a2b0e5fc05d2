"""A sweep: the cells of an experiment file that a folder lacks, measured here or under Slurm."""

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import text_of
from steptime.core.values import MAX_VISITS, parse_count
from steptime.grids.folder import Predicted, predict_space
from steptime.grids.step_records import Place, place_of
from steptime.hardware import catalog
from steptime.prediction import DEFAULT
from steptime.prediction.method import stack_option
from steptime.questions import kinds, options
from steptime.questions.predict.written_predictions import WrittenPredictions, describe_predictions
from steptime.records.record import STATUSES
from steptime.records.row import group_by
from steptime.sweeps.answers import PreviewAnswer, SubmissionAnswer, SweepAnswer
from steptime.sweeps.cells import Cell, cells_of
from steptime.sweeps.cluster import submit
from steptime.sweeps.cluster.estimate import preview
from steptime.sweeps.cluster.resources import apply_environment, place_on_nodes
from steptime.sweeps.experiment import Experiment, read_experiment
from steptime.sweeps.progress import reporter
from steptime.sweeps.run import Means, SweepRequest
from steptime.sweeps.run import sweep as measure_cells

LOCAL = "local"  # the launcher that measures on this machine
LAUNCHERS = (LOCAL, "slurm")
Item = TypeVar("Item")


def sweep(
    file: kinds.ExperimentFile,
    out: kinds.OutFolder,
    rounds: kinds.Count | None = None,
    runs: kinds.Count | None = None,
    retry: kinds.Statuses = "",
    force: bool = False,
    try_all: bool = False,
    reference: bool = False,
    launcher: kinds.Name = LOCAL,
    dry_run: bool = False,
    shard: kinds.Shard | None = None,
) -> SweepAnswer | SubmissionAnswer | PreviewAnswer | WrittenPredictions:
    """Measure and predict the missing cells of an experiment file.

    Here, or on a cluster by Slurm. A cell that has a final record in the folder is not run again.

    Args:
        file: The experiment file.
        out: Folder for the records.
        rounds: Measure all cells N times, one round after the other. Default: as the experiment
            says.
        runs: Number of runs of each cell, each in a fresh process.
        retry: Also try cells with these statuses again: `oom,timeout`.
        force: Measure all cells again.
        try_all: Also measure cells that are predicted not to fit in memory.
        reference: Also time a fixed product of matrices beside each measurement on a CPU, so that
            compare can tell a slower machine from a slower network.
        launcher: `local` or `slurm`.
        dry_run: Show the jobs that Slurm would get, with their predicted time; submit nothing.
        shard: Measure only the I-th of N parts of the cells, to divide them among N hosts.

    Raises:
        InputError: for a wrong experiment file, and for a folder that is no store or in use.
        SchedulerError: if Slurm does not answer.
    """
    changes: dict[str, int | bool] = {}  # of settings of the file
    for name, visit_count in (("rounds", rounds), ("runs", runs)):
        if visit_count is not None:
            changes[name] = parse_count(text_of(visit_count), f"--{name}", at_most=MAX_VISITS)
    if try_all:
        changes["try_all"] = True
    statuses = [word.strip() for word in text_of(retry).split(",") if word.strip()]
    for status in statuses:
        check_choice("status", status, STATUSES, "--retry")
    check_choice("launcher", launcher, LAUNCHERS)
    if dry_run and launcher == LOCAL:
        raise InputError("--dry-run goes with --launcher slurm")
    path = Path(file)
    experiment = read_experiment(path)
    if not experiment.measure:
        # None and False stand for options that were not given.
        measuring_options = {
            "--rounds": rounds,
            "--runs": runs,
            "--retry": retry or None,
            "--force": force,
            "--reference": reference,
            "--launcher": launcher != LOCAL,
            "--shard": shard,
        }
        options.refuse(measuring_options, "{} is for measuring, and the file says measure = false")
        return _predict_only(experiment, str(path), Path(out))
    experiment = experiment.model_copy(update=changes)
    request = make_request(
        experiment, str(path), Path(out), tuple(statuses), force, shard, launcher
    )
    if reference:
        request = replace(request, means=replace(request.means, reference=True))
    if launcher == LOCAL:
        return measure_locally(request)
    if dry_run:
        return preview(request, print_note)
    return submit.send(request, print_note)


def _predict_only(experiment: Experiment, path_text: str, out: Path) -> WrittenPredictions:
    """Write the predictions of an experiment that measures nothing."""
    if experiment.by_op or max(experiment.replicas) > 1:
        raise InputError(f"{path_text}: measure = false takes neither by_op nor several replicas")
    cell_list = cells_of(experiment, path_text)
    places = _find_places(experiment, path_text)
    # Some stacks only infer: their cells of a training are no steps.
    runnable_cells = [cell for cell in cell_list.cells if cell.is_run]
    counts = Predicted()  # predictions written, present before, and refused
    for stack, stack_cells in group_by(runnable_cells, lambda cell: cell.stack).items():
        counts += predict_space(
            out,
            [cell.workload for cell in stack_cells],
            places,
            print_note,
            options=stack_option(stack),
            must_fit=cell_list.must_fit,
        )
    return describe_predictions(out, DEFAULT, counts, f"{experiment.name}: {cell_list.text}")


def _find_places(experiment: Experiment, path_text: str) -> list[Place]:
    """Return the devices on which an experiment file predicts."""
    return [_find_or_refuse(place_of, name, f"{path_text}: predict") for name in experiment.predict]


def _find_or_refuse(find: Callable[[str], Item], name: str, key: str) -> Item:
    """Return the thing that a file names under a key, which an `InputError` names, too."""
    try:
        return find(name)
    except InputError as error:
        raise InputError(f"{key}: {error}") from None


def make_request(
    experiment: Experiment,
    path_text: str,
    out: Path,
    retry: tuple[str, ...] = (),
    force: bool = False,
    shard: str | None = None,
    launcher: str = LOCAL,
) -> SweepRequest:
    """Return the request of an experiment and of the options of `sweep`.

    Args:
        experiment: the experiment.
        path_text: its file, for messages.
        out: folder of the records.
        retry: statuses of the cells that are tried again.
        force: measure all cells again.
        shard: `I/N` for one part of the cells, None for all.
        launcher: `local` or `slurm`.

    Raises:
        InputError: for cells that do not fit together, unknown names and missing files of input.
    """
    cell_list = cells_of(experiment, path_text, on_cluster=launcher != LOCAL)
    requested_cells: Collection[Cell] = cell_list.cells
    if shard:
        part, part_count = _read_shard(shard, len(cell_list.cells))
        requested_cells = cell_list.cells[part - 1 :: part_count]  # every N-th cell for N parts
    remarks: list[str] = []
    if launcher == LOCAL:
        _check_input(experiment)
    else:
        # Variables of sbatch fill in what the file does not request; then each cell gets nodes.
        environment_cells, remarks = apply_environment(requested_cells, os.environ)
        requested_cells, node_remarks = place_on_nodes(environment_cells)
        remarks += node_remarks
    link = None
    if experiment.link:
        link = _find_or_refuse(catalog.link, experiment.link, f"{path_text}: link")
    return SweepRequest(
        cells=requested_cells,
        out=out,
        means=Means(
            budget_s=experiment.budget_s,
            time_limit_s=experiment.time_limit_s,
            parts=experiment.parts,
            runs=experiment.runs,
            try_all=experiment.try_all,
        ),
        predict_on=_find_places(experiment, path_text),
        link=link,
        name=experiment.name,
        by_op=experiment.by_op,
        rounds=experiment.rounds,
        must_fit=cell_list.must_fit,
        retry=retry,
        force=force,
        is_shard=shard is not None,
        remarks=remarks,
        text=cell_list.text,
    )


def _check_input(experiment: Experiment) -> None:
    """Refuse files of input that are not here, before anything runs; nodes may see others."""
    from steptime.measure.data import dataset
    from steptime.measure.data.sources import staging_folder

    # Called because they raise: for a missing data set, and for a missing folder of copies.
    if "dataset" in experiment.input:
        dataset.find(experiment.data)
        if "local" in experiment.staging:
            staging_folder(experiment.stage_to)


def _read_shard(text: str, cell_count: int) -> tuple[int, int]:
    """Return the number of a part and of all parts: 1 and 4 of `1/4`."""
    part, slash, parts = text.partition("/")
    if not slash:
        raise InputError(f"--shard is I/N, such as 1/4, not {shorten(text)}")
    number = parse_count(part, "--shard")
    part_count = parse_count(parts, "--shard")
    if number > part_count:
        raise InputError(f"--shard: there is no part {number} of {part_count}")
    if part_count > cell_count:
        raise InputError(f"--shard: {cell_count} cells make no {part_count} parts")
    return number, part_count


def measure_locally(request: SweepRequest) -> SweepAnswer:
    """Measure the cells that a folder lacks on this machine, with progress on stderr."""
    with reporter() as report:
        return measure_cells(request, warn=print_note, report=report)
