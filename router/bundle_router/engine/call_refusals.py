"""Why a call is refused, as its record and the agent get it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bundle_router.core.exposure.meta_tools.resolving import ResolvedName
from bundle_router.core.exposure.meta_tools.signatures import takes_nothing
from bundle_router.core.results.shaping import shape
from bundle_router.core.servers.transport.tool_servers import CallOutcome
from bundle_router.core.values import Text
from bundle_router.engine.engine_ports import EnginePorts
from bundle_router.engine.made_calls import finish_call
from bundle_router.engine.results import AdmittedCall, Refusal, Result
from bundle_router.engine.run_records import OpenRun
from bundle_router.engine.surface import CallTarget, RunState, why_not

MAX_NAMED: Final = 20
"""Tools that a refusal names at most."""


def refuse(
    ports: EnginePorts, run: OpenRun, call: AdmittedCall, refusal: Refusal, wait_s: float
) -> Result:
    """Record the refusal of a call, and return it. The caller holds the run's lock."""
    outcome, code, text = refusal
    shaped = shape(
        (Text(text),), call.state.catalog.settings.limits.max_result_chars, ports.describe
    )
    return finish_call(
        ports, run, call, CallOutcome(outcome, code, shaped), refused=True, wait_s=wait_s
    )


def missing_tool(state: RunState, target: CallTarget) -> Refusal:
    """Return the refusal of a tool that the step does not have."""
    code, text = why_missing(state, target.tool, target.resolved)
    return "unavailable" if code == "server_unavailable" else "denied", code, text


def malformed_arguments(tool: str, kind: str, sentence: str) -> Refusal:
    """Return the refusal of arguments that could not be read."""
    return "invalid_arguments", kind, f"The arguments of {tool!r} {sentence}"


def unfit_arguments(state: RunState, tool: str, problems: Sequence[str]) -> Refusal:
    """Return the refusal of arguments that do not fit the tool's schema, which it shows."""
    card = state.catalog.cards.get(tool)
    if card is None:
        schema = ""
    elif takes_nothing(card):
        schema = "\nIt takes none."
    else:
        schema = f"\nIts schema: {card.schema}"
    text = f"The arguments of {tool!r} do not fit: {'; '.join(problems)}.{schema}"
    return "invalid_arguments", "invalid_arguments", text


def tainted_call(tool: str, detail: str) -> Refusal:
    """Return the refusal of a call by what its branch has seen since the step was decided."""
    text = f"{tool!r} was not called (tainted: {detail}). Nothing was sent."
    return "denied", "tainted", text


def closed_folder(state: RunState) -> Refusal:
    """Return the refusal of a call at a step whose folder can't be opened any more."""
    text = f"The step's folder {state.step.workspace!r} is not open to it any more."
    return "denied", "policy_denied", text


def withheld_result(tool: str, code: str, detail: str) -> Refusal:
    """Return the refusal of a recorded result, by its key, that policy does not permit now."""
    text = f"{tool!r} is not available at this step ({code}: {detail}), nor is its recorded result."
    return "denied", code, text


def why_missing(state: RunState, name: str, resolved: ResolvedName) -> tuple[str, str]:
    """Return why an agent can't call a tool: the code, and a sentence with the names that it may
    have meant.
    """
    exposed = state.exposed()
    (code, detail) = why_not(state, resolved.name)
    some = list(exposed)[:MAX_NAMED]
    rest_text = f" and {len(exposed) - len(some)} more" if len(exposed) > len(some) else ""
    hint = resolved.hint or (
        f"This step has: {', '.join(some)}{rest_text}." if some else "This step has no tools."
    )
    return code, f"{name!r} is not available at this step ({code}: {detail}). {hint}"
