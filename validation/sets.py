"""The sets of rows that constants may say in `rows`: what validation can leave out.

A set is a kind of table, by the name of its layout, wherever its rows lie; of single ops, of
networks, of steps, of servings, of exchanges.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from steptime.calibration.cases import conditions
from steptime.core.tables.table import Column, Table
from steptime.core.toml_files import read_packaged_toml
from steptime.hardware import catalog
from steptime.hardware.constants import Constant
from validation.layouts import layouts

OWNERS = ("gpu", "cpu", "host", "link")  # files of priors
ELSEWHERE = {  # sets that no layout reads
    "aiconfigurator_attention": "watts of attention while it decodes, of AIConfigurator's kernels",
    "aiconfigurator_kernels": "casts, experts and attention of AIConfigurator's kernels, by engine",
    "llm_inference_bench": "static batches of LLM-Inference-Bench under vLLM, not blind for that",
    "blis": "first tokens of the blind table of BLIS, which are not blind for that",
    "timm": "networks of timm, whose graphs `validation/fitting/export_timm.py` writes",
    "zeus": "epochs under limits of power, of which ratios tell",
    "unseen_classes": "figures of tests/prediction/test_unseen_classes.py",
}
GROUNDS = ("fitted to rows", "judged", "from a source")
OF_CENSUS = (Column("owner"), Column("constants"), *map(Column, GROUNDS))
OF_SETS = (Column("set"), Column("constants"))


def names() -> frozenset[str]:
    """Return the names of all sets."""
    return frozenset(ELSEWHERE).union(layout.key for layout in layouts())


def owned() -> Iterator[tuple[str, str, Constant]]:
    """Yield the owner, the full name and the constant of all that are shipped.

    What a stack has from the one that it is `like` is that one's.
    """
    for owner in OWNERS:
        for name, one in catalog.constants_of(owner).items():
            yield owner, name, one
    for name, one in conditions().items():
        yield "conditions", name, one
    for stack in catalog.stack_names(with_user_files=False):
        for name, one in constants_of_stack(stack).items():
            base = catalog.stack(stack).base
            if not base or constants_of_stack(base).get(name) != one:
                yield stack, name, one


def constants_of_stack(name: str) -> dict[str, Constant]:
    """Return all constants of a stack, by full name."""
    stack = catalog.stack(name)
    return {**stack.host, **stack.uses, **stack.memory}


def neutral_value(name: str) -> float | None:
    """Return what a constant of a price is where no rows tell it; None for those of stacks."""
    value: float | None = read_packaged_toml("constants.toml")["neutral"].get(name)
    return value


def ground(one: Constant) -> str:
    """Return what a constant stands on: rows, a judgement, or a source that is no row."""
    if one.rows:
        return "fitted to rows"
    return "judged" if one.why.startswith("judged") else "from a source"


def census() -> list[dict[str, Any]]:
    """Return the number of constants of each owner, by what they stand on, and of all."""
    every = [(owner, ground(one)) for owner, _, one in owned()]
    counts = Counter(every)
    found = []
    for owner in [*dict.fromkeys(owner for owner, _ in every), "together"]:
        of = [n for (who, _), n in counts.items() if owner in (who, "together")]
        row: dict[str, Any] = {"owner": owner, "constants": sum(of)}
        for words in GROUNDS:
            own = (
                n for (who, on), n in counts.items() if owner in (who, "together") and on == words
            )
            row[words] = sum(own)
        found.append(row)
    return found


def by_set() -> list[dict[str, Any]]:
    """Return the sets, and how many constants each told."""
    told = Counter(name for _, _, one in owned() for name in one.rows)
    return [{"set": name, "constants": told[name]} for name in sorted(names())]


def tables() -> list[Table]:
    """Return the tables of `python -m validation --sets`: constants by owner, and by set."""
    return [
        Table(OF_CENSUS, census(), "Constants by owner"),
        Table(OF_SETS, by_set(), "Constants fitted to a set"),
    ]
