"""Mapping files of the fit say the same of reference data as its loaders; skipped without them."""

from itertools import islice

import pytest

from places import ROOT
from steptime.calibration.mapped import cases_of
from steptime.records.readers.mapping import read_mapping

MAPPINGS = ROOT / "validation/fitting/mappings"


def mapped(folder, name, most=3):
    return list(cases_of(folder, read_mapping(MAPPINGS / f"{name}.toml"), most))


@pytest.mark.rare
def test_products_and_streams(shared):
    from validation.fitting import neusight

    ours = mapped(shared / "measured/neusight", "neusight", 400)
    for loader, kinds in (
        (neusight.products, ("bmm", "linear")),
        (neusight.convolutions, ("conv",)),
    ):
        by_seconds = {(case.device.name, case.seconds): case for case in loader(shared)}
        same = [
            (case, by_seconds[case.device.name, case.seconds])
            for case in ours
            if case.kind in kinds and (case.device.name, case.seconds) in by_seconds
        ]
        assert len(same) > 100
        alike = [case.kernels == other.kernels for case, other in same]
        assert sum(alike) > 0.95 * len(alike)  # two cases of a device may take the same time


@pytest.mark.slow
def test_training_steps(shared):
    from validation.fitting import paradnn

    found = mapped(shared / "pytorch-paradnn/fc_T4_dev.csv.gz", "paradnn")
    for case in islice(found, 2):
        layers, nodes, inputs, outputs = case.workload.params.values()
        batch = case.workload.batch_per_replica
        assert case.kernels == paradnn.kernels_of(layers - 1, nodes, inputs, outputs, batch)
        assert case.stack == paradnn.STACK
