"""The tools of one decision for a framework's agent loop: the common part of all adapters.

Rules:
1. One loop has one decision. Every list and call names it, so that each of several parallel loops
   is judged under its own, whatever else is routed in the run meanwhile.
2. A loop that is run again (a retry, a resumed checkpoint, another worker) uses the same step key
   and the same call ids. So a step is decided once, and a call is made once. An id counts within
   its turn only, since some model servers give every call the same one: the same call in a later
   turn is another call.
3. The list is requested again only when a call reports that a tool joined it.
4. A failure that the agent can see is text for the model. A name that is in no list is called like
   any other: it is refused with its code, and recorded as a gap.
5. A call that waits for somebody's word is asked about once: the same call, made again by the model
   or by a loop that goes on elsewhere, joins it. What runs it is the recorded grant, whatever the
   framework says of an approval.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router.core.exposure.meta_tools.definitions import NAMES
from bundle_router.core.exposure.placements import Toolset
from bundle_router.core.exposure.provider_forms import Format
from bundle_router.core.values import Step
from bundle_router.core.values.canonical import digest
from bundle_router.core.values.words import RUN_ID
from bundle_router.engine.results import Result
from bundle_router.errors import RequestError, expect
from bundle_router.wiring import Router

META_NAMES: Final = frozenset(NAMES)
"""Names of the router's own tools, `search_tools` among them."""
_NOT_IN_RUN_IDS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_READABLE: Final = 100
"""Characters of a name that a run id made of it keeps at most."""


def run_id_of(name: str) -> str:
    """Return a run id for the name that an engine has for a piece of work, the same everywhere.

    A name that is a run id already is returned as it is. Of another one the characters that an id
    may have stay, up to 100, and 12 digits of its digest keep names apart. Raises RequestError if
    the name is empty.

    >>> from bundle_router.ext.step_tools import run_id_of
    >>> run_id_of("r-42")
    'r-42'
    >>> run_id_of("manual__2026-11-28T16:00:00+00:00")
    'manual__2026-11-28T16-00-00-00-00-66a0cec67000'
    """
    if RUN_ID.fullmatch(name):
        return name
    if not name:
        raise RequestError(
            "an empty name is no name of a run", advice="give the engine's own name for the work"
        )
    readable = _NOT_IN_RUN_IDS.sub("-", name).strip("-._")[:_READABLE]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{readable or 'run'}-{digest}"


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


def call_key(
    decision_id: str,
    call_id: str,
    name: str,
    arguments: Mapping[str, Any] | str,
    turn: int = 0,
) -> str:
    """Return the key of a call, empty if the framework gives no id.

    `turn` is the place of the model's message in the loop, the same where the loop is run again.
    Name and arguments are part of the key, too: a message may use an id for several calls.

    >>> from bundle_router.ext.step_tools import call_key
    >>> call_key("r-42:0", "", "repo.read_file", {"path": "a"})
    ''
    >>> first = call_key("r-42:0", "call", "jobs.poll", {"job": 1}, turn=0)
    >>> first == call_key("r-42:0", "call", "jobs.poll", {"job": 1}, turn=1)
    False
    """
    if not call_id:
        return ""
    if isinstance(arguments, str):
        text = arguments
    else:
        text = json.dumps(arguments, sort_keys=True, default=str)
    place = (turn,) if turn else ()
    return short_key(decision_id, call_id, name, text, *place)


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
    >>> from bundle_router.testing import Route, fake_router, small_catalog
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
        """Return the present list, for a loop that has no asyncio."""
        if self._known is None:
            self._known = self.router.tools_sync(
                self.run_id, format=self.form, decision=self.decision_id
            )
        return self._known

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str, call_id: str = "", turn: int = 0
    ) -> Result:
        """Call a tool by the name that the model used, once per call id and turn (rule 2); a call
        that waits for somebody's word is asked about once (rule 5).
        """
        key = call_key(self.decision_id, call_id, name, arguments, turn)
        return self._note(
            await self.router.call(
                self.run_id, name, arguments, decision=self.decision_id, key=key, join=True
            )
        )

    def call_sync(
        self, name: str, arguments: Mapping[str, Any] | str, call_id: str = "", turn: int = 0
    ) -> Result:
        """Call a tool as `call` does, from a loop that has no asyncio."""
        key = call_key(self.decision_id, call_id, name, arguments, turn)
        return self._note(
            self.router.call_sync(
                self.run_id, name, arguments, decision=self.decision_id, key=key, join=True
            )
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
        """Return what `pictures` does, for a loop that has no asyncio."""
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
