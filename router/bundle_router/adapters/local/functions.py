"""Turns a typed function into a tool: its annotations and docstring give the name, the description
and the schema.

Rules:
1. A function that can't be described (a parameter without a type, `*args`) is refused here, not at
   its first call.
2. The agent sees the docstring's text and its descriptions of parameters, and nothing of the code.
3. The router supplies a parameter annotated with `ToolContext`; it is no argument.
4. A function's return value becomes blocks: text, JSON, bytes, pictures, or the blocks that it
   returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_origin, get_type_hints

from docstring_parser import Docstring, parse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, PydanticUndefined

from bundle_router.core.values import Data, LocalTool, Media, Text, ToolContext, ToolOutput
from bundle_router.errors import RequestError

ADVICE: Final = "annotate every parameter: `def get_ticket(number: int) -> str:`"
_ANY: Final = TypeAdapter(Any)


@dataclass(frozen=True, slots=True)
class _Signature:
    """How arguments are passed to the function: the model's field for each parameter, and the
    context's parameter.
    """

    parameters: Mapping[str, str]
    context: str | None
    positional: frozenset[str]

    def arguments(self, model: BaseModel, context: ToolContext) -> tuple[list[Any], dict[str, Any]]:
        values = {name: getattr(model, field) for name, field in self.parameters.items()}
        if self.context is not None:
            values[self.context] = context
        return [values.pop(name) for name in list(values) if name in self.positional], values


def local_tool(
    function: Callable[..., Any] | LocalTool, *, name: str = "", description: str = ""
) -> LocalTool:
    """Return a function as a tool.

    `name` and `description` replace its own. Raises RequestError.
    """
    if isinstance(function, LocalTool):
        return function
    kind = ""
    if isinstance(function, type):
        kind = f"the class {function.__name__}"
    elif not callable(function):
        kind = f"{function!r:.50}"
    if kind:
        raise RequestError(f"{kind} is not a tool", advice="give functions, or LocalTool values")
    title = name or getattr(function, "__name__", "")
    fault = ""
    if not title:
        fault = f"{function!r:.80} has no name"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        fault = f"the tool {title!r} is a generator"
    if fault:
        raise RequestError(
            fault,
            advice="write a function (`def`) that returns the result; name it with tool(name=…)",
        )
    documented = parse(inspect.getdoc(function) or "")
    words = description or _description_in(documented)
    if not words:
        raise RequestError(
            f"the tool {title!r} has no description",
            advice="write a docstring: agents choose by it",
        )
    model, signature = _describe(
        title, function, {row.arg_name: row.description or "" for row in documented.params}
    )
    run = _wrap_coroutine if inspect.iscoroutinefunction(function) else _wrap_function
    return LocalTool(title, words, model, run(function, signature))


def _description_in(documented: Docstring) -> str:
    """Return the paragraphs of a docstring before its parameters."""
    parts = (documented.short_description, documented.long_description)
    return "\n\n".join(part for part in parts if part)


def _describe(
    name: str, function: Callable[..., Any], texts: Mapping[str, str]
) -> tuple[type[BaseModel], _Signature]:
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
    except (NameError, TypeError, ValueError) as error:
        raise RequestError(
            f"the tool {name!r} can't be described: {error}", advice=ADVICE
        ) from None
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    context = None
    positional = set()
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RequestError(
                f"the tool {name!r} takes any number of {parameter.name!r}", advice=ADVICE
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.add(parameter.name)
        if parameter.name not in hints:
            raise RequestError(
                f"the tool {name!r}: parameter {parameter.name!r} has no type", advice=ADVICE
            )
        hint = hints[parameter.name]
        if hint is ToolContext:
            context = parameter.name
            continue
        # Fields are numbered and carry the parameter's name as alias: `schema` or `copy` would hide
        # a model's own.
        names[parameter.name] = field = f"argument_{len(names)}"
        fields[field] = (hint, _field(parameter, hint, texts.get(parameter.name, "")))
    try:
        model = create_model(
            f"{name}_arguments", __config__=ConfigDict(extra="forbid", frozen=True), **fields
        )
        model.model_json_schema()
    except (PydanticUserError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise RequestError(
            f"the tool {name!r} can't be described: {reason}", advice=ADVICE
        ) from None
    return model, _Signature(names, context, frozenset(positional))


def _field(parameter: inspect.Parameter, hint: Any, text: str) -> Any:
    default = parameter.default
    if isinstance(default, FieldInfo):
        default.alias = default.validation_alias = parameter.name
        default.description = default.description or text or None
        return default
    if default is parameter.empty:
        default = PydanticUndefined
    description = _annotated_description(hint) or text or None
    return Field(default, alias=parameter.name, description=description)


def _annotated_description(hint: Any) -> str | None:
    """Return the description in the first `Field` of an `Annotated` type."""
    extras = hint.__metadata__ if get_origin(hint) is Annotated else ()
    for extra in extras:
        if isinstance(extra, FieldInfo):
            return extra.description
    return None


def _wrap_function(
    function: Callable[..., Any], signature: _Signature
) -> Callable[[Any, ToolContext], ToolOutput]:
    def run(arguments: Any, context: ToolContext) -> ToolOutput:
        positional, keywords = signature.arguments(arguments, context)
        return tool_output(function(*positional, **keywords))

    return run


def _wrap_coroutine(
    function: Callable[..., Awaitable[Any]], signature: _Signature
) -> Callable[[Any, ToolContext], Awaitable[ToolOutput]]:
    async def run(arguments: Any, context: ToolContext) -> ToolOutput:
        positional, keywords = signature.arguments(arguments, context)
        return tool_output(await function(*positional, **keywords))

    return run


def tool_output(value: Any) -> ToolOutput:
    """Convert a function's return value to a tool's output.

    Raises TypeError if an agent can't be shown it.
    """
    if isinstance(value, ToolOutput):
        return value
    if isinstance(value, list | tuple) and any(map(_is_block, value)):
        return ToolOutput(tuple(map(_block, value)))
    return ToolOutput((_block(value),))


def _is_block(value: Any) -> bool:
    return isinstance(value, Text | Data | Media | bytes | bytearray) or hasattr(
        value, "_repr_png_"
    )


def _block(value: Any) -> Text | Data | Media:
    if isinstance(value, Text | Data | Media):
        return value
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, bytes | bytearray):
        return Media(bytes(value))
    if hasattr(
        value, "_repr_png_"
    ):  # how Pillow, Matplotlib and others show a picture in a notebook
        return Media(value._repr_png_(), "image/png")
    try:
        return Data(_ANY.dump_python(value, mode="json"))
    except PydanticSerializationError:
        raise TypeError(
            f"it returned {type(value).__name__}, which is neither text, JSON, bytes nor a block"
        ) from None
