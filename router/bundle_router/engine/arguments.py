"""The arguments of a call: read, bounded, filled in from artifacts, and checked against the tool's
schema.

Rules:
1. An artifact's handle in the arguments is replaced by the bytes or the file it names; only
   artifacts of the run and its ancestors count. Bytes in the arguments are recorded as artifacts.
2. A tool that wants a path gets the path of a read-only copy, which is deleted when the call has
   ended. Only tools on this machine get one: a server elsewhere can't read it, and learns nothing
   of our folders.
3. The arguments are unusable, and the tool is not called, if an artifact is missing, unreadable or
   too large, or a path can't be given.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bundle_router.core.catalog import Server
from bundle_router.core.decide.budgets import HEAD
from bundle_router.core.results.artifact_handles import (
    PREFIX,
    Handle,
    encoded,
    file_name,
    fill_arguments,
    handles_in,
)
from bundle_router.core.results.shaping import Blob
from bundle_router.core.results.shaping.json_text import is_plain
from bundle_router.core.results.shaping.payloads import LONG, References
from bundle_router.core.values.canonical import PIECE, budget_left, digest, encode
from bundle_router.engine.engine_ports import EnginePorts
from bundle_router.engine.surface import CallTarget, RunState
from bundle_router.errors import CorruptRun, RequestError, StorageError
from bundle_router.ports import Redactor, Scratch

MAX_NAME: Final = 200
MAX_KEY: Final = 200
"""Characters of a name or a reason in a record."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call.

    `text` is recorded. `wrong` is the code, and the end of a sentence that begins "The arguments of
    … ", where they can't be used. `asked` is the value before artifact handles in it were replaced;
    `files` are the paths that replaced some. `blobs` are the bytes that `text` names by handle;
    they are stored when the call begins. `raw` is the value's canonical text, secrets included.
    """

    value: Mapping[str, Any]
    text: str
    wrong: tuple[str, str] | None = None
    asked: Mapping[str, Any] | None = None
    files: tuple[str, ...] = ()
    blobs: tuple[Blob, ...] = ()
    raw: str = ""


async def read_arguments(
    ports: EnginePorts, arguments: Mapping[str, Any] | str, max_bytes: int
) -> Arguments:
    """Read the arguments, large ones in a thread that lets event loops go on."""
    if isinstance(arguments, str):
        size = INLINE_CHARS - len(arguments)
    else:
        size = budget_left(arguments, INLINE_CHARS)
    if size >= 0:
        return _read(ports.redactor, arguments, max_bytes, False)
    read: Arguments = await ports.in_thread(
        lambda: _read(ports.redactor, arguments, max_bytes, True)
    )
    return read


def _read(
    redactor: Redactor, arguments: Mapping[str, Any] | str, max_bytes: int, is_large: bool
) -> Arguments:
    """Return the arguments as an object and as the record's text, with secrets removed by name and
    by shape. Also takes an object as JSON text, which some providers send, also twice; null and
    blank text are no arguments.
    """
    if isinstance(arguments, str):
        if len(arguments) > max_bytes:
            return _too_large(redactor, arguments, max_bytes)
        try:
            arguments = _from_json(arguments)
        except (ValueError, RecursionError) as wrong:
            return _not_json(wrong)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict | Mapping):  # the first is quick to tell
        kind = type(arguments).__name__
        return Arguments(
            {},
            encode({"not_an_object": kind}),
            ("not_an_object", "must be an object, with its names."),
        )
    value = dict(arguments)
    try:
        text = encode(value)
    except (TypeError, ValueError, RecursionError) as wrong:
        return _not_json(wrong, sorted(str(name)[:MAX_NAME] for name in list(value)[:50]))
    if len(text) > max_bytes:
        return _too_large(redactor, text, max_bytes)
    redacted = value if redactor.are_clean((text,)) else redactor.redact_value(value)
    recorded_text = text if redacted is value else encode(redacted)
    return Arguments(
        value, redactor.redact(recorded_text) if is_large else recorded_text, raw=text
    )  # here, and not as it is recorded


def _from_json(text: str) -> Any:
    value = json.loads(text if text.strip() else "{}", parse_constant=_no_constant)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return json.loads(value, parse_constant=_no_constant)
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _not_json(wrong: Exception, names: list[str] | None = None) -> Arguments:
    if isinstance(wrong, RecursionError):
        reason = "they are nested too deep"
    else:
        reason = str(wrong)[:MAX_NAME]
    text = encode({"not_json": reason} | ({"names": names} if names is not None else {}))
    return Arguments({}, text, ("not_json", f"are not JSON: {reason}."))


def _too_large(redactor: Redactor, text: str, max_bytes: int) -> Arguments:
    # Redacted before it is cut: half a secret is not recognised as one.
    head = redactor.redact(text[: 16 * HEAD])[:HEAD]
    recorded_text = encode({"too_large": len(text), "digest": digest(text), "head": head})
    return Arguments(
        {},
        recorded_text,
        ("too_large", f"are {len(text):,} bytes, at most {max_bytes:,} are taken."),
    )


# --- artifacts ------------------------------------------------------------------------------------

INLINE_CHARS: Final = PIECE
"""Arguments and results of up to this size are processed on the event loop; larger ones, and media,
in a thread.
"""
FetchArtifact = Callable[[str], bytes]
"""Returns an artifact that the run may use, by digest.

Raises KeyError, CorruptRun, StorageError.
"""


class _Unusable(Exception):
    """The arguments can't be used: the code, and the end of a sentence that begins "The arguments
    of … ".
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


def may_hold_handles(arguments: Arguments) -> bool:
    """Return whether the arguments may contain an artifact's handle."""
    return arguments.wrong is None and PREFIX in arguments.text


@asynccontextmanager
async def with_artifacts(
    ports: EnginePorts, state: RunState, artifact: FetchArtifact, name: str, arguments: Arguments
) -> AsyncIterator[Arguments]:
    """Give the arguments with bytes or paths in place of handles, where the tool's schema asks for
    them. What is recorded does not change.
    """
    cards = state.catalog.cards
    card = cards.get(state.target(name).tool)
    handles = handles_in(arguments.value, card.input_schema()) if card is not None else ()
    if card is None or not handles:
        yield arguments
        return
    scratch = ports.scratch() if ports.scratch is not None else None
    filler = ArtifactFiller(ports, state, artifact, state.catalog.servers[card.server], scratch)
    limit = state.catalog.settings.limits.max_result_bytes
    try:
        yield await asyncio.to_thread(_fill, filler, arguments, handles, limit)
    finally:
        if scratch is not None:
            scratch.close()


async def without_payloads(ports: EnginePorts, arguments: Arguments) -> Arguments:
    """Return the arguments with artifacts in place of bytes (base64, `data:` URIs) in the recorded
    text. The tool gets them unchanged. The artifacts are stored when the call begins; a refused
    call stores none.
    """
    if arguments.wrong is not None or len(arguments.text) < LONG:
        return arguments
    if len(arguments.text) < INLINE_CHARS:
        return _without_blobs(ports, arguments)
    without_blobs: Arguments = await ports.in_thread(lambda: _without_blobs(ports, arguments))
    return without_blobs


def _without_blobs(ports: EnginePorts, arguments: Arguments) -> Arguments:
    if len(arguments.text) >= INLINE_CHARS and is_plain(arguments.value):
        return arguments  # only short texts
    references = References(ports.describe)
    value = references.value(json.loads(arguments.text))
    recorded_text = ports.redactor.redact(encode(value)) if references.blobs else arguments.text
    return replace(arguments, text=recorded_text, blobs=references.blobs)


@dataclass(frozen=True, slots=True)
class ArtifactFiller:
    """Replaces an artifact's handle in a call's arguments."""

    ports: EnginePorts
    state: RunState
    artifact: FetchArtifact
    server: Server
    scratch: Scratch | None

    def read(self, handle: Handle) -> bytes:
        uri = f"{PREFIX}{handle.sha256}"
        try:
            return self.artifact(handle.sha256)
        except KeyError:
            raise _Unusable("not_found", f"name {uri}, which this run does not have.") from None
        except (CorruptRun, StorageError) as trouble:
            self.ports.diagnostics.event(
                "error", "artifact.unread", run_id=self.state.run_id, uri=uri, error=trouble
            )
            raise _Unusable("storage", f"name {uri}, which can't be read.") from None

    def fill(self, handle: Handle, data: bytes) -> str:
        """Return the text that replaces the handle."""
        mime_type = self.ports.describe(data).mime_type
        if handle.want != "path":
            return encoded(data, handle.want, mime_type)
        if self.scratch is None or not self.server.traits.here:
            reason = (
                f"give {PREFIX}… where a path is wanted, and server {self.server.name!r} is not on"
                " this machine"
            )
            raise _Unusable(
                "no_path",
                f"{reason}: it can't read the file. Give it where content is wanted instead.",
            )
        if self.server.files is not None:
            folder = str(Path(self.state.root, self.server.files))
        else:
            folder = ""
        try:
            return self.scratch.put(file_name(handle.sha256, mime_type), data, within=folder)
        except StorageError as trouble:
            self.ports.diagnostics.event(
                "error", "artifact.not_handed", run_id=self.state.run_id, error=trouble
            )
            raise _Unusable("storage", "name an artifact that can't be put into a file.") from None


def _fill(
    filler: ArtifactFiller, arguments: Arguments, handles: tuple[Handle, ...], max_bytes: int
) -> Arguments:
    texts: dict[tuple[str | int, ...], str] = {}
    total = 0
    try:
        for handle in handles:
            data = filler.read(handle)
            total += len(data)
            if total > max_bytes:
                raise _Unusable("too_large", f"stand for over {max_bytes:,} bytes of artifacts.")
            texts[handle.place] = filler.fill(handle, data)
    except _Unusable as wrong:
        return replace(arguments, wrong=(wrong.code, wrong.sentence))
    files = dict.fromkeys(texts[handle.place] for handle in handles if handle.want == "path")
    return replace(
        arguments,
        value=fill_arguments(arguments.value, texts),
        asked=arguments.value,
        files=tuple(files),
    )


def check_key(redactor: Redactor, key: object) -> None:
    """Check the key of a call.

    Raises RequestError for an invalid key, and for one that looks like a secret: it is recorded.
    """
    if not isinstance(key, str) or len(key) > MAX_KEY or redactor.redact(key) != key:
        raise RequestError(
            f"a call's key must be text of at most {MAX_KEY} characters, and must not look like a"
            " secret",
            advice="records keep it as it is: use other words for it",
        )


def keyed_digest(nonce: str, arguments: Arguments) -> str:
    """Return the digest of a call's raw arguments, keyed with the run's nonce, for a call with a
    key.
    """
    text = (arguments.raw or arguments.text).encode(
        "utf-8", "surrogatepass"
    )  # a refused call binds no key
    return hmac.new(nonce.encode("utf-8"), text, hashlib.sha256).hexdigest()


_WHOLE_FLOAT: Final = re.compile(r"[0-9]\.0(?![0-9])|[0-9][eE]\+?[0-9]")
"""A whole number that is written with a point, or with an exponent."""


async def check_arguments(
    ports: EnginePorts, target: CallTarget, arguments: Arguments
) -> tuple[Arguments, Sequence[str]]:
    """Return the arguments for a call's target, and what is wrong with them.

    Arguments that do not fit are read as the tool's schema shows they were meant (`meant_values`):
    the tool gets those, and what is recorded does not change. So do keys that a provider does not
    take, which have another name for the model (`provider_schemas`).

    Holds no lock, since a large value takes long. A call that is refused for another reason is not
    checked.
    """
    if target.server is None or arguments.wrong is not None:
        return arguments, ()
    sessions = ports.sessions[target.server.transport]
    (server, _, short) = target.tool.partition(".")
    card = target.card
    if card is not None:
        arguments = _with_real_names(arguments, card.schema)
    problems = await sessions.check_arguments(server, short, arguments.value)
    is_short = len(arguments.text) < INLINE_CHARS
    is_as_meant = not problems and not (is_short and _WHOLE_FLOAT.search(arguments.text))
    if card is None or is_as_meant:
        return arguments, problems
    meant = await _as_meant(ports, arguments, card.input_schema())
    if meant is arguments.value:
        return arguments, problems
    problems = await sessions.check_arguments(server, short, meant)
    return replace(arguments, value=meant), problems


def _with_real_names(arguments: Arguments, schema_text: str) -> Arguments:
    if all(f'"{name}"' in schema_text for name in arguments.value):
        return arguments
    from bundle_router.core.exposure.provider_schemas import with_real_names  # few calls need it

    return replace(arguments, value=with_real_names(arguments.value, schema_text))


async def _as_meant(
    ports: EnginePorts, arguments: Arguments, schema: Mapping[str, Any]
) -> Mapping[str, Any]:
    from bundle_router.core.values.meant_values import as_meant  # few calls need it

    meant: Mapping[str, Any]
    if len(arguments.text) < INLINE_CHARS:
        meant = as_meant(arguments.value, schema)
    else:
        meant = await ports.in_thread(lambda: as_meant(arguments.value, schema))
    return meant
