"""First bundles of a server, as text to append to `bundles.toml`.

Rules:
1. Tools whose definitions were read go into bundles of the library, with the effects that were
   read. A comment names the library's revision, and the clause of each tool that does not plainly
   read.
2. Tools that only have names of the library are proposed in comments, with all four effects.
3. Tools that a recognised server has beyond the library are listed in a comment, and are in no
   bundle.
4. The tools of a server that the library does not know are guessed, from the mildest kind; each
   guess is marked, with its reason. A bundle's description names its first tools, in words, since
   nothing else is known by which search could find it.
5. Every bundle is behind meta-tools. Nothing here permits anything: policy rows do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bundle_router.core.servers.admission.admitted import Admitted
from bundle_router.core.values import EFFECTS, Effect
from bundle_router.review.library.guesses import Guess, guess, words_of_name
from bundle_router.review.library.library_form import (
    KINDS,
    Kind,
    LibraryBundle,
    LibraryServer,
    LibraryTool,
)
from bundle_router.review.library.recognition import RecognisedTool, Recognition, recognise
from bundle_router.review.toml_text import toml_string

_GUESSED_DESCRIPTIONS: Final[dict[Kind, str]] = {
    "read": "Look something up with {server}",
    "write": "Change something with {server}, or add to it",
    "risky": "Delete, send or spend something with {server}",
    "run": "Run commands, code or queries with {server}",
}
_NAMED_TOOLS: Final = 6
"""Maximum tools that a guessed description names."""
_NAME_CHARS: Final = 40
"""Maximum characters of such a name: a longer one may be a text to whoever reads it."""
_GUESSED_EFFECTS: Final[dict[Kind, tuple[Effect, ...]]] = {
    "read": ("read", "network"),
    "write": ("read", "write", "network"),
    "risky": ("read", "write", "network"),
    "run": EFFECTS,
}


@dataclass(frozen=True, slots=True)
class FirstBundles:
    """Text to append to `bundles.toml`, and what it rests on."""

    text: str
    """The bundles; comments alone where nothing is certain enough."""
    ids: tuple[str, ...]
    """The bundles that the text declares, comments left out."""
    recognition: Recognition
    """What the library knows about the server."""


def first_bundles(
    listed: Admitted,
    library: Sequence[LibraryServer],
    *,
    trusted: bool,
    languages: Sequence[str] = (),
) -> FirstBundles:
    """Return first bundles for the tools of a server.

    `trusted`: whether the server is. `languages`: those whose key words are written (`de`,
    `pt-BR`); none: all that the library has.
    """
    recognition = recognise(listed, library)
    name = listed.server
    if recognition.server is None:
        guesses = [guess(tool, trusted=trusted) for tool in listed.tools]
        kinds = _kinds_of(row.kind for row in guesses)
        text = "\n".join(_guessed_lines(name, guesses))
    else:
        kinds = _kinds_of(row.kind for row in recognition.known_by("digest"))
        server = _in_languages(recognition.server, languages)
        text = "\n".join(_library_lines(name, recognition, server))
    return FirstBundles(
        text.rstrip() + "\n", tuple(f"{name}.{kind}" for kind in kinds), recognition
    )


def _kinds_of(kinds: Iterable[Kind | None]) -> list[Kind]:
    present = set(kinds)
    return [kind for kind in KINDS if kind in present]


def _in_languages(server: LibraryServer, languages: Sequence[str]) -> LibraryServer:
    """Return the server with key words in these languages alone; with all if none is named."""
    if not languages:
        return server
    codes = {language.partition("-")[0] for language in languages}
    bundles = {}
    for kind, bundle in server.bundles.items():
        words = {code: words for code, words in bundle.words.items() if code in codes}
        bundles[kind] = bundle.model_copy(update={"words": words})
    return server.model_copy(update={"bundles": bundles})


# --- the library's --------------------------------------------------------------------------------


def _library_lines(name: str, recognition: Recognition, server: LibraryServer) -> Iterator[str]:
    """Yield the bundles of a recognised server (rules 1 to 3)."""
    read = recognition.known_by("digest")
    by_name = recognition.known_by("name")
    unknown = recognition.known_by("unknown")
    label = f"{server.server!r} of the library, revision {server.revision}"
    if read:
        yield f"# Bundles {label}: {server.source}."
        yield "# These definitions were read; who may have them is up to policy.toml."
        if server.varies:
            varies = ", ".join(server.varies)
            yield f"# They hold this machine's {varies}: where another machine's differs, its pins"
            yield f"# do not fit, unless [servers.{name}] has volatile paths for these texts."
        for kind in _kinds_of(row.kind for row in read):
            rows = [row for row in read if row.kind == kind]
            yield from _library_bundle(f"{name}.{kind}", name, server.bundles[kind], rows)
            yield ""
    if by_name:
        yield f"# Names as in {label}, but other definitions than were read"
        yield f"# ({server.source}). Anybody can call a tool so: this is a proposal,"
        yield "# with all four effects. Take away the '#' of what you have read."
        for kind in _kinds_of(row.kind for row in by_name):
            rows = [row for row in by_name if row.kind == kind]
            id_ = f"{name}.{kind}-by-name"
            lines = _library_bundle(id_, name, server.bundles[kind], rows, effects=EFFECTS)
            yield from (f"#{line}" for line in lines)
            yield ""
    if unknown:
        yield f"# Not in {label}, and in no bundle: read what they do, and put them where they fit."
        yield from (f"#   {toml_string(f'{name}.{row.tool.card.tool}')}," for row in unknown)


def _library_bundle(
    id_: str,
    name: str,
    bundle: LibraryBundle,
    rows: Sequence[RecognisedTool],
    effects: Sequence[Effect] = (),
) -> Iterator[str]:
    """Yield one bundle with these tools; `effects`: instead of those that were read."""
    readings = [row.reading for row in rows if row.reading is not None]
    found = {effect for reading in readings for effect in reading.effects}
    words = [word for of_language in bundle.words.values() for word in of_language]
    yield f"[bundles.{toml_string(id_)}]"
    yield f"description = {toml_string(bundle.description)}"
    yield f"avoid = {toml_string(bundle.avoid)}"
    yield "examples = ["
    yield from (f"  {toml_string(example)}," for example in bundle.examples)
    yield "]"
    if words:
        yield f"words = {_list(dict.fromkeys(words))}"
    yield "tools = ["
    for reading in readings:
        yield f"  {toml_string(f'{name}.{reading.name}')},{_why(reading)}"
    yield "]"
    yield f"effects = {_list(effects or [effect for effect in EFFECTS if effect in found])}"
    yield 'mode = "meta"'


def _why(reading: LibraryTool) -> str:
    """Return a comment with the clause of a tool that does not plainly read."""
    is_plain = not {"write", "exec"}.intersection(reading.effects)
    if is_plain and not reading.differed and not reading.unsure:
        return ""
    doubt = ""
    if reading.differed:
        doubt = " (readers differed)"
    elif reading.unsure:
        doubt = " (unsure)"
    return f"  # {reading.clause}{doubt}"


# --- guesses --------------------------------------------------------------------------------------


def _guessed_lines(name: str, guesses: Sequence[Guess]) -> Iterator[str]:
    """Yield the bundles of a server that the library does not know (rule 4)."""
    yield f"# Guesses, since the library does not know the server {name!r}: by verbs, parameters,"
    yield "# hints. Read what each tool does, and move it; say in your words what a bundle is for."
    for kind in _kinds_of(row.kind for row in guesses):
        rows = [row for row in guesses if row.kind == kind]
        description = _guessed_description(kind, name, [row.tool for row in rows])
        yield f"[bundles.{toml_string(f'{name}.{kind}')}]"
        yield f"description = {toml_string(description)}"
        yield "tools = ["
        for row in rows:
            yield f"  {toml_string(f'{name}.{row.tool}')},  # guess: {row.reason}"
        yield "]"
        yield f"effects = {_list(_GUESSED_EFFECTS[kind])}"
        yield 'mode = "meta"'
        yield ""


def _guessed_description(kind: Kind, server: str, tools: Sequence[str]) -> str:
    opening = _GUESSED_DESCRIPTIONS[kind].format(server=server)
    names: dict[str, None] = {}
    for tool in tools:
        name = " ".join(words_of_name(tool))
        if name and len(tool) <= _NAME_CHARS:
            names[name] = None

    if not names:
        return f"{opening}."
    return f"{opening}: {', '.join([*names][:_NAMED_TOOLS])}."


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(toml_string(text) for text in texts)}]"
