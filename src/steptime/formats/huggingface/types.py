"""The table of `model_type`s: each is a function from the fields of a file to hyperparameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module

from steptime.formats.huggingface.config import Config, Settings

TRANSFORMER = "steptime.network.families.transformer:FAMILY"
MODULES = (
    "decoders",
    "further_decoders",
    "mixtures",
    "latent",
    "hybrids",
    "streams",
    "states",
    "selective",
    "sparse",
    "encoders",
    "further_encoders",
    "images",
    "sounds",
)  # of families, in the order of the docs
HEAD_BY_CLASS_END = {  # ends of the names of classes, and what their networks end with
    "ForCausalLM": "words",
    "Model": "none",
    "ForSequenceClassification": "classes",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "spans",
    "LMHeadModel": "words",
    "ForMaskedLM": "masked",
    "ForMultipleChoice": "choices",
    "ForPreTraining": "pretraining",
    "ForNextSentencePrediction": "pair",
    "ForConditionalGeneration": "words",
    "WithLMHeadModel": "words",
    "EncoderModel": "encoder",
    "ForAudioClassification": "sound",
    "ForCTC": "tokens",
    "ForImageClassification": "classes",
    "ForMaskedImageModeling": "pixels",
    "ForImageClassificationWithTeacher": "teacher",
    "ModelWithProjection": "projected",
}
SPAN_CLASSES = 2  # scores of a token: that a span starts there, and that it ends there
DECODER_HEADS = (
    "ForCausalLM",
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
)
_LIGHTNING = "attention to a state that fades by a fixed rate, in blocks (lightning attention)"
UNREAD_TYPES = {  # types that something decides which no op here has
    "minimax": _LIGHTNING,
    "minimax_m1": _LIGHTNING,
    "minimax_text_01": _LIGHTNING,
    "nanochat": "norms without weights",
}
Describe = Callable[[Config], Settings]


@dataclass(frozen=True)
class ModelType:
    """One `model_type`.

    Attributes:
        name: the type as files say it.
        describe: makes the hyperparameters of its network from the fields of a file.
        class_name: the name of its class without its end.
        head_by_class_end: what a network ends with, by the end of the name of its class; the first
            is usual.
        default_label_count: classes where a file says none.
        free_parameters: hyperparameters that a user may choose.
        family: the family of networks whose hyperparameters these are.
        decoder_type: the type of the decoder of words where a nested table names none; the decoder
            alone is counted. "" for a type that is no composition of such a decoder and an encoder.
        tower_types: the type of each tower, by the name of its nested table.
        is_part: the type stands in nested tables only.
        outer_fields: fields of the nested table of such a type that the whole reads.
    """

    name: str
    describe: Describe
    class_name: str
    head_by_class_end: Mapping[str, str]
    default_label_count: int = 2
    free_parameters: tuple[str, ...] = ("length",)
    family: str = TRANSFORMER
    decoder_type: str = ""
    tower_types: Mapping[str, str] = field(default_factory=dict)
    is_part: bool = False
    outer_fields: tuple[str, ...] = ()

    @property
    def is_decoder(self) -> bool:
        """Whether it is a decoder of words, as compositions have one."""
        return self.head_by_class_end.get("ForCausalLM") == "words" and not self.decoder_type


_TYPES: dict[str, ModelType] = {}


def model_type(
    name: str,
    class_name: str = "",
    class_ends: tuple[str, ...] = DECODER_HEADS,
    changed_heads: Mapping[str, str] | None = None,
    **options: object,
) -> Callable[[Describe], Describe]:
    """Return a decorator that adds a function to the table of types.

    Args:
        name: the `model_type`.
        class_name: the name of its class without its end; by default made from the type.
        class_ends: ends of the names of its classes, the usual one first.
        changed_heads: what some of these end with, where that is not what `HEAD_BY_CLASS_END` says.
        **options: further fields of `ModelType`.
    """
    head_by_end = HEAD_BY_CLASS_END | dict(changed_heads or {})
    name_in_title_case = name.replace("_", " ").title().replace(" ", "")

    def add(describe: Describe) -> Describe:
        type_heads = {end: head_by_end[end] for end in class_ends}
        stem = class_name or name_in_title_case
        # mypy cannot see that options are fields of `ModelType`
        _TYPES[name] = ModelType(name, describe, stem, type_heads, **options)  # type: ignore[arg-type]
        return describe

    return add


def describe_nothing(_: Config) -> Settings:
    """Make the hyperparameters of a composition of networks: it has none of its own."""
    return {}


@cache
def all_types() -> Mapping[str, ModelType]:
    """Return every type by its name, those of nested tables too."""
    for module in MODULES:
        import_module(f"steptime.formats.huggingface.{module}")
    return _TYPES


@cache
def types() -> Mapping[str, ModelType]:
    """Return the types that a whole file may have, by their names."""
    return {name: row for name, row in sorted(all_types().items()) if not row.is_part}
