"""The fields of a `config.json`, read one by one with the defaults of transformers' class."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, TypeVar

from steptime.core.errors import InputError, shorten
from steptime.core.values import MAX_COUNT

MAX_LIST_LENGTH = 10_000  # of a field: layers have one value at most
MAY_BE_ZERO = frozenset(
    {
        "type_vocab_size",
        "first_k_dense_replace",
        "n_shared_experts",
        "max_window_layers",
        "shared_intermediate_size",
        "hidden_size_per_layer_input",
        "num_kv_shared_layers",
        "num_hash_layers",
        "num_dense_layers",
    }
)
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
JsonValue = Any
Table = dict[str, JsonValue]  # values of a file by their names
Field = TypeVar("Field", int, float, bool, str, "list[Any]", "Table")
Setting = Any  # a number, a text, a truth, or the designs of blocks
Settings = dict[str, Setting]  # hyperparameters of a family of networks, by name


class Config:
    """The values of a `config.json` and what the network ends with.

    Attributes:
        table: the values of the file.
        place: the file, as messages begin.
        head: the end of the network, such as `words` or `classes`.
        label_count: the number of classes.
        remarks: sentences that the reader of an answer must know.
        read_fields: names of all fields that were read.
    """

    def __init__(
        self, table: Mapping[str, Any], place: str, head: str, label_count: int = 2
    ) -> None:
        self.table = table
        self.place = place
        self.head = head
        self.label_count = label_count
        self.remarks: list[str] = []
        self.read_fields: set[str] = set()
        # newer files have fields of rotary positions in a table of their own; the top level wins
        rope = table.get("rope_parameters") or table.get("rope_scaling")
        self._values = {**(rope if isinstance(rope, dict) else {}), **table}
        # both by the usual name of a field: the default of this model type, and its spelling here
        self._default_by_name: Table = {}
        self._spelling_by_name: dict[str, str] = {}

    def fill_defaults(self, **defaults: object) -> None:
        """Give defaults to fields without one; a family does it before the family that it extends.

        The first default of a field stays.
        """
        # earlier ones win
        self._default_by_name = {**defaults, **self._default_by_name}

    def rename(self, *, file_spelling_wins: bool = False, **spellings: str) -> None:
        """Read fields by another spelling too: `rename(n_embd="hidden_size")`.

        Args:
            file_spelling_wins: a file with both spellings means the other one, not the usual one.
            **spellings: the usual name by the other spelling.
        """
        self.read_fields |= {*spellings, *spellings.values()}
        for spelling, name in spellings.items():
            has_spelling = spelling in self._values
            may_replace = file_spelling_wins or name not in self._values
            is_first_spelling = name not in self._spelling_by_name
            if has_spelling and may_replace and is_first_spelling:
                self._spelling_by_name[name] = spelling

    def get(self, name: str, default: Field) -> Field:
        """Return a field of the type of `default`; null is 0, false or "".

        A list of one number, as often as there are layers, is that number.

        Raises:
            InputError: for a value of another type, or a 0 where no model has one.
        """
        self.read_fields.add(name)
        family_default: Field = self._default_by_name.get(name, default)
        spelling = self._spelling_by_name.get(name, name)
        if spelling not in self._values:
            return family_default
        stated_value = self._values[spelling]
        place = f"{self.place}: {spelling}"
        value: Field = check_value(stated_value, family_default, place)
        # 0 is a count in a few fields only
        is_count = type(family_default) is int and type(stated_value) is int
        if is_count and stated_value == 0 and name not in MAY_BE_ZERO:
            raise InputError(f"{place}: must be at least 1, not 0")
        return value

    def count(self, name: str, default: int) -> int:
        """Return a whole number of at least 1, which null is not."""
        value = self.get(name, default)
        if not value:
            spelling = self._spelling_by_name.get(name, name)
            raise InputError(f"{self.place}: {spelling}: must be at least 1, not null")
        return value

    def ignore_field(self, name: str, default: Any) -> None:
        """Pass over a field that changes neither the shapes nor the work; its type is checked.

        Raises:
            InputError: for a value of another type than the default's.
        """
        self.get(name, default)

    def get_tables(self, name: str) -> list[Table]:
        """Return a field that is a list of tables, [] where it is absent."""
        self.read_fields.add(name)
        value = self._values.get(name) or []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(name, f"must be a list of tables, not {shorten(value)}")
        return value

    def require(self, name: str, only: object) -> None:
        """Refuse a field that has another value than the one whose network is known."""
        self.read_fields.add(name)
        value: object = self.table.get(name, only)
        if value not in (only, None):
            raise InputError(f"{self.place}: {name}: {shorten(value)} is not known, only {only}")

    def replace(self, name: str, value: object) -> None:
        """Read a field as another value, where a file names in its own words what is known."""
        self._values[name] = value

    def remark(self, text: str) -> None:
        """Add a sentence that every answer on this network shows."""
        self.remarks.append(text)

    def error(self, name: str, text: str) -> InputError:
        """Make the error of a field whose value fits no model."""
        return InputError(f"{self.place}: {self._spelling_by_name.get(name, name)}: {text}")


def check_value(value: object, default: Any, place: str) -> Any:
    """Return a value of a file if it has the type of the default; null is nothing of that type."""
    if value is None:
        # null in a file: 0, false, "", or an empty list or table
        return type(default)()
    single_value = value
    if type(default) is int and isinstance(value, list):
        distinct_texts = {*map(repr, value)}  # `repr` tells 1 from True
        is_repeated_number = len(distinct_texts) == 1  # one for each layer
        single_value = value[0] if is_repeated_number else value
    if not _fits_type(single_value, default):
        expected = TYPE_NAMES.get(type(default), "a table" if default == {} else "a list")
        raise InputError(f"{place}: must be {expected}, not {shorten(single_value)}")
    return single_value


def _fits_type(value: object, default: object) -> bool:
    """Whether a value has the type of a default: a flat list, a number within limits, or equal."""
    if isinstance(default, list):
        if not isinstance(value, list) or len(value) > MAX_LIST_LENGTH:
            return False
        return not any(isinstance(item, list | dict) for item in value)
    if isinstance(default, float):
        if not isinstance(value, int | float) or type(value) is bool:
            return False
        return isfinite(value) and abs(value) <= MAX_COUNT
    if type(default) is int:
        return type(value) is int and 0 <= value <= MAX_COUNT
    return type(value) is type(default)


def join_numbers(values: Sequence[object]) -> str:
    """Return a list as settings write it: [2, 2, 6] is `2-2-6`."""
    return "-".join(map(str, values))


def repeat_letter(letter: str, times: int, end: str = "") -> str:
    """Return a pattern of layers: one letter up to 999 times, then an end."""
    return letter * min(max(times, 0), 999) + end
