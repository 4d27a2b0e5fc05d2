"""Caches of pure functions that live as long as the frozen object that they describe."""

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Caches(dict[Callable[..., Any], Callable[..., Any]]):
    """By function, its memoised form for one owner; a test may switch memoising off."""

    def __init__(self, is_enabled: bool = True) -> None:
        self.is_enabled = is_enabled


class Owner(Protocol):
    """A frozen object with caches of its own."""

    @property
    def caches(self) -> Caches:
        """The caches of functions of this object."""


FrozenOwner = TypeVar("FrozenOwner", bound=Owner)


def cached_by_owner(
    function: Callable[Concatenate[FrozenOwner, Arguments], Result],
) -> Callable[Concatenate[FrozenOwner, Arguments], Result]:
    """Memoise a pure function of a frozen object and hashable arguments.

    It is `functools.cache` with one cache for each object, which goes when the object goes. Since
    all that the function reads are its arguments, the key cannot miss a setting.
    """

    @wraps(function)
    def look_up(owner: FrozenOwner, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            cached = owner.caches[function]
        except KeyError:
            # `is_enabled` is off where a test compares results with and without a cache.
            uncached = partial(function, owner)
            cached = cache(uncached) if owner.caches.is_enabled else uncached
            owner.caches[function] = cached
        result: Result = cached(*args, **kwargs)
        return result

    return cast("Callable[Concatenate[FrozenOwner, Arguments], Result]", look_up)
