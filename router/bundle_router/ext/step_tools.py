"""The tools of one decision for a framework's agent loop: the common part of all adapters.

Rules:
1. One loop has one decision. Every list and call names it, so that each of several parallel loops
   is judged under its own, whatever else is routed in the run meanwhile.
2. A loop that is run again (a retry, a resumed checkpoint, another worker) uses the same step key
   and the same call ids. So a step is decided once, and a call is made once.
3. The list is requested again only when a call reports that a tool joined it.
4. A failure that the agent can see is text for the model. A name that is in no list is called like
   any other: it is refused with its code, and recorded as a gap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router.core.exposure.meta_tools.definitions import NAMES
from bundle_router.core.exposure.placements import Toolset
from bundle_router.core.exposure.provider_forms import Format
from bundle_router.core.values import Step
from bundle_router.core.values.canonical import digest
from bundle_router.engine.results import Result
from bundle_router.errors import expect
from bundle_router.wiring import Router

META_NAMES: Final = frozenset(NAMES)
"""Names of the router's own tools, `search_tools` among them."""


def step_key(step: Step, *parts: object) -> Step:
    """Return the step with a key made of the parts, which name this place in the framework's own
    run; an existing key is kept. The same parts give the same key on every machine.

    >>> from bundle_router import Step
    >>> from bundle_router.ext.step_tools import short_key, step_key
    >>> step = Step(run_id="r-42", workflow="feature", role="planner", step="plan")
    >>> step_key(step, "thread-1").key == short_key("thread-1")
    True
    """
    if step.key:
        return step
    return step.model_copy(update={"key": short_key(*parts)})


def check_parts(router: object, step: object) -> None:
    """Raise RequestError for what is no router, or neither a step nor a function that returns
    one.

    >>> from bundle_router.errors import RequestError
    >>> from bundle_router.ext.step_tools import check_parts
    >>> try:
    ...     check_parts("config", None)
    ... except RequestError as error:
    ...     error.advice
    'open one: async with Router.open("config") as router'
    """
    expect("router", router, Router, 'open one: async with Router.open("config") as router')
    if not callable(step):
        expect("step", step, Step, "step=Step(run_id=…, workflow=…, role=…, step=…)")


def call_key(decision_id: str, call_id: str, name: str, arguments: Mapping[str, Any] | str) -> str:
    """Return the key of a call, empty if the framework gives no id.

    Name and arguments are part of it, because some models count their calls from zero in every
    turn.

    >>> from bundle_router.ext.step_tools import call_key
    >>> call_key("r-42:0", "", "repo.read_file", {"path": "a"})
    ''
    """
    if not call_id:
        return ""
    if isinstance(arguments, str):
        text = arguments
    else:
        text = json.dumps(arguments, sort_keys=True, default=str)
    return short_key(decision_id, call_id, name, text)


def short_key(*parts: object) -> str:
    """Return a key made of the parts, the same on every machine.

    >>> from bundle_router.ext.step_tools import short_key
    >>> short_key("thread-1", "node") == short_key("thread-1", "node"), len(short_key("thread-1"))
    (True, 32)
    """
    return digest(json.dumps([str(part) for part in parts])).rpartition(":")[2][:32]


@dataclass
class StepTools:
    """The tools of one open decision of a run: lists, calls, and text for a model.

    Methods that end in `_sync` are for code without an event loop; all raise the errors of
    `Router`.

    >>> from bundle_router import Step
    >>> from bundle_router.core.catalog import Route
    >>> from bundle_router.testing import fake_router, small_catalog
    >>> route = Route("all", bundles=("repo.readonly",))
    >>> catalog = small_catalog({"repo.readonly": ["repo.read_file"]}, routes=[route])
    >>> step = Step(run_id="r-42", workflow="feature", role="planner", step="plan")
    >>> from bundle_router.ext.step_tools import StepTools
    >>> with fake_router(catalog, results={"repo.read_file": "# Hello"}) as router:
    ...     tools = StepTools(router, "r-42", router.route_sync(step).decision_id)
    ...     tools.call_sync("repo__read_file", {"path": "README.md"}, "call-1").text
    '# Hello'
    """

    router: Router
    """The router that lists and calls."""
    run_id: str
    """The run."""
    decision_id: str
    """The decision that every list and call names."""
    form: Format = "openai"
    """The provider's form of the definitions."""
    _known: Toolset | None = field(default=None, init=False)

    @classmethod
    async def route(cls, router: Router, step: Step, form: Format = "openai") -> StepTools:
        """Route a step and return its tools."""
        check_parts(router, step)
        return cls(router, step.run_id, (await router.route(step)).decision_id, form)

    async def toolset(self) -> Toolset:
        """Return the present list (rule 3)."""
        if self._known is None:
            self._known = await self.router.tools(
                self.run_id, format=self.form, decision=self.decision_id
            )
        return self._known

    def toolset_sync(self) -> Toolset:
        """As `toolset`, for loops without an event loop."""
        if self._known is None:
            self._known = self.router.tools_sync(
                self.run_id, format=self.form, decision=self.decision_id
            )
        return self._known

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str, call_id: str = ""
    ) -> Result:
        """Call a tool by the name that the model used, once per call id (rule 2)."""
        key = call_key(self.decision_id, call_id, name, arguments)
        return self._note(
            await self.router.call(self.run_id, name, arguments, decision=self.decision_id, key=key)
        )

    def call_sync(self, name: str, arguments: Mapping[str, Any] | str, call_id: str = "") -> Result:
        """As `call`, for loops without an event loop."""
        key = call_key(self.decision_id, call_id, name, arguments)
        return self._note(
            self.router.call_sync(self.run_id, name, arguments, decision=self.decision_id, key=key)
        )

    async def missed(self, name: str) -> str:
        """Record a name that the framework refused by itself, and return a sentence that explains
        the refusal.
        """
        return (await self.router.missed(self.run_id, name, decision=self.decision_id)).text

    async def pictures(self, result: Result) -> list[str]:
        """Return the pictures of a result as data URLs, to send beside its text, which names each.

        Pictures that no provider accepts (another type, too large) are left out, but still named in
        the text.
        """
        return _picture_urls([await self.router.media(self.run_id, uri) for uri in _media(result)])

    def pictures_sync(self, result: Result) -> list[str]:
        """As `pictures`, for loops without an event loop."""
        return _picture_urls([self.router.media_sync(self.run_id, uri) for uri in _media(result)])

    def _note(self, result: Result) -> Result:
        if result.joined:
            self._known = None
        return result


def _picture_urls(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def _media(result: Result) -> list[str]:
    return [
        one.uri
        for one in result.artifacts
        if one.role == "media" and one.mime_type.startswith("image/")
    ]
