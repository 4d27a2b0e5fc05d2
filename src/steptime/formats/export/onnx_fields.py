"""Numbers of the fields of an ONNX file's messages, as onnx.proto names them."""

from enum import IntEnum


class ModelField(IntEnum):
    """Fields of a ModelProto."""

    IR_VERSION = 1
    PRODUCER_NAME = 2
    GRAPH = 7
    OPSET_IMPORT = 8


class OpsetField(IntEnum):
    """Fields of an OperatorSetIdProto."""

    DOMAIN = 1
    VERSION = 2


class GraphField(IntEnum):
    """Fields of a GraphProto."""

    NODE = 1
    NAME = 2
    INITIALIZER = 5
    INPUT = 11
    OUTPUT = 12
    VALUE_INFO = 13


class NodeField(IntEnum):
    """Fields of a NodeProto."""

    INPUT = 1
    OUTPUT = 2
    NAME = 3
    OP_TYPE = 4
    ATTRIBUTE = 5


class AttributeField(IntEnum):
    """Fields of an AttributeProto: its name, its value by type, and the type."""

    NAME = 1
    FLOAT = 2
    INT = 3
    STRING = 4
    TENSOR = 5
    INTS = 8
    TYPE = 20


class AttributeType(IntEnum):
    """Values of AttributeProto.AttributeType."""

    FLOAT = 1
    INT = 2
    STRING = 3
    TENSOR = 4
    INTS = 7


class TensorField(IntEnum):
    """Fields of a TensorProto."""

    DIMS = 1
    DATA_TYPE = 2
    NAME = 8
    RAW_DATA = 9
    EXTERNAL_DATA = 13
    DATA_LOCATION = 14


class EntryField(IntEnum):
    """Fields of a StringStringEntryProto."""

    KEY = 1
    VALUE = 2


class ValueInfoField(IntEnum):
    """Fields of a ValueInfoProto."""

    NAME = 1
    TYPE = 2


class TypeField(IntEnum):
    """Fields of a TypeProto."""

    TENSOR_TYPE = 1


class TensorTypeField(IntEnum):
    """Fields of a TypeProto.Tensor."""

    ELEMENT_TYPE = 1
    SHAPE = 2


class ShapeField(IntEnum):
    """Fields of a TensorShapeProto."""

    DIMENSION = 1


class DimensionField(IntEnum):
    """Fields of a TensorShapeProto.Dimension."""

    SIZE = 1
