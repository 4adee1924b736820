"""`bundle_router.dataclass` beside the standard library's, over the same classes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from bundle_router.dataclass import dataclass, field, replace


def made_by(decorate: Callable[..., Any]) -> Any:
    """Return a class with every kind of field that the package uses, made by the decorator."""

    @decorate(frozen=True, slots=True)
    class Sample:
        """A sample."""

        KIND: ClassVar[str] = "sample"
        name: str
        size: int = 3
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)
        hidden: str = dataclasses.field(default="h", repr=False)
        later: bool = dataclasses.field(default=False, kw_only=True)
        counted: int = dataclasses.field(default=1, init=False)

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("a size is not negative")

    Sample.__qualname__ = "Sample"
    return Sample


OURS, THEIRS = made_by(dataclass), made_by(dataclasses.dataclass)
GIVEN: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    (("a",), {}),
    (("a", 4), {}),
    (("a", 4, ["x"]), {}),
    (("a",), {"hidden": "z"}),
    (("a",), {"later": True}),
    (("b",), {"size": 3, "tags": ["y"]}),
    ((), {}),
    (("a", 4, [], "h", True), {}),
    (("a",), {"counted": 2}),
    (("a",), {"other": 2}),
    (("a", -1), {}),
)


def outcome(cls: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        one = cls(*arguments, **named)
    except (TypeError, ValueError) as error:
        return type(error)
    return repr(one), dataclasses.asdict(one)


@pytest.mark.parametrize(("arguments", "named"), GIVEN)
def test_a_value_is_made_shown_and_refused_alike(
    arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert outcome(OURS, arguments, named) == outcome(THEIRS, arguments, named)


def test_values_are_equal_and_hashed_alike() -> None:
    good = [given for given in GIVEN if isinstance(outcome(THEIRS, *given), tuple)]
    assert len(good) == 6
    for arguments, named in good:
        for others, other_named in good:
            ours, theirs = (
                (cls(*arguments, **named), cls(*others, **other_named)) for cls in (OURS, THEIRS)
            )
            assert (ours[0] == ours[1]) is (theirs[0] == theirs[1])
            assert ours[0] != ours[1] or hash(ours[0]) == hash(ours[1])
    assert OURS("a") != THEIRS("a")
    assert OURS("a") != "a"


def test_what_tools_look_at_is_alike() -> None:
    ours, theirs = (
        [(f.name, f.type, f.init, f.kw_only) for f in dataclasses.fields(cls)]
        for cls in (OURS, THEIRS)
    )
    assert ours == theirs
    assert (OURS.__match_args__, OURS.__slots__, OURS.__doc__) == (
        THEIRS.__match_args__, THEIRS.__slots__, THEIRS.__doc__,
    )  # fmt: skip
    names = [
        [(p.name, p.kind) for p in inspect.signature(cls).parameters.values()]
        for cls in (OURS, THEIRS)
    ]
    assert names[0] == names[1]


def test_a_value_can_not_be_changed_and_can_be_copied() -> None:
    one = OURS("a", tags=["x"])
    for name in ("size", "new"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, name, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.size
    assert replace(one, size=5) == OURS("a", 5)
    assert OURS("a").tags is not OURS("a").tags
    other = copy.deepcopy(one)
    assert (other, other.tags) == (one, ["x"])
    assert other.tags is not one.tags


@dataclass(frozen=True, slots=True)
class Sent:
    """A value that another process is sent."""

    name: str
    parts: tuple[int, ...] = field(default=())


def test_a_value_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(Sent("a", (1, 2)))) == Sent("a", (1, 2))
