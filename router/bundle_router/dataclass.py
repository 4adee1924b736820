"""`dataclass`, as in the standard library, for modules that every command loads.

The standard library compiles six methods when it makes a frozen class, which was a third of the CPU
of a cold `bundle-router route`. This one compiles `__init__` alone, for the first value; the other
methods read the fields through one getter. It fills a value of more than three fields while its
class is not frozen yet, at half the price.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

__all__ = ["dataclass", "field", "replace"]

_OPEN: Final[Any] = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:
    import dataclasses

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return what `dataclasses.replace` does, at a third of the price for a class of this
        module.
        """
        if (names := getattr(type(value), "__given__", None)) is None:
            return dataclasses.replace(value, **changes)
        return type(value)(**({name: getattr(value, name) for name in names} | changes))

    def dataclass(cls: type | None = None, /, **how: bool) -> Any:
        """Decorate a class as `dataclasses.dataclass` does; what is not `frozen` and `slots` is
        left to that.
        """
        if cls is None:
            return lambda decorated: dataclass(decorated, **how)
        if {**how, "kw_only": True} != {"frozen": True, "slots": True, "kw_only": True}:
            return dataclasses.dataclass(**how)(cls)
        cls.__doc__ = cls.__doc__ or cls.__name__  # else its signature is worked out
        kw_only = how.get("kw_only", False)
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(
            cls
        )
        compared = [item.name for item in fields(made) if item.compare]
        made.__given__ = tuple(item.name for item in fields(made) if item.init)
        shared = {"__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__init__": _Init(made)}
        for name, method in shared.items():
            if name not in cls.__dict__ or (name == "__hash__" and cls.__dict__[name] is None):
                setattr(made, name, method)
        made.__setattr__, made.__delattr__, made.__setstate__ = _refuse, _refuse, _set_state
        made.__compared__ = attrgetter(*compared) if compared else lambda _: ()
        return made


class _Init:
    """Compiles a class's `__init__` when it is first looked up: a command makes values of a third
    of the classes.
    """

    def __init__(self, made: type) -> None:
        self._made = made

    def __get__(self, instance: object, owner: type) -> Callable[..., None]:
        init: Any = _init_of(self._made)
        type.__setattr__(self._made, "__init__", init)
        return cast("Callable[..., None]", init.__get__(instance, owner))


def _init_of(made: type) -> Callable[..., None]:
    """Compile the `__init__` of a class of fields."""
    names: dict[str, Any] = {
        "_MISSING": MISSING,
        "_frozen": made,
        "_as": object.__dict__["__class__"].__set__,
    }
    if has_many := len(fields(made)) > 3 and not hasattr(made, "__orig_bases__"):  # no generic one
        names["_open"] = type(
            made.__name__, made.__bases__, {**_OPEN, "__slots__": made.__dict__["__slots__"]}
        )
    positional: list[str] = ["self"]
    keyword: list[str] = []
    body: list[str] = [" _as(self, _open)"] if has_many else []
    for item in fields(made):
        default, value = "", item.name
        if item.default is not MISSING:
            names[f"_default_{item.name}"] = item.default
            default = f"=_default_{item.name}"
        elif item.default_factory is not MISSING:
            names[f"_make_{item.name}"] = item.default_factory
            default, value = (
                "=_MISSING",
                f"_make_{item.name}() if {item.name} is _MISSING else {item.name}",
            )
        if item.init:
            (keyword if item.kw_only else positional).append(item.name + default)
        elif default:
            value = (
                f"_default_{item.name}" if item.default is not MISSING else f"_make_{item.name}()"
            )
        if item.init or default:
            names[f"_set_{item.name}"] = getattr(
                made, item.name
            ).__set__  # half the price of object.__setattr__
            body.append(
                f" self.{item.name} = {value}" if has_many else f" _set_{item.name}(self, {value})"
            )
    body += [" self.__class__ = _frozen"] if has_many else []
    if hasattr(made, "__post_init__"):
        body.append(" self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *keyword] if keyword else [])])
    exec(f"def __init__({parameters}):\n" + ("\n".join(body) or " pass"), names)  # noqa: S102 - names of fields alone
    init: Callable[..., None] = names["__init__"]
    init.__qualname__, init.__module__ = f"{made.__qualname__}.__init__", made.__module__
    init.__annotations__ = {
        **{item.name: item.type for item in fields(made) if item.init},
        "return": None,
    }
    return init


def _repr(self: Any) -> str:
    shown = ", ".join(
        f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr
    )
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    return (
        self.__compared__(self) == self.__compared__(other)
        if type(other) is type(self)
        else NotImplemented
    )


def _hash(self: Any) -> int:
    return hash(self.__compared__(self))


def _refuse(_self: object, name: str, *_value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _set_state(self: object, state: tuple[None, dict[str, Any]]) -> None:
    """Restore the fields of a copied or unpickled value."""
    for name, value in state[1].items():
        object.__setattr__(self, name, value)
