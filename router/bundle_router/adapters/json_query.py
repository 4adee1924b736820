"""JMESPath expressions of agents over untrusted JSON, bounded in steps and in the size of
intermediate values.
"""

from __future__ import annotations

from typing import Any, Final

from bundle_router.core.values.words import shorten

MAX_STEPS: Final = 1_000_000
"""Maximum visits of a node of the expression: about a second and a half."""
MAX_MADE: Final = 2_000_000
"""Maximum items or characters of an intermediate value: `[@, @][]` doubles it, and so does
`to_string`.
"""

_TOO_LARGE: Final = f"it makes a value of more than {MAX_MADE:,} items or characters"


def query_json(expression: str, value: Any) -> Any:
    """Return the result of a JMESPath expression on a JSON value, None for nothing.

    Raises ValueError, with a sentence, if the expression is invalid, does not fit the value, or
    takes too much.
    """
    import jmespath
    from jmespath import visitor
    from jmespath.exceptions import JMESPathError

    steps = 0

    class Bounded(visitor.TreeInterpreter):  # type: ignore[misc]  # jmespath ships no types
        def visit(self, node: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > MAX_STEPS:
                raise ValueError(f"it takes more than {MAX_STEPS:,} steps")
            made = super().visit(node, *arguments, **options)
            if isinstance(made, list | dict | str) and len(made) > MAX_MADE:
                raise ValueError(_TOO_LARGE)
            if node["type"] in (
                "multi_select_list",
                "multi_select_dict",
            ):  # `[@, @]` names a value twice, uncopied
                steps += _count_whole(made) // 4
            return made

    try:
        return Bounded().visit(jmespath.compile(expression).parsed, value)
    except JMESPathError as wrong:
        raise ValueError(shorten(" ".join(str(wrong).split()), 300)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (TypeError, AttributeError, KeyError, IndexError) as wrong:
        raise ValueError(f"it does not fit the value ({type(wrong).__name__})") from None


def _count_whole(value: Any) -> int:
    """Return how many items and characters a value has when it is written out.

    Raises ValueError for too many.
    """
    waiting = [value]
    count = 0
    while waiting:
        one = waiting.pop()
        count += len(one) if isinstance(one, list | dict | str) else 1
        if count > MAX_MADE:
            raise ValueError(_TOO_LARGE)
        if isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, dict):
            waiting.extend(one.values())
    return count
