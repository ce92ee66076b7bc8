"""`@dataclass(frozen=True)` that compiles nothing: methods are shared by all classes instead of being written out for each.

The standard decorator writes and compiles six methods for every class; for the hundred settings of a run that takes longer
than an estimate. `dataclasses.fields`, `replace` and `asdict` work as ever.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dataclasses import dataclass
    from inspect import Signature

__all__ = ["dataclass"]


class _Fields(NamedTuple):
    """What the shared methods know of a class."""

    names: tuple[str, ...]
    """Arguments in their order."""
    known: frozenset[str]
    defaults: dict[str, Any]
    factories: tuple[tuple[str, Callable[[], Any]], ...]
    key: Callable[[Any], Any]
    """The fields that are compared, as one value."""
    number: int
    then: bool
    """Whether the class has a `__post_init__`."""


def _fields_of(cls: type[Any]) -> _Fields:
    fields = dataclasses.fields(cls)
    names = tuple(one.name for one in fields if one.init)
    return _Fields(
        names,
        frozenset(names),
        {one.name: one.default for one in fields if one.default is not dataclasses.MISSING},
        tuple((one.name, one.default_factory) for one in fields if one.default_factory is not dataclasses.MISSING),
        attrgetter(*(one.name for one in fields if one.compare)),
        len(fields),
        hasattr(cls, "__post_init__"),
    )


def _init(self: Any, *args: Any, **given: Any) -> None:
    of: _Fields = self._fields_
    if args:
        given = _by_name(self, of, args, given)
    values = self.__dict__
    values.update(of.defaults)
    values.update(given)
    for name, factory in of.factories:
        if name not in values:
            values[name] = factory()
    if len(values) != of.number or not given.keys() <= of.known:
        raise TypeError(_wrong(self, of, given))
    if of.then:
        self.__post_init__()


def _by_name(self: Any, of: _Fields, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Arguments by position and by name together. Raises TypeError for too many, and for one that is given twice."""
    called = f"{type(self).__name__}.__init__()"
    if len(args) > len(of.names):
        raise TypeError(f"{called} takes {len(of.names)} arguments but {len(args)} were given")
    placed = dict(zip(of.names, args, strict=False))
    for name in placed.keys() & given.keys():
        raise TypeError(f"{called} got multiple values for argument {name!r}")
    return {**placed, **given}


def _wrong(self: Any, of: _Fields, given: dict[str, Any]) -> str:
    """What the arguments lack, or have too many of."""
    called = f"{type(self).__name__}.__init__()"
    unknown = [name for name in given if name not in of.known]
    if unknown:
        return f"{called} got an unexpected keyword argument {unknown[0]!r}"
    missing = [name for name in of.names if name not in self.__dict__]
    return f"{called} missing required arguments: {', '.join(map(repr, missing))}"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._fields_.key(self) == self._fields_.key(other)


def _hash(self: Any) -> int:
    return hash(self._fields_.key(self))


def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _setattr(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


class _SignatureOf:
    """The signature of a class for `help` and editors, made when it is asked for."""

    def __get__(self, instance: object, owner: type[Any]) -> Signature:
        from inspect import Parameter, Signature

        fields = [one for one in dataclasses.fields(owner) if one.init]
        has_default = [one.default if one.default is not dataclasses.MISSING else one.default_factory for one in fields]
        return Signature(
            [
                Parameter(
                    one.name,
                    Parameter.POSITIONAL_OR_KEYWORD,
                    default=Parameter.empty if default is dataclasses.MISSING else default,
                    annotation=one.type,
                )
                for one, default in zip(fields, has_default, strict=True)
            ]
        )


_METHODS = {
    "__init__": _init,
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__signature__": _SignatureOf(),
}

if not TYPE_CHECKING:

    def dataclass(*, frozen: bool) -> Callable[[type[Any]], type[Any]]:
        """The decorator; every class of it is frozen, and compares, hashes and prints by its fields as dataclasses do."""
        assert frozen

        def made(cls: type[Any]) -> type[Any]:
            own = vars(cls)
            own_methods = {name for name in _METHODS if own.get(name) is not None}
            dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
            for name, method in _METHODS.items():
                if name not in own_methods:
                    setattr(cls, name, method)
            cls._fields_ = _fields_of(cls)
            return cls

        return made
