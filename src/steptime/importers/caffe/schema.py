"""The fields of Caffe's network files, as a table, and the reading of their text with protobuf.

Names, types, defaults and enumerations are those of `caffe.proto` (BVLC Caffe 1.0). Field numbers
are not, because the text form does not use them, nor is `float`, so that 0.2 stays 0.2. Fields that
cannot change the time of a step are in the table too (fillers, sources, engines), so that whatever
is not in it is an error.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from steptime.core.errors import InputError, shorten, unknown

ENUMS = {  # values in order; their numbers do not matter either
    "Phase": "TRAIN TEST",
    "PoolMethod": "MAX AVE STOCHASTIC",
    "RoundMode": "CEIL FLOOR",
    "EltwiseOp": "SUM PROD MAX",
    "NormRegion": "ACROSS_CHANNELS WITHIN_CHANNEL",
    "Engine": "DEFAULT CAFFE CUDNN",
    "Database": "LEVELDB LMDB",
    "VarianceNorm": "FAN_IN FAN_OUT AVERAGE",
    "ShareMode": "STRICT PERMISSIVE",
    "Normalization": "FULL VALID BATCH_SIZE NONE",
    "HingeNorm": "L1 L2",
    "ReductionOp": "SUM ASUM SUMSQ MEAN",
    "V1Type": "NONE ABSVAL ACCURACY ARGMAX BNLL CONCAT CONTRASTIVE_LOSS CONVOLUTION DATA"
    " DECONVOLUTION DROPOUT DUMMY_DATA EUCLIDEAN_LOSS ELTWISE EXP FLATTEN HDF5_DATA HDF5_OUTPUT"
    " HINGE_LOSS IM2COL IMAGE_DATA INFOGAIN_LOSS INNER_PRODUCT LRN MEMORY_DATA"
    " MULTINOMIAL_LOGISTIC_LOSS MVN POOLING POWER RELU SIGMOID SIGMOID_CROSS_ENTROPY_LOSS SILENCE"
    " SOFTMAX SOFTMAX_LOSS SPLIT SLICE TANH WINDOW_DATA THRESHOLD",
}

_CONVOLUTION = (
    "num_output:uint32 pad:uint32* kernel_size:uint32* stride:uint32* dilation:uint32*"
    " pad_h:uint32 pad_w:uint32 kernel_h:uint32 kernel_w:uint32 stride_h:uint32 stride_w:uint32"
)
_PARAMETERS = {  # of each kind of layer, in the field `<key>_param`
    "transform": "scale:double mirror:bool crop_size:uint32 mean_file:string mean_value:double*"
    " force_color:bool force_gray:bool",
    "loss": "ignore_label:int32 normalization:Normalization normalize:bool",
    "accuracy": "top_k:uint32 axis:int32 ignore_label:int32",
    "argmax": "out_max_val:bool top_k:uint32 axis:int32",
    "batch_norm": "use_global_stats:bool moving_average_fraction:double eps:double",
    "bias": "axis:int32=1 num_axes:int32=1 filler:Filler",
    "clip": "min:double max:double",
    "concat": "axis:int32=1 concat_dim:uint32",
    "contrastive_loss": "margin:double legacy_version:bool",
    "convolution": f"{_CONVOLUTION} bias_term:bool=true group:uint32=1 weight_filler:Filler"
    " bias_filler:Filler engine:Engine axis:int32=1 force_nd_im2col:bool",
    "crop": "axis:int32=2 offset:uint32*",
    "data": "source:string batch_size:uint32 rand_skip:uint32 backend:Database scale:double"
    " mean_file:string crop_size:uint32 mirror:bool force_encoded_color:bool prefetch:uint32",
    "dropout": "dropout_ratio:double=0.5 scale_train:bool",
    "dummy_data": "data_filler:Filler* shape:Shape* num:uint32* channels:uint32* height:uint32*"
    " width:uint32*",
    "eltwise": "operation:EltwiseOp coeff:double* stable_prod_grad:bool",
    "elu": "alpha:double",
    "embed": "num_output:uint32 input_dim:uint32 bias_term:bool weight_filler:Filler"
    " bias_filler:Filler",
    "exp": "base:double scale:double shift:double",
    "flatten": "axis:int32=1 end_axis:int32=-1",
    "hdf5_data": "source:string batch_size:uint32 shuffle:bool",
    "hdf5_output": "file_name:string",
    "hinge_loss": "norm:HingeNorm",
    "image_data": "source:string batch_size:uint32=1 rand_skip:uint32 shuffle:bool"
    " new_height:uint32 new_width:uint32 is_color:bool=true scale:double mean_file:string"
    " crop_size:uint32 mirror:bool root_folder:string",
    "infogain_loss": "source:string axis:int32",
    "inner_product": "num_output:uint32 bias_term:bool=true weight_filler:Filler"
    " bias_filler:Filler axis:int32=1 transpose:bool",
    "input": "shape:Shape*",
    "log": "base:double scale:double shift:double",
    "lrn": "local_size:uint32=5 alpha:double=1 beta:double=0.75 norm_region:NormRegion k:double=1"
    " engine:Engine",
    "memory_data": "batch_size:uint32 channels:uint32 height:uint32 width:uint32",
    "mvn": "normalize_variance:bool across_channels:bool eps:double",
    "parameter": "shape:Shape",
    "pooling": "pool:PoolMethod pad:uint32* kernel_size:uint32* stride:uint32* pad_h:uint32"
    " pad_w:uint32 kernel_h:uint32 kernel_w:uint32 stride_h:uint32 stride_w:uint32 engine:Engine"
    " global_pooling:bool round_mode:RoundMode",
    "power": "power:double=1 scale:double=1 shift:double",
    "prelu": "filler:Filler channel_shared:bool",
    "python": "module:string layer:string param_str:string share_in_parallel:bool",
    "recurrent": "num_output:uint32 weight_filler:Filler bias_filler:Filler debug_info:bool"
    " expose_hidden:bool",
    "reduction": "operation:ReductionOp axis:int32 coeff:double",
    "relu": "negative_slope:double engine:Engine",
    "reshape": "shape:Shape axis:int32 num_axes:int32=-1",
    "scale": "axis:int32=1 num_axes:int32=1 filler:Filler bias_term:bool bias_filler:Filler",
    "sigmoid": "engine:Engine",
    "slice": "axis:int32=1 slice_point:uint32* slice_dim:uint32",
    "softmax": "engine:Engine axis:int32=1",
    "spp": "pyramid_height:uint32 pool:PoolMethod engine:Engine",
    "swish": "beta:double",
    "tanh": "engine:Engine",
    "threshold": "threshold:double",
    "tile": "axis:int32=1 tiles:int32",
    "window_data": "source:string scale:double mean_file:string batch_size:uint32"
    " crop_size:uint32 mirror:bool fg_threshold:double bg_threshold:double fg_fraction:double"
    " context_pad:uint32 crop_mode:string cache_images:bool root_folder:string",
}
_PARAMETER_FIELDS = " ".join(f"{key}_param:{key}_param" for key in _PARAMETERS)
_LAYER = (
    "name:string bottom:string* top:string* include:Rule* exclude:Rule* loss_weight:double*"
    f" blobs:Blob* {_PARAMETER_FIELDS}"
)
MESSAGES = {  # a message: its fields, `name:type`, with `*` if repeated, with `=` a default
    "Net": "name:string input:string* input_shape:Shape* input_dim:int64* force_backward:bool"
    " state:State debug_info:bool layer:Layer* layers:V1Layer*",
    "Layer": f"type:string phase:Phase param:Param* propagate_down:bool* {_LAYER}",
    "V1Layer": f"type:V1Type param:string* blob_share_mode:ShareMode* blobs_lr:double*"
    f" weight_decay:double* {_LAYER}",
    "State": "phase:Phase level:int32 stage:string*",
    "Rule": "phase:Phase min_level:int32 max_level:int32 stage:string* not_stage:string*",
    "Param": "name:string share_mode:ShareMode lr_mult:double=1 decay_mult:double",
    "Shape": "dim:int64*",
    "Blob": "shape:Shape data:double* diff:double* double_data:double* double_diff:double*"
    " num:int32 channels:int32 height:int32 width:int32",
    "Filler": "type:string value:double min:double max:double mean:double std:double sparse:int32"
    " variance_norm:VarianceNorm",
    **{f"{key}_param": fields for key, fields in _PARAMETERS.items()},
}
LONGEST_LINE = 10_000  # protobuf copies the line at every unknown field that it passes over
_FIELD = re.compile(r"(?P<name>\w+):(?P<type>\w+)(?P<many>\*?)(?:=(?P<default>\S+))?")
_PACKAGE = "steptime.caffe"


@lru_cache(maxsize=1)
def _net_class() -> Any:
    """Return the class of a network's message, made of the table."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="steptime/caffe", package=_PACKAGE, syntax="proto2"
    )
    holder = file.message_type.add(name="Enums")  # values of two enumerations may share a name
    for name, values in ENUMS.items():
        inner = holder.nested_type.add(name=name)
        enum = inner.enum_type.add(name=name)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, result in enumerate(_FIELD.finditer(fields), 1):
            field = message.field.add(name=result["name"], number=number)
            many = bool(result["many"])
            field.label = field_type.LABEL_REPEATED if many else field_type.LABEL_OPTIONAL
            kind = result["type"]
            if kind in ENUMS:
                field.type = field_type.TYPE_ENUM
                field.type_name = f".{_PACKAGE}.Enums.{kind}.{kind}"
            elif kind in MESSAGES:
                field.type = field_type.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(field_type, f"TYPE_{kind.upper()}")
            if result["default"]:
                field.default_value = result["default"]
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Net"))


def enum_name(message: Any, field: str) -> str:
    """Return the name of the value that an enumeration has in `message`."""
    kind = message.DESCRIPTOR.fields_by_name[field].enum_type
    return str(kind.values_by_number[getattr(message, field)].name)


@dataclass(frozen=True)
class Strange:
    """A field that is not in the table: its message, and the place of its layer in the file.

    `layer` counts the file's layers from 0; -1 is the network itself.
    """

    field: str
    message: str
    layer: int
    line: int

    def error(self, where: str) -> InputError:
        """Return the line that names the field and the nearest one of its message."""
        known = [field["name"] for field in _FIELD.finditer(MESSAGES[self.message])]
        return unknown("field", self.field, known, f"{where}: line {self.line}, in {self.message}")


def parse(text: str, where: str) -> tuple[Any, list[Strange]]:
    """Return the message of a network, and the fields in it that are not in the table.

    Raises `InputError` for what is not a text of this form.
    """
    from google.protobuf import text_format

    unread = (text_format.ParseError, RecursionError, ValueError, OverflowError)
    try:
        try:
            return text_format.Parse(text, _net_class()()), []
        except text_format.ParseError as error:
            if "has no field named" not in str(error):
                raise
        if max(map(len, text.split("\n"))) > LONGEST_LINE:
            raise InputError(f"{where}: unknown fields in lines of over {LONGEST_LINE} characters")
        message = text_format.Parse(text, _net_class()(), allow_unknown_field=True)
        return message, list(_strange_fields(text))
    except unread as error:
        raise _no_text(error, where) from None


def _strange_fields(text: str) -> Iterator[Strange]:
    """Return every field outside the table of a text that protobuf has read.

    A field's name is a word before a colon or a bracket; `inside` are the open messages, None for
    one of an unknown field.
    """
    from google.protobuf import text_format

    tokens = text_format.Tokenizer(text.split("\n"))
    inside: list[Any] = [_net_class().DESCRIPTOR]
    opened: Any = None
    layer = -1
    line = 0  # of the first one alone: protobuf tells it with a copy of the line
    while not tokens.AtEnd():
        token = tokens.token
        tokens.NextToken()
        if token in ("}", ">"):
            inside.pop()
        elif token in ("{", "<"):
            inside.append(opened)
        elif tokens.token in (":", "{", "<") and token not in (":", ",", ";", "[", "]"):
            field = inside[-1].fields_by_name.get(token) if inside[-1] else None
            opened = field.message_type if field else None
            layer += len(inside) == 1 and token in ("layer", "layers")
            if inside[-1] and not field:
                line = line or tokens.ParseErrorPreviousToken("").GetLine()
                yield Strange(token, inside[-1].name, layer if len(inside) > 1 else -1, line)


_PLACE = re.compile(r"(?:(\d+):\d+ : )?(?:'.*': )?(.*)")  # line, the line itself, what is wrong


def _no_text(error: Exception, where: str) -> InputError:
    if isinstance(error, RecursionError):
        return InputError(f"{where}: nested too deeply for a network")
    result = _PLACE.match(str(error).partition("\n")[0])
    line, reason = result.groups() if result else (None, "")
    text = shorten(re.sub(rf"{_PACKAGE}\.(Enums\.\w+\.)?", "", reason)).strip("'")
    at = f"line {line}: " if line else ""
    return InputError(f"{where}: {at}is no network in Caffe's text form: {text}")
