"""Whole transformers of other people, priced by the shipped constants as they are."""

from collections import defaultdict

import numpy as np
import pytest

from places import ROOT
from steptime.calibration.columns import Columns
from steptime.calibration.fit import constants_of, log_residuals
from steptime.hardware import catalog

REFERENCE = ROOT.parent / "shared/reference"


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="without the reference data")
def test_transformers_of_neusight_are_priced_as_well_as_by_it():
    """38 runs on 5 GPUs: NeuSight (ASPLOS 2025) is 9.8 % off, a roofline of float32 30 %."""
    from validation.fitting.neusight_models import with_rivals

    runs = defaultdict(list)
    rivals = []
    for case, rival in with_rivals(REFERENCE):
        runs[case.device.name].append(case)
        assert rival.neusight_s is not None
        rivals.append(abs(rival.neusight_s / case.seconds - 1))
    assert len(rivals) == 38
    constants = constants_of(catalog.priors("gpu"))
    off = np.concatenate([log_residuals(Columns(cases), constants) for cases in runs.values()])
    assert np.mean(rivals) == pytest.approx(0.098, abs=0.001)
    assert np.mean(np.abs(np.exp(-off) - 1)) < 0.12
    assert abs(np.mean(off)) < 0.08
