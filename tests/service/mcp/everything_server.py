"""A server with all of MCP: what the conformance scenarios expect to find at the other end, under
the names they use.

It speaks both eras. In the modern one what it needs of the client is in its results
(`input_required`); in the handshake era it asks the client in the middle of a call. Run it with a
port for an argument, until its input ends, or take `everything()` in a test.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
import uvicorn
from mcp.server.caching import CacheHint
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WAV: Final = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
MODERN: Final = "2026-07-28"
_KEY: Final = b"this server's own"
TICK_S: Final = 0.05
LARGE: Final = 60_000

Json = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """One request to a tool or a prompt, with what the client gave along with it."""

    context: Any
    arguments: Mapping[str, Any]
    params: Mapping[str, Any]

    @property
    def modern(self) -> bool:
        return bool(self.context.protocol_version == MODERN)

    @property
    def answers(self) -> Mapping[str, Any]:
        given = self.params.get("inputResponses")
        return given if isinstance(given, Mapping) else {}

    @property
    def capabilities(self) -> Mapping[str, Any]:
        declared = self.context.session.client_capabilities
        return declared.model_dump(by_alias=True, exclude_none=True) if declared is not None else {}

    def answer(self, name: str) -> Mapping[str, Any] | None:
        """What the client answered, where it is an object."""
        found = self.answers.get(name)
        return found if isinstance(found, Mapping) else None


Work = Callable[[Asked], Awaitable[Json]]


# --- results --------------------------------------------------------------------------------------


def whole(result: Json) -> Json:
    """The result in the modern era's words; the SDK leaves out what an older one has no word
    for.
    """
    return {"resultType": "complete", **result}


def text(words: str) -> Json:
    return {"content": [{"type": "text", "text": words}]}


def error(words: str) -> Json:
    return {**text(words), "isError": True}


def signed(value: str) -> str:
    return f"{value}.{hmac.new(_KEY, value.encode(), hashlib.sha256).hexdigest()}"


def opened(state: object) -> str:
    """The value of a state that this server gave out. Raises MCPError for any other."""
    value, _, _ = str(state).rpartition(".")
    if not hmac.compare_digest(signed(value), str(state)):
        raise MCPError(types.INVALID_PARAMS, "this requestState is not one of this server's")
    return value


def form(message: str, **kinds: str) -> Json:
    properties = {name: {"type": kind} for name, kind in kinds.items()}
    schema = {"type": "object", "properties": properties, "required": list(kinds)}
    return {
        "method": "elicitation/create",
        "params": {"message": message, "requestedSchema": schema},
    }


def sample(prompt: str, tokens: int = 100) -> Json:
    messages = [{"role": "user", "content": {"type": "text", "text": prompt}}]
    return {
        "method": "sampling/createMessage",
        "params": {"messages": messages, "maxTokens": tokens},
    }


ROOTS: Final[Json] = {"method": "roots/list", "params": {}}


def need(state: str | None = None, **requests: Json) -> Json:
    more = {} if state is None else {"requestState": signed(state)}
    return {"resultType": "input_required", "inputRequests": requests, **more}


# --- tools ----------------------------------------------------------------------------------------


def says(result: Json) -> Work:
    async def work(_asked: Asked) -> Json:
        return result

    return work


def asks(done: str, /, state: str | None = None, **requests: Json) -> Work:
    """Needs the answers to all of these, and the state if there is one, before it is done."""

    async def work(asked: Asked) -> Json:
        if state is not None and "requestState" in asked.params:
            opened(asked.params["requestState"])
        if all(asked.answer(name) is not None for name in requests):
            return text(f"{done}: {json.dumps(asked.answers, sort_keys=True)}")
        return need(state, **requests)

    return work


async def rounds(asked: Asked) -> Json:
    first, second = (
        form("Step 1: What is your name?", name="string"),
        form("Step 2: Which color?", color="string"),
    )
    if asked.answer("step2") is not None and opened(asked.params.get("requestState")) == "two":
        return text("Both steps are done.")
    if asked.answer("step1") is not None and opened(asked.params.get("requestState")) == "one":
        return need("two", step2=second)
    return need("one", step1=first)


async def as_able(asked: Asked) -> Json:
    """Asks for what the client said it can give, and nothing else."""
    if asked.answers:
        return text(f"The client gave: {', '.join(sorted(asked.answers))}.")
    requests = {
        "sampling": ("drafted", sample("Draft a line.")),
        "elicitation": ("named", form("Name?", name="string")),
        "roots": ("rooted", ROOTS),
    }
    able = dict(request for name, request in requests.items() if name in asked.capabilities)
    return need(None, **able) if able else text("The client can give nothing.")


async def needs_sampling(asked: Asked) -> Json:
    if "sampling" not in asked.capabilities:
        data: Json = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "this tool needs sampling", data)
    return text("The client can sample.")


async def progress(asked: Asked) -> Json:
    for done in (0, 50, 100):
        await asked.context.session.report_progress(done, 100, f"{done} of 100")
        await asyncio.sleep(TICK_S)
    return text("Every step was reported.")


async def logs(asked: Asked) -> Json:
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        with warnings.catch_warnings():  # deprecated, and still in both revisions
            warnings.simplefilter("ignore")
            await asked.context.session.send_log_message(
                "info", line, "everything", asked.context.request_id
            )
        await asyncio.sleep(TICK_S)
    return text("Every line was logged.")


def asks_midway(capability: str, request: Callable[[Asked], Json], done: str) -> Work:
    """Asks in the middle of the call in the handshake era; by its result in the modern one."""

    async def work(asked: Asked) -> Json:
        wanted = request(asked)
        if capability not in asked.capabilities:
            return error(f"This tool needs a client that is able to do {wanted['method']}.")
        if asked.modern:
            given = asked.answer("asked")
            return text(f"{done}: {json.dumps(given)}") if given is not None else need(asked=wanted)
        dispatch = (
            asked.context.session._request_outbound
        )  # typed methods would refuse schemas newer than they are
        given = await dispatch.send_raw_request(wanted["method"], wanted["params"])
        return text(f"{done}: {json.dumps(given)}")

    return work


async def asks_unasked(asked: Asked) -> Json:
    """Asks for all there is in the middle of a call, whatever the client said that it can give;
    tells what came.
    """
    came: Json = {}
    for wanted in (sample("Draft a line."), form("Name?", name="string"), ROOTS):
        if not asked.modern:
            try:
                await asked.context.session._request_outbound.send_raw_request(
                    wanted["method"], wanted["params"]
                )
            except MCPError as refusal:
                came[wanted["method"]] = refusal.error.code
            else:
                came[wanted["method"]] = "given"
    return text(json.dumps(came))


def elicits(message: str, properties: Json) -> Callable[[Asked], Json]:
    schema = {"type": "object", "properties": properties, "required": []}
    return lambda asked: {
        "method": "elicitation/create",
        "params": {
            "message": str(asked.arguments.get("message", message)),
            "requestedSchema": schema,
        },
    }


DEFAULTS: Final[Json] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
_PLAIN: Final = ["option1", "option2", "option3"]
_TITLED: Final = [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]
ENUMS: Final[Json] = {
    "untitledSingle": {"type": "string", "enum": _PLAIN},
    "titledSingle": {"type": "string", "oneOf": _TITLED},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2"],
        "enumNames": ["Option one", "Option two"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _PLAIN}},
    "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
}
USER: Final[Json] = {"username": {"type": "string"}, "email": {"type": "string"}}

EMBEDDED: Final = {
    "uri": "test://embedded-resource",
    "mimeType": "text/plain",
    "text": "This resource is embedded.",
}
MIXED: Final = {
    "uri": "test://mixed-content-resource",
    "mimeType": "application/json",
    "text": '{"test": "data"}',
}
IMAGE: Final = {"type": "image", "data": PNG, "mimeType": "image/png"}

TOOLS: Final[dict[str, tuple[str, Work]]] = {
    "test_simple_text": ("Says a line.", says(text("This is a simple text response for testing."))),
    "test_image_content": ("Gives an image.", says({"content": [IMAGE]})),
    "test_audio_content": (
        "Gives a sound.",
        says({"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]}),
    ),
    "test_embedded_resource": (
        "Gives a resource within its result.",
        says({"content": [{"type": "resource", "resource": EMBEDDED}]}),
    ),
    "test_multiple_content_types": (
        "Gives text, an image and a resource.",
        says(
            {
                "content": [
                    {"type": "text", "text": "Multiple content types test:"},
                    IMAGE,
                    {"type": "resource", "resource": MIXED},
                ]
            }
        ),
    ),
    "test_large": (
        "Says more than passes through as it is.",
        says(text("a line of many\n" * LARGE)),
    ),
    "test_error_handling": (
        "Fails.",
        says(error("This tool intentionally returns an error for testing")),
    ),
    "test_tool_with_logging": ("Logs three lines.", logs),
    "test_logging_tool": ("Logs three lines, to who asked for them.", logs),
    "test_tool_with_progress": ("Reports its progress.", progress),
    "test_missing_capability": ("Needs a client that can sample.", needs_sampling),
    "test_sampling": (
        "Has the client's model say something.",
        asks_midway(
            "sampling", lambda asked: sample(str(asked.arguments.get("prompt", ""))), "LLM response"
        ),
    ),
    "test_elicitation": (
        "Asks the user for a name and an address.",
        asks_midway("elicitation", elicits("Who are you?", USER), "User response"),
    ),
    "test_asks_unasked": ("Asks for what the client can't give.", asks_unasked),
    "test_elicitation_sep1034_defaults": (
        "Asks the user for values that have defaults.",
        asks_midway(
            "elicitation", elicits("Please fill this in.", DEFAULTS), "Elicitation completed"
        ),
    ),
    "test_elicitation_sep1330_enums": (
        "Asks the user to choose.",
        asks_midway("elicitation", elicits("Please choose.", ENUMS), "Elicitation completed"),
    ),
    "test_streaming_elicitation": (
        "Asks the user, by its result.",
        asks("Heard", named=form("What is your name?", name="string")),
    ),
    "test_input_required_result_elicitation": (
        "Needs a name.",
        asks("Hello", user_name=form("What is your name?", name="string")),
    ),
    "test_input_required_result_sampling": (
        "Needs a model.",
        asks("It said", capital_question=sample("What is the capital of France?")),
    ),
    "test_input_required_result_list_roots": (
        "Needs the client's roots.",
        asks("They are", client_roots=ROOTS),
    ),
    "test_input_required_result_request_state": (
        "Needs a confirmation.",
        asks("state-ok", "confirming", confirm=form("Please confirm", ok="boolean")),
    ),
    "test_input_required_result_tampered_state": (
        "Needs a confirmation, and its own state back as it was.",
        asks("state-ok", "guarded", confirm=form("Please confirm", ok="boolean")),
    ),
    "test_input_required_result_multiple_inputs": (
        "Needs three things at once.",
        asks(
            "All there",
            "three",
            user_name=form("What is your name?", name="string"),
            greeting=sample("Generate a greeting", 50),
            client_roots=ROOTS,
        ),
    ),
    "test_input_required_result_multi_round": ("Needs two things, one after the other.", rounds),
    "test_input_required_result_capabilities": ("Needs what the client is able to give.", as_able),
}
ARGUMENTS: Final = {"test_sampling": ("prompt",), "test_elicitation": ("message",)}

# --- resources and prompts ------------------------------------------------------------------------

RESOURCES: Final[dict[str, Json]] = {
    "test://static-text": {
        "mimeType": "text/plain",
        "text": "This is the content of the static text resource.",
    },
    "test://static-binary": {"mimeType": "image/png", "blob": PNG},
    "test://large": {"mimeType": "text/plain", "text": "a line of many\n" * LARGE},
    "test://watched-resource": {"mimeType": "text/plain", "text": "Watch this."},
}
TEMPLATE: Final = ("test://template/", "/data")


def said(words: str) -> Json:
    return {"role": "user", "content": {"type": "text", "text": words}}


async def with_arguments(asked: Asked) -> Json:
    one, two = asked.arguments.get("arg1"), asked.arguments.get("arg2")
    return {"messages": [said(f"Prompt with arguments: arg1='{one}', arg2='{two}'")]}


async def with_resource(asked: Asked) -> Json:
    resource = {
        "uri": str(asked.arguments.get("resourceUri")),
        "mimeType": "text/plain",
        "text": "Embedded.",
    }
    embedded = {"role": "user", "content": {"type": "resource", "resource": resource}}
    return {"messages": [embedded, said("Please process the embedded resource above.")]}


async def with_input(asked: Asked) -> Json:
    given = asked.answer("user_context")
    if given is None:
        return need(user_context=form("What context should the prompt use?", context="string"))
    return {"messages": [said(f"With the context {json.dumps(given)}")]}


PROMPTS: Final[dict[str, tuple[tuple[str, ...], Work]]] = {
    "test_simple_prompt": ((), says({"messages": [said("This is a simple prompt for testing.")]})),
    "test_prompt_with_arguments": (("arg1", "arg2"), with_arguments),
    "test_prompt_with_embedded_resource": (("resourceUri",), with_resource),
    "test_prompt_with_image": (
        (),
        says({"messages": [{"role": "user", "content": IMAGE}, said("Look at it.")]}),
    ),
    "test_input_required_result_prompt": ((), with_input),
}


# --- the server -----------------------------------------------------------------------------------


class Everything:
    """The server.

    `levels`, `subscribed` (by URI, the session) and `followed` are what clients have asked of it,
    for tests to look at; `asked` names the methods of all requests but lists.
    """

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.levels: list[str] = []
        self.subscribed: dict[str, Any] = {}
        self.followed: list[str] = []
        self.sessions: list[Any] = []
        self.asked: list[str] = []
        self._listening = ListenHandler(self.bus)
        self.calls = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def made(self) -> Server[Any]:
        with warnings.catch_warnings():  # logging is deprecated, and still in both revisions
            warnings.simplefilter("ignore")
            return _Announcing(
                "everything",
                version="1.0",
                cache_hints={
                    method: CacheHint(ttl_ms=0, scope="private")
                    for method in (
                        "tools/list",
                        "prompts/list",
                        "resources/list",
                        "resources/templates/list",
                        "resources/read",
                        "server/discover",
                    )
                },
                get_tool_input_schema=lambda name: schema_of(name) if name in TOOLS else None,
                on_list_tools=self._list_tools,
                on_call_tool=self._call,
                on_list_resources=self._list_resources,
                on_list_resource_templates=self._list_templates,
                on_read_resource=self._read,
                on_subscribe_resource=self._subscribe,
                on_unsubscribe_resource=self._unsubscribe,
                on_subscriptions_listen=self._listen,
                on_list_prompts=self._list_prompts,
                on_get_prompt=self._prompt,
                on_completion=self._complete,
                on_set_logging_level=self._level,
            )

    async def _list_tools(self, _context: Any, _params: Any) -> Any:
        rows = [(name, about) for name, (about, _) in TOOLS.items()]
        rows += [
            (f"test_trigger_{what}_change", f"Announces another list of {what}s.")
            for what in ("tool", "prompt")
        ]
        return whole(
            {"tools": [{"name": n, "description": d, "inputSchema": schema_of(n)} for n, d in rows]}
        )

    async def _call(self, context: Any, params: Any) -> Any:
        self.asked.append("tools/call")
        self.calls += 1
        if params.name in ("test_trigger_tool_change", "test_trigger_prompt_change"):
            await self.bus.publish(
                ToolsListChanged() if "tool_change" in params.name else PromptsListChanged()
            )
            return whole(text("It was announced."))
        if params.name not in TOOLS:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}")
        return whole(
            await TOOLS[params.name][1](
                Asked(context, params.arguments or {}, context.params or {})
            )
        )

    async def _list_resources(self, _context: Any, _params: Any) -> Any:
        rows = [
            {"uri": uri, "name": uri.removeprefix("test://"), "mimeType": content["mimeType"]}
            for uri, content in RESOURCES.items()
        ]
        return whole({"resources": rows})

    async def _list_templates(self, _context: Any, _params: Any) -> Any:
        row = {
            "uriTemplate": "{id}".join(TEMPLATE),
            "name": "template",
            "mimeType": "application/json",
        }
        return whole({"resourceTemplates": [row]})

    async def _read(self, _context: Any, params: Any) -> Any:
        self.asked.append("resources/read")
        uri, (before, after) = str(params.uri), TEMPLATE
        if uri in RESOURCES:
            return whole({"contents": [{"uri": uri, **RESOURCES[uri]}]})
        if uri.startswith(before) and uri.endswith(after):
            filled = json.dumps({"id": uri[len(before) : -len(after)], "templateTest": True})
            return whole(
                {"contents": [{"uri": uri, "mimeType": "application/json", "text": filled}]}
            )
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})

    async def _subscribe(self, context: Any, params: Any) -> Any:
        self.asked.append("resources/subscribe")
        if str(params.uri) not in RESOURCES:
            raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": str(params.uri)})
        self.subscribed[str(params.uri)] = context.session
        return {}

    async def _listen(self, context: Any, params: Any) -> Any:
        followed = [str(uri) for uri in params.notifications.resource_subscriptions or ()]
        self.followed += followed
        try:
            return await self._listening(context, params)
        finally:
            for uri in followed:
                self.followed.remove(uri)

    def change_lists(self) -> None:
        """Says, in both eras, that the lists of resources and prompts are others now.

        From any thread.
        """

        async def work() -> None:
            await self.bus.publish(ResourcesListChanged())
            await self.bus.publish(PromptsListChanged())
            for session in self.sessions[-1:]:
                await session.send_resource_list_changed()
                await session.send_prompt_list_changed()

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(work(), self.loop).result(300)

    async def _unsubscribe(self, _context: Any, params: Any) -> Any:
        self.subscribed.pop(str(params.uri), None)
        return {}

    def update(self, uri: str) -> None:
        """Says that a resource is another now, to those who listen for it or subscribed to it.

        From any thread.
        """

        async def work() -> None:
            await self.bus.publish(ResourceUpdated(uri=uri))
            if uri in self.subscribed:
                await self.subscribed[uri].send_resource_updated(uri)

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(work(), self.loop).result(300)

    async def _list_prompts(self, context: Any, _params: Any) -> Any:
        self.sessions.append(context.session)
        rows = [
            {
                "name": name,
                "description": f"The prompt {name}.",
                "arguments": [{"name": argument, "required": True} for argument in arguments],
            }
            for name, (arguments, _) in PROMPTS.items()
        ]
        return whole({"prompts": rows})

    async def _prompt(self, context: Any, params: Any) -> Any:
        self.asked.append("prompts/get")
        if params.name not in PROMPTS:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name!r}")
        return whole(
            await PROMPTS[params.name][1](
                Asked(context, params.arguments or {}, context.params or {})
            )
        )

    async def _complete(self, _context: Any, params: Any) -> Any:
        self.asked.append("completion/complete")
        values = [
            word for word in ("test", "testing", "tested") if word.startswith(params.argument.value)
        ]
        return whole({"completion": {"values": values, "total": len(values), "hasMore": False}})

    async def _level(self, _context: Any, params: Any) -> Any:
        self.levels.append(params.level)
        return {}


class _Announcing(Server[Any]):
    """Says in the handshake era too that its lists change."""

    def create_initialization_options(self, *given: Any, **named: Any) -> Any:
        told = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        return super().create_initialization_options(told)


def schema_of(tool: str) -> Json:
    names = ARGUMENTS.get(tool, ())
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": list(names),
    }


def _of_the_handshake_era(app: Any) -> Any:
    """The server as one would be that knows no later protocol: it refuses the version, as the
    transport has it.
    """

    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        if (b"mcp-protocol-version", MODERN.encode()) not in scope.get("headers", ()):
            await app(scope, receive, send)
            return
        await send(
            {"type": "http.response.start", "status": 400, "headers": [(b"content-length", b"0")]}
        )
        await send({"type": "http.response.body", "body": b""})

    return refusing


class _Serving(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's own affair."""
        yield


@contextmanager
def everything(port: int = 0, *, modern: bool = True) -> Iterator[tuple[Everything, str]]:
    """The server and its address while the context lasts, in a thread of its own.

    Port 0: any free one. `modern`: whether it speaks the modern era besides the handshake's.
    """
    server = Everything()
    listening = socket.create_server(("127.0.0.1", port))
    app: Any = server.made().streamable_http_app()
    app = app if modern else _of_the_handshake_era(app)
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
    serving = _Serving(config)
    begun = threading.Event()

    async def serve() -> None:
        server.loop = asyncio.get_running_loop()
        begun.set()
        await serving.serve([listening])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="everything")
    thread.start()
    begun.wait()
    try:
        yield server, f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        serving.should_exit = True
        thread.join()
        listening.close()


async def over_stdio() -> None:
    from mcp.server.stdio import stdio_server

    server = Everything().made()
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__" and sys.argv[1:] == ["stdio"]:
    asyncio.run(over_stdio())
elif __name__ == "__main__":
    with everything(int(sys.argv[1]) if len(sys.argv) > 1 else 0) as (_, address):
        print(address, flush=True)
        sys.stdin.read()
