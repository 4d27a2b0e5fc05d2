"""The table of questions, and what programs find in `steptime` by name.

A question is one file in the room that answers it and one row here. Its command, its function of
Python, its schema and its page of the documents are derived from both.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, get_type_hints

PANELS = ("Predict", "Explain", "Measure", "Results", "Look up")


class QuestionRow(NamedTuple):
    """A row of the table: where it stands in the help, and what answers it.

    `answer` is `module:function`, of the command and of Python. Without a panel a command is not
    shown, and its help says what it is called now: `renamed`.
    """

    panel: str
    answer: str
    renamed: str = ""


QUESTIONS = {
    "predict": QuestionRow("Predict", "steptime.questions.predict:predict"),
    "fit": QuestionRow("Predict", "steptime.questions.fit:fit"),
    "choose": QuestionRow("Predict", "steptime.cli.choose:choose"),
    "scale": QuestionRow("Predict", "steptime.cli.scale:scale"),
    "plan": QuestionRow("Predict", "steptime.cli.plan:plan"),
    "serve": QuestionRow("Predict", "steptime.cli.serve:serve"),
    "count": QuestionRow("Explain", "steptime.questions.count:count"),
    "why": QuestionRow("Explain", "steptime.cli.why:why"),
    "whatif": QuestionRow("Explain", "steptime.cli.whatif:whatif"),
    "doctor": QuestionRow("Measure", "steptime.questions.doctor:doctor"),
    "calibrate": QuestionRow("Measure", "steptime.cli.calibrate:calibrate"),
    "run": QuestionRow("Measure", "steptime.cli.run:run"),
    "sweep": QuestionRow("Measure", "steptime.sweeps.question:sweep"),
    "import": QuestionRow("Results", "steptime.cli.import_:import_"),
    "report": QuestionRow("Results", "steptime.cli.report:report"),
    "compare": QuestionRow("Results", "steptime.cli.compare:compare"),
    "analyse": QuestionRow("Results", "steptime.reports.answered:analyse"),
    "evaluate": QuestionRow("Results", "steptime.cli.evaluate:evaluate"),
    "list": QuestionRow("Look up", "steptime.cli.list:list_"),
    "query": QuestionRow("Look up", "steptime.cli.query:query"),
    "explore": QuestionRow("", "steptime.cli.explore:explore", renamed="choose --page"),
    "probe": QuestionRow("", "steptime.cli.probe:probe", renamed="calibrate --only ceilings"),
    "status": QuestionRow("", "steptime.sweeps.cluster.jobs:status", renamed="sweep status"),
    "collect": QuestionRow("", "steptime.sweeps.cluster.jobs:collect", renamed="sweep collect"),
    "cancel": QuestionRow("", "steptime.sweeps.cluster.jobs:cancel", renamed="sweep cancel"),
    "plot": QuestionRow("", "steptime.cli.analysis:plot", renamed="analyse"),
    "export": QuestionRow("", "steptime.cli.query:export", renamed="query --out"),
    "split": QuestionRow("", "steptime.questions.split:split"),
    "convert": QuestionRow("", "steptime.cli.convert:convert"),
    "energy": QuestionRow("", "steptime.cli.energy:energy"),
    "systolic": QuestionRow("", "steptime.cli.systolic:systolic"),
    "data": QuestionRow("", "steptime.cli.data:data"),
}
BESIDE = {  # what is no question: what extensions are made of, and what there is by name
    "Cluster": "steptime.hardware.device:Cluster",
    "Device": "steptime.hardware.device:Device",
    "Interval": "steptime.prediction.kernel:Interval",
    "Kernel": "steptime.prediction.kernel:Kernel",
    "Link": "steptime.hardware.device:Link",
    "METHODS": "steptime.prediction:METHODS",
    "Method": "steptime.prediction.method:Method",
    "OPS": "steptime.network.ops:OPS",
    "StepModel": "steptime.prediction.step_model:StepModel",
    "count_step": "steptime.build:count_step",
    "device": "steptime.hardware.catalog:device",
    "from_module": "steptime.questions.module_file:from_module",
    "link": "steptime.hardware.catalog:link",
    "predict_op": "steptime.calibration.one_op:predict_op",
    "stack_names": "steptime.hardware.catalog:stack_names",
}
NAMES = BESIDE | {  # what Python finds, and where
    ("import_" if name == "import" else name): row.answer
    for name, row in QUESTIONS.items()
    if row.panel
}


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of a question's input, with that of its answer under `output`.

    Raises:
        InputError: for an unknown question.
    """
    from steptime.core.errors import one_of
    from steptime.core.registry import load

    one_of("question", name, QUESTIONS)
    function = load(QUESTIONS[name].answer)
    inquiry = getattr(function, "inquiry", None)
    if inquiry is not None:
        return {"title": name, **inquiry.schema}
    return {"title": name, **_plain_schema(function)}


def _plain_schema(function: Callable[..., Any]) -> dict[str, Any]:
    from steptime.core.answer import Answer, answer_schema
    from steptime.core.docstrings import summary
    from steptime.core.signature import REQUIRED, parameters_of

    parameters = parameters_of(function)
    schema: dict[str, Any] = {
        "description": summary(function.__doc__ or ""),
        "type": "object",
        "properties": {parameter.name: parameter.schema for parameter in parameters},
        "required": [item.name for item in parameters if item.default is REQUIRED],
    }
    kind = get_type_hints(function)["return"]
    if isinstance(kind, type) and issubclass(kind, Answer):
        schema["output"] = answer_schema(kind)
    return schema


def __getattr__(name: str) -> Any:
    """Return a name that Python finds, importing what it needs."""
    if name not in NAMES:
        raise AttributeError(f"module 'steptime' has no attribute {name!r}")
    from steptime.core.registry import load

    return load(NAMES[name])
