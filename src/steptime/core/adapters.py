"""The rows of `data/adapters.toml` and `data/few_bits.toml`: adapters, and frozen weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from steptime.core.toml_files import read_packaged_toml

AdapterValue = int | float | str
ROW_SCALES = 0  # the value of `FewBits.block` of a scale for each row
SCALE, SCALE_OF_SCALES, ZERO, COLUMN = EXTRA_NAMES = ("scale", "scale_of_scales", "zero", "column")


@dataclass(frozen=True)
class AdapterRow:
    """An adapter: small weights that are trained beside frozen ones.

    Attributes:
        title: its name in an answer.
        settings: the keys that it takes, with the value of each where nobody says it.
        code: the function that makes its ops, as `module:function`.
        source: who described it.
        peft_type: its type in a configuration of peft.
        flag: the key that tells it from another one of this type.
    """

    title: str
    settings: Mapping[str, AdapterValue]
    code: str
    source: str
    peft_type: str = ""
    flag: str = ""


@dataclass(frozen=True)
class FewBits:
    """How frozen weights are kept in few bits.

    Attributes:
        type: the type of an element.
        block: elements that share a scale; `ROW_SCALES` for those of a row.
        scale: the type of a scale.
        source: who described it.
        scale_block: scales that share another one, of float32; 0 without any.
        zero: the type of the zero point of a block; "" without any.
        column: the type of a number for each column; "" without any.
        places: `products`, `experts` or `all`; "" where the software decides on experts.
    """

    type: str
    block: int
    scale: str
    source: str
    scale_block: int = 0
    zero: str = ""
    column: str = ""
    places: str = ""

    def extra_tensors(self, shape: tuple[int, ...]) -> dict[str, tuple[int, str]]:
        """Return the tensors beside a matrix: number of elements and type, by a suffix."""
        element_count = prod(shape)
        row_count = element_count // shape[-1]
        has_row_scales = self.block == ROW_SCALES
        block_count = row_count if has_row_scales else ceil(element_count / self.block)
        # `scale`, `zero` and `column` are the types of such numbers; "": there are none of them.
        tensors = {SCALE: (block_count, self.scale)}
        if self.scale_block:  # the scales themselves are quantised, in blocks of so many
            tensors[SCALE_OF_SCALES] = (ceil(block_count / self.scale_block), "float32")
        if self.zero:
            tensors[ZERO] = (block_count, self.zero)
        if self.column:
            matrix_count = row_count // shape[-2]  # such as the experts of a layer
            tensors[COLUMN] = (matrix_count * shape[-1], self.column)
        return tensors


ADAPTERS: Mapping[str, AdapterRow] = {
    name: AdapterRow(**row) for name, row in read_packaged_toml("adapters.toml").items()
}
FEW_BITS: Mapping[str, FewBits] = {
    name: FewBits(**row) for name, row in read_packaged_toml("few_bits.toml").items()
}
