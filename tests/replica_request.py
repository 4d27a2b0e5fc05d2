"""What a worker is asked in the tests of replicas: two of them, for a tenth of a second."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from steptime.build import make_workload, read_model
from steptime.core.workload import workload_to_json
from steptime.measure.contract import Options

SMALL = "fc:layers=2,nodes=64,inputs=50,outputs=10"


def request(strategy: str, model: str = SMALL, **changes: Any) -> dict[str, Any]:
    """Return the request; `work` and `options` change the workload and the options."""
    workload = make_workload(read_model(model), 8, replicas=2, **changes.pop("work", {}))
    options = Options(threads=1, strategy=strategy, **changes.pop("options", {}))
    return {
        "do": "measure",
        "workload": workload_to_json(workload),
        "platform": "cpu-of-the-test",
        "timing": {"budget_s": 0.1},
        "parts": False,
        "energy": False,
        "options": asdict(options),
        "runs": 1,
        "env": {"cell": "", "round": 0},
        **changes,
    }
