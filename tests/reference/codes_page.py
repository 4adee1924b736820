"""`reference/codes.md`: every closed word of decisions, calls, errors and checks, with a sentence."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import bundle_router
from bundle_router.core.values.words import MODES
from bundle_router.review import sentences
from bundle_router.review.lint import RULES

from tests.reference.errors_page import error_classes, http_of
from tests.reference.markdown import GENERATED, code, table, without_gaps

HOME: Final = Path(bundle_router.__file__).parent
_HEAD: Final = f"""\
# Codes

Every closed word that decisions, calls, checks and errors are told by. Records, the command line, the pages and errors use
the same words. {GENERATED} from the tables that the code itself uses.

"""
OTHER_RULES: Final = {
    "stray-file": ("warning", "A file in the config folder that is not one of the config."),
    "unpinned-tool": (
        "warning",
        "A tool of a bundle, or a likely misspelt one of a policy, that is none of its server's pinned tools.",
    ),
    "pin-origin": ("warning", "A server's pins that were made of another address or program."),
    "poisoned-text": ("risk", "A pinned tool whose text speaks to the agent in a suspicious way."),
    "unused-local": ("warning", "Local tools that no bundle uses, or that can't be used."),
    "stale-wrapper": ("warning", "A vendored module that wraps other definitions than are pinned."),
    "not-installed": ("warning", "A key that needs an extra which is not installed."),
    "no-key": ("warning", "A model that is not asked, because its variable holds no usable key."),
    "no-provider": ("warning", "A model whose provider litellm does not know."),
    "no-price": ("risk", "A limit of costs that does not bound a model whose price is not known."),
}
"""The rules of `check` that are no function of `RULES`: their level, and what they find."""
SAID_OF_THE_CASE: Final = {
    "forbidden": "The token lacks the scope that the path needs.",
    "invalid": "The body or the query is not what the route takes; `errors` points at each place.",
    "refused": "The request is malformed or refused; nothing was done and nothing was written.",
    "too_large": "The body is larger than [service] max_body_bytes, or the head than its bound.",
    "unavailable": "The client went away, or the run can't be served now.",
    "unknown_run": "There is no such run, or it is another principal's.",
    "wrong_host": "The header Host names another service.",
    "wrong_origin": "A page of another site sent the request.",
}
"""The codes of HTTP whose sentence is made of the case."""
EXIT_STATUSES: Final = {
    0: "Fine.",
    1: "A check found something: differences, failing cases, with `--strict` also risks.",
    2: "The config is invalid.",
    3: "The request was malformed or refused.",
    4: "A server, tool, model or disk failed.",
    5: "Integrity is broken: a record is not as it was written.",
}


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for title, lead, words in sections():
        rows = [(code(word), meaning) for word, meaning in words.items()]
        parts.append(f"## {title}\n\n{lead}\n\n{table(('code', 'meaning'), rows)}")
    return without_gaps(parts)


def sections() -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yield the sections: the heading, what its codes are, and each code with its sentence."""
    yield "Reasons", "Why a bundle is shown (`bundles[].reason` of a decision).", sentences.REASONS
    yield (
        "Left out",
        "Why a bundle or tool is not shown (`left_out[].code`), in the order of the tests: the first that fails is"
        " recorded. A call of such a tool is refused with the same code.",
        sentences.CODE_SENTENCES,
    )
    yield "Sources", "What decided a step (`source`).", sentences.SOURCES
    yield "Verdicts", "What search made of a question (`search.verdict`).", sentences.VERDICTS
    yield (
        "Failures",
        "Why a model or an embedder gave no answer, so that a step was degraded.",
        sentences.FAILURES,
    )
    yield (
        "Recall",
        "Whether past steps were compared by their meaning, and why not (`search.recall`,"
        " `search.embeddings`).",
        sentences.RECALLS,
    )
    yield (
        "Doubts",
        "Why a decision is in doubt: nothing was sure, or the model was not.",
        sentences.DOUBTS,
    )
    yield "Outcomes", "How a call ended (`outcome`).", sentences.OUTCOMES
    yield (
        "Calls",
        "Why a call was refused or failed (`code`), besides the codes of [what is left out](#left-out). Tools of yours may"
        " have codes of their own.",
        sentences.CALL_CODES,
    )
    modes: dict[str, str] = {mode: f"Shown: {traits.meaning}." for mode, traits in MODES.items()}
    yield "Modes", "How agents see a bundle's tools (`mode`).", modes
    yield (
        "Checks",
        "What `bundle-router check` finds in a config that is valid: a warning has no effect, a risk is allowed and to be"
        " looked at.",
        rules(),
    )
    yield "HTTP", "The `code` of a problem document of the service.", http_codes()
    statuses = {str(status): meaning for status, meaning in EXIT_STATUSES.items()}
    yield "Exit statuses", "How a program of the command line ends.", statuses


def rules() -> dict[str, str]:
    """Return the rules of `check`, each with its level and what it finds."""
    found = {
        word: f"{level.capitalize()}: {_found_by(rule)}" for word, (level, rule) in RULES.items()
    }
    return found | {
        word: f"{level.capitalize()}: {text[0].lower()}{text[1:]}"
        for word, (level, text) in OTHER_RULES.items()
    }


def _found_by(rule: object) -> str:
    return _first_sentence(rule).removeprefix("Yield ")


def _first_sentence(value: object) -> str:
    lead, _, _ = (inspect.getdoc(value) or "").partition("\n\n")
    return " ".join(lead.split())


def http_codes() -> dict[str, str]:
    """Return the codes of refusals, each with its statuses and its sentence."""
    statuses: dict[str, set[int]] = {}
    said: dict[str, str] = {}
    for status, word, sentence in _refusals():
        statuses.setdefault(word, set()).add(status)
        said.setdefault(word, sentence)
        said[word] = said[word] or sentence
    for kind in error_classes():
        status, word = http_of(kind)
        statuses.setdefault(word, set()).add(status)
        said[word] = said.get(word) or _first_sentence(kind)
    said |= SAID_OF_THE_CASE
    return {
        word: f"{', '.join(map(str, sorted(statuses[word])))}. {said[word]}"
        for word in sorted(said)
    }


def _refusals() -> Iterator[tuple[int, str, str]]:
    """Yield the status, the code and the sentence of each refusal that the service's source has."""
    for path in sorted((HOME / "service").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refusal":
                status, word, sentence = (_literal(part) for part in node.args[:3])
                if isinstance(status, int) and isinstance(word, str):
                    yield status, word, sentence if isinstance(sentence, str) else ""


def _literal(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else None
