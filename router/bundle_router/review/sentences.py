"""A sentence for each closed word, and a line about search's and the model's answers, used
everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from bundle_router.core.values import Exposure, ModelUse, SearchUse
from bundle_router.core.values.doubt import Certainty

CODE_SENTENCES: Final[Mapping[str, str]] = {
    "unknown_bundle": "No bundle has this id, and no bundle holds a tool of this name.",
    "disabled": "The bundle or its server is switched off in the config.",
    "policy_denied": "A policy denies it; a denial overrules what others allow.",
    "not_allowed": "No policy that covers this step allows it.",
    "trust_too_low": "A policy requires a trusted server, and this one is untrusted.",
    "effect_not_allowed": "The bundle can do something that a policy does not permit at this step.",
    "allowlist_required": "Tools of an untrusted server have to be named one by one.",
    "tainted": "A policy row refuses it since the run has read content of some kind.",
    "capability_missing": "A variable or program that the bundle requires is not on this machine.",
    "pin_drift": "The tool is new or changed since it was reviewed, and waits for approval.",
    "not_admitted": "The server lists the tool in a form that can't be used.",
    "not_listed": "The server does not list the tool now.",
    "server_unavailable": "The tool's server can't be reached, or lacks its credential.",
    "not_mapped": "No route names it for this step, and neither search nor a model chose it.",
    "not_offered": (
        "Nothing was sure enough, and [search] offer keeps bundles with its effects out of the"
        " shortlist."
    ),
    "below_floor": "Search or the model ranked it too low to be shown.",
    "not_selected": "It was a candidate, and another was picked.",
    "over_budget": "Showing it too would exceed the step's limit of bundles, tools or tokens.",
    "evicted": (
        "It was active before, and was removed to make room for what was used more recently."
    ),
}
"""Why a bundle or tool is not shown."""
REASONS: Final[Mapping[str, str]] = {
    "mapped": "A route names it for this step.",
    "always": "The bundle has always = true.",
    "sticky": "An earlier step of the run brought it in, and it stays.",
    "inherited": "The parent run had it.",
    "search": "Search was sure of it.",
    "model": "The router's model picked it.",
    "model_cached": "The router's model picked it for the same question before.",
    "union": "Search could not tell two bundles apart, and took both.",
    "shortlist": "It may be needed, but nothing is sure; it is offered behind search.",
    "default": "It is the declared fallback.",
}
"""Why a bundle is shown."""
SOURCES: Final[Mapping[str, str]] = {
    "mapping": "A row of routes.toml decided; no model was asked.",
    "search": "Search over the operator's words decided.",
    "model": "The router's model decided, among what policy permits.",
    "shortlist": "Nothing was sure: the best of what policy permits is offered behind search.",
    "default": "The declared fallback was used.",
    "none": "Nothing is shown except bundles with always = true.",
}
OUTCOMES: Final[Mapping[str, str]] = {
    "ok": "The tool answered.",
    "tool_error": "The tool answered that it failed.",
    "denied": "The call was refused, and the tool not reached.",
    "invalid_arguments": "The arguments do not fit the tool's schema; the tool was not reached.",
    "timeout": "The tool did not answer in time.",
    "unavailable": "The tool's server could not be reached.",
    "busy": "The server had no room for another call.",
    "budget": "The step, run or tree of runs has used up what it may spend.",
    "cancelled": "The caller went away before the tool answered.",
    "unknown": "The call began and its end was not recorded. It may have taken effect.",
}
FAILURES: Final[Mapping[str, str]] = {
    "timeout": "The model did not answer in time.",
    "rate_limited": "The provider asked to be called less often.",
    "upstream_error": "The provider failed, or could not be reached.",
    "auth": "The provider did not accept the credential.",
    "bad_request": "The provider did not accept the request.",
    "context_window": "The question was too long for the model.",
    "invalid_output": "The model's answer was not what was asked for.",
    "truncated": "The model's answer was cut off.",
    "refused": "The model refused to answer.",
    "circuit_open": "The model failed too often, and is not asked for a while.",
    "not_ready": "The model was not loaded yet.",
    "internal": "The router itself failed.",
    "no_key": "The variable that key_env names holds no usable key, so nothing was sent.",
    "not_sent": "The request could have shown a credential to another host, and was not sent.",
    "over_limit": (
        "[model] max_cost_per_day or max_questions_per_run was used up, so no model was asked."
    ),
}
"""Why a model gave no answer, so that a step was degraded."""

DOUBTS: Final[Mapping[str, str]] = {
    "model_unsure": "The router's model answered, and said that it is not sure.",
    "nothing_sure": "Search was asked and was not sure, and no model settled it.",
}
"""Why a decision may be wrong although nothing failed."""
VERDICTS: Final[Mapping[str, str]] = {
    "enough": "Search was sure enough of one bundle.",
    "union": "Search could not tell two bundles apart, and both are small.",
    "ambiguous": "Several bundles may fit, and search is not sure which.",
    "novel": "No bundle seems to fit.",
}
"""What search made of a question."""
RECALLS: Final[Mapping[str, str]] = {
    "used": "The question was compared by its meaning.",
    "not_ranking": "By `learn` or the config the embedder ranks nothing; it may recall past steps.",
    "not_heard": "The embedder gave no vector for the question.",
    "no_embedder": "The config names no embedder.",
    "other_embedder": "Past steps were learned with another embedder.",
}
"""Whether an embedder was used for bundles and for past steps, besides `FAILURES`."""
CALL_CODES: Final[Mapping[str, str]] = {
    # of the router
    "failed": "The tool says that it failed.",
    "crashed": "The tool raised an error of its own.",
    "timeout": "It did not end in time, and was stopped.",
    "cancelled": "The caller went away before it ended.",
    "busy": "The server has more calls waiting than it can take.",
    "unknown": "The call began and its end was not recorded.",
    "storage": "The run's store did not take the record or the artifact.",
    "invalid_arguments": "The arguments do not fit the tool's schema.",
    "not_json": "The arguments are not JSON.",
    "bad_query": "The query of an artifact can't be answered.",
    "bad_pattern": "The regular expression can't be used.",
    "not_found": "What was asked for is not there.",
    "too_large": "What was asked for, or the answer, is larger than its limit.",
    "approval_refused": "Somebody refused this call, or three of its tool at this step.",
    "approval_expired": "Nobody answered in time, or the approval was not used in time.",
    "approval_needed": "It needs somebody's approval, and nobody is asked here.",
    "repeated_calls": "The same call gave the same answer too often in a row.",
    "calls_per_step": "The step has used up its calls.",
    "result_bytes_per_step": "The step has used up its bytes of results.",
    "call_seconds_per_step": "The step has used up its seconds of calls.",
    "calls_per_run": "The run has used up its calls.",
    "result_bytes_per_run": "The run has used up its bytes of results.",
    "call_seconds_per_run": "The run has used up its seconds of calls.",
    "calls_per_tree": "The run and its relatives have used up their calls.",
    "result_bytes_per_tree": "The run and its relatives have used up their bytes of results.",
    "call_seconds_per_tree": "The run and its relatives have used up their seconds of calls.",
    "type_error": "The program of execute has a wrong type, and was not run.",
    "syntax_error": "The program of execute can't be read, and was not run.",
    "program_failed": "The program of execute ended with an error.",
    # of tool servers
    "circuit_open": "The server failed too often, and is left alone for a while.",
    "unavailable": "What the call needs can't be reached.",
    "rpc_error": "The server answered with an error.",
    "invalid_params": "The server did not accept the arguments.",
    "protocol_error": "The server's answer is not one that MCP knows.",
    "input_required": "The server asks for more input, which this client can't give.",
    "unauthorized": "The server did not accept the credential.",
    "http_error": "The server answered with an HTTP error.",
    # of the first-party tools
    "address_refused": "The host has an address that must not be fetched from.",
    "autorun": "A program would run the file by itself.",
    "bad_glob": "The glob can't be read.",
    "bad_offset": "The page has no such place.",
    "bad_response": "The site's answer can't be read.",
    "binary_unavailable": "The program is not installed on this machine.",
    "changed_meanwhile": "The file was changed by somebody else meanwhile.",
    "connect_failed": "The site can't be reached.",
    "credentials": "The file holds credentials.",
    "dns_failed": "The host's name has no address.",
    "exists": "There is a file of this name.",
    "git_failed": "git ended with an error.",
    "git_internals": "The file is one of git's own.",
    "hard_link": "The file has hard links, and such files are refused here.",
    "hard_links": "Files have too many other names to be kept read-only.",
    "hidden": "The file is the router's own, such as its records.",
    "host_not_allowed": "The config does not allow the host.",
    "in_submodule": "The file is of a submodule, which is not looked into.",
    "invalid_path": "The path can't be one of the workspace.",
    "invalid_rule": "A rule of [[binaries]] has a pattern that can't be used.",
    "invalid_settings": "The settings of [docs] can't be read.",
    "invalid_url": "The address can't be fetched.",
    "io_error": "The file system failed.",
    "is_directory": "It is a folder.",
    "no_hosts": "The config allows no host.",
    "no_index": "The site publishes no index that can be searched.",
    "no_repository": "The workspace is no git repository.",
    "no_section": "The page has no such section.",
    "no_text": "The page holds no text.",
    "no_words": "There are no words to search for.",
    "not_a_file": "It is no regular file.",
    "not_permitted": "The config does not permit the program these arguments.",
    "not_started": "The program did not start.",
    "out_of_range": "The file has fewer lines.",
    "outside_workspace": "The path leads out of the workspace.",
    "protected": "The file is the router's own, or git runs it.",
    "redacted": "The text has a mark where a secret was taken out, and would replace the secret.",
    "repository_refused": "The repository is not read, such as one whose settings run programs.",
    "tls_failed": "The site's certificate is not valid.",
    "too_many_redirects": "The site redirects too often.",
    "truncated": "The site's answer ends too early.",
    "unknown_binary": "The config names no such program.",
    "unknown_revision": "The repository has no such revision.",
    "unsafe_binary": "The program is not safe to start, such as one that others can replace.",
    "unsupported_encoding": "The site's answer is compressed in a way that can't be read.",
    "unsupported_platform": "This system has no sandbox for programs.",
    "workspace_unavailable": "The workspace can't be opened.",
}
"""Why a call was refused or failed, besides the codes that say why a tool is not shown. Tools of
yours may have codes of their own.
"""


LISTS: Final[Mapping[str, Mapping[str, str]]] = {
    "left-out": CODE_SENTENCES,
    "reasons": REASONS,
    "sources": SOURCES,
    "outcomes": OUTCOMES,
    "failures": FAILURES,
    "doubts": DOUBTS,
    "calls": CALL_CODES,
}
"""The closed lists, by the anchors of their sections in the reference. Of a word in two of them the
first is meant, unless a kind is named.
"""
_OF_KIND: Final = {"source": "sources", "failure": "failures"}


def list_of(word: str, kind: str = "") -> str:
    """Return the name of the list that has a closed word; empty for any other word.

    Some words are in two lists (`timeout`, `search`): `kind` (`source`, `failure`) says which is
    meant.
    """
    named = _OF_KIND.get(kind)
    names = (named, *LISTS) if named is not None else tuple(LISTS)
    return next((name for name in names if word in LISTS[name]), "")


def sentence_of(word: str, kind: str = "") -> str:
    """Return the sentence for a closed word; empty for any other. `kind`: see `list_of`."""
    name = list_of(word, kind)
    return LISTS[name][word] if name else ""


def exposure_line(exposure: Exposure) -> str:
    """Return how much of the catalog is in the array.

    Tools of a server that was not asked yet may not be known.
    """
    tokens = f"{exposure.tokens:,} of {exposure.all_tokens:,} tokens"
    return (
        f"in the array, besides meta-tools: {exposure.tools} of {exposure.all_tools} known tools,"
        f" {tokens}"
    )


def selection_lines(search: SearchUse | None, model: ModelUse | None) -> Iterator[str]:
    """Yield a line for search and one for the model, if they were asked."""
    if search is not None:
        yield _search(search)
    if model is not None:
        yield _model(model)


def certainty_line(certainty: Certainty) -> str:
    """Return how sure the model and search were, in one line; empty where neither was asked."""
    parts: list[str] = []
    if certainty.model_sure is not None:
        parts.append("the model is sure" if certainty.model_sure else "the model is not sure")
    if certainty.probability is not None:
        alone = "never decides alone"
        if certainty.threshold is not None:
            alone = f"decides alone from {certainty.threshold:.0%} on"
        parts.append(f"search gives its best bundle {certainty.probability:.0%}, and {alone}")
    elif certainty.verdict is not None:
        parts.append(f"search: {certainty.verdict}, without a calibrated probability")
    if certainty.doubt is not None:
        parts.append(f"in doubt: {certainty.doubt}")
    return f"how sure: {'; '.join(parts)}" if parts else ""


def _search(use: SearchUse) -> str:
    e = use.evidence
    parts = [f"margin {e.margin:.2f}", f"coverage {e.coverage:.2f}", f"relevance {e.relevance:.2f}"]
    if use.probability is not None:
        parts.append(f"probability {use.probability:.2f}")
        parts.append(
            "never by itself" if use.threshold is None else f"threshold {use.threshold:.2f}"
        )
    if use.embeddings is not None:
        parts.append(f"embeddings {use.embeddings}")
    return f"search: {use.verdict} ({', '.join(parts)}; thresholds {use.thresholds})"


def _model(use: ModelUse) -> str:
    if use.failure:
        outcome = f"failed: {use.failure}"
    elif use.cached:
        outcome = "answered from the cache"
    else:
        outcome = "answered"
    if use.sure is not None:
        outcome += ", sure of it" if use.sure else ", not sure"
    parts = [f"{use.attempts} call{'' if use.attempts == 1 else 's'}", f"{use.elapsed_ms:.0f} ms"]
    if use.input_tokens or use.output_tokens:
        parts.append(f"{use.input_tokens:,} + {use.output_tokens:,} tokens")
    if use.cost_usd:
        parts.append(f"${use.cost_usd:.4f}")
    return f"model {use.name}: {outcome} ({', '.join(parts)})"
