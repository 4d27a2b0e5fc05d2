"""The table of questions, and what programs find in `steptime` by name.

A question is one function in the package that answers it and one row here. Its command, its
function in Python, its schema and its section of the documents are derived from both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

if TYPE_CHECKING:
    from steptime.core.json_types import JsonObject

PANELS = ("Predict", "Explain", "Measure", "Results", "Look up and convert")


class QuestionRow(NamedTuple):
    """A row of the table of questions: `answer` is `module:function`; `panel` heads it in the help.

    A command of two words, such as `sweep status`, stands in the help of its first word.
    """

    panel: str
    answer: str


QUESTIONS = {
    "predict": QuestionRow("Predict", "steptime.questions.predict.question:predict"),
    "fit": QuestionRow("Predict", "steptime.questions.fit.question:fit"),
    "choose": QuestionRow("Predict", "steptime.questions.choose.question:choose"),
    "scale": QuestionRow("Predict", "steptime.questions.scale.question:scale"),
    "plan": QuestionRow("Predict", "steptime.questions.plan.question:plan"),
    "serve": QuestionRow("Predict", "steptime.questions.serve.question:serve"),
    "split": QuestionRow("Predict", "steptime.questions.split:split"),
    "energy": QuestionRow("Predict", "steptime.questions.energy.question:energy"),
    "systolic": QuestionRow("Predict", "steptime.questions.systolic:systolic"),
    "count": QuestionRow("Explain", "steptime.questions.count:count"),
    "why": QuestionRow("Explain", "steptime.questions.why.question:why"),
    "whatif": QuestionRow("Explain", "steptime.questions.whatif.question:whatif"),
    "doctor": QuestionRow("Measure", "steptime.questions.doctor.question:doctor"),
    "calibrate": QuestionRow("Measure", "steptime.questions.calibrate.question:calibrate"),
    "run": QuestionRow("Measure", "steptime.questions.run.question:run"),
    "data": QuestionRow("Measure", "steptime.questions.data:data"),
    "sweep": QuestionRow("Measure", "steptime.questions.sweep.question:sweep"),
    "sweep status": QuestionRow("Measure", "steptime.questions.sweep.jobs:status"),
    "sweep collect": QuestionRow("Measure", "steptime.questions.sweep.jobs:collect"),
    "sweep cancel": QuestionRow("Measure", "steptime.questions.sweep.jobs:cancel"),
    "import": QuestionRow("Results", "steptime.questions.import_:import_"),
    "report": QuestionRow("Results", "steptime.questions.report:report"),
    "compare": QuestionRow("Results", "steptime.questions.compare.question:compare"),
    "analyse": QuestionRow("Results", "steptime.questions.analyse:analyse"),
    "evaluate": QuestionRow("Results", "steptime.questions.evaluate.question:evaluate"),
    "list": QuestionRow("Look up and convert", "steptime.questions.list.question:list_"),
    "query": QuestionRow("Look up and convert", "steptime.questions.query:query"),
    "convert": QuestionRow("Look up and convert", "steptime.questions.convert:convert"),
}
PROGRAMS = {"mcp": QuestionRow("Look up and convert", "steptime.integrations.mcp_command:mcp")}
"""Commands that are no questions: they serve other programs."""
RESERVED = ("import", "data", "energy")
"""Names that a function of `steptime` cannot have: a keyword, and the package's own folders."""


def python_name(command: str) -> str:
    """Return the name of a command's function in Python: `sweep_status`, `import_`."""
    name = command.replace(" ", "_")
    return f"{name}_" if name in RESERVED else name


EXTENSION_NAMES = {  # what programs and extensions build on, besides the questions
    "Cluster": "steptime.hardware.device:Cluster",
    "Datasheet": "steptime.hardware.datasheet:Datasheet",
    "Device": "steptime.hardware.device:Device",
    "Interval": "steptime.prediction.kernel:Interval",
    "Kernel": "steptime.prediction.kernel:Kernel",
    "Link": "steptime.hardware.device:Link",
    "METHODS": "steptime.prediction:METHODS",
    "Method": "steptime.prediction.method:Method",
    "OPS": "steptime.network.ops:OPS",
    "StepModel": "steptime.prediction.steps.step_model:StepModel",
    "count_step": "steptime.questions.count:count_step",
    "device": "steptime.hardware.catalog:device",
    "from_module": "steptime.questions.module_file:from_module",
    "link": "steptime.hardware.catalog:link",
    "predict_op": "steptime.calibration.one_op:predict_op",
    "schema": "steptime.api:schema",
    "stack_names": "steptime.hardware.catalog:stack_names",
    "watch": "steptime.integrations.watch:watch",
}
NAMES = EXTENSION_NAMES | {python_name(name): row.answer for name, row in QUESTIONS.items()}
"""What Python finds in `steptime` by name, as `module:attribute`."""


def schema(name: str) -> JsonObject:
    """Return the JSON schema of a question's input, with that of its answer under `output`.

    Raises:
        InputError: for an unknown question.
    """
    from steptime.core.errors import check_choice
    from steptime.core.registry import load

    check_choice("question", name, QUESTIONS)
    return {"title": name, **_question_schema(load(QUESTIONS[name].answer))}


def _question_schema(function: Callable[..., Any]) -> JsonObject:
    from steptime.core.answer import answer_kinds, answer_schema
    from steptime.core.signatures.docstrings import summary
    from steptime.core.signatures.signature import REQUIRED, parameters_of

    parameters = parameters_of(function)
    schema: JsonObject = {
        "description": summary(function.__doc__ or ""),
        "type": "object",
        "properties": {parameter.name: parameter.schema for parameter in parameters},
        "required": [item.name for item in parameters if item.default is REQUIRED],
    }
    hint = get_type_hints(function)["return"]
    if answer_kinds(hint):
        schema["output"] = answer_schema(hint)
    return schema


def __getattr__(name: str) -> Any:
    """Return a name that Python finds, importing what it needs."""
    if name not in NAMES:
        raise AttributeError(f"module 'steptime' has no attribute {name!r}")
    from steptime.core.registry import load

    return load(NAMES[name])
