"""The token file: the callers of the service and their scopes.

    [tokens.engine]
    sha256 = "9f86d081…"            # of the token; the token itself is stored nowhere
    scopes = ["route", "call"]

    [tokens.alice]
    sha256 = "60303ae2…"
    scopes = ["call"]
    principal = "alice"             # speaks for her alone; absent: for any that a step names
    role = "reviewer"               # the role in which its agent is served at /mcp
    expires = 2027-01-31T00:00:00Z

It is no config file and is never read as one, because a config can't grant itself anything.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import tomllib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

from pydantic import AwareDatetime, Field, ValidationError

from bundle_router.core.values.steps import Frozen
from bundle_router.errors import RequestError, storage_error
from bundle_router.service.keys import Caller, NamedToken, Scope, new_key

MAX_BYTES: Final = 1024 * 1024
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,99}$")]


class TokenEntry(Frozen):
    """One token of the file."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    scopes: tuple[Scope, ...] = Field(min_length=1)
    principal: str = Field(default="", max_length=200)
    role: str = Field(default="", max_length=200)
    expires: AwareDatetime | None = None


class TokenTable(Frozen):
    """The content of the token file."""

    tokens: dict[_Name, TokenEntry] = Field(default_factory=dict, max_length=1_000)


class AccessTokens:
    """A token file, with its stamp when it was last read.

    >>> from bundle_router.service import AccessTokens
    >>> AccessTokens("tokens.toml").has_changed()  # it was not read yet
    True
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._stamp: object = None

    def has_changed(self) -> bool:
        """Return whether the file may have changed since it was read."""
        return self._stamp != self._now()

    def _now(self) -> object:
        try:
            status = self.path.stat()
        except OSError as error:
            return error.errno
        return status.st_mtime_ns, status.st_size, status.st_ino

    def read(self) -> tuple[NamedToken, ...]:
        """Return the tokens. Raises RequestError, which quotes nothing of the file."""
        self._stamp = self._now()
        try:
            with os.fdopen(
                os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb"
            ) as file:  # a pipe is not waited for
                status = os.fstat(file.fileno())
                data = file.read(MAX_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
        except OSError as error:
            raise self._refused_error(f"can't be read: {error.strerror or error}") from None
        if not stat.S_ISREG(status.st_mode) or len(data) > MAX_BYTES:
            raise self._refused_error("is not a file of tokens")
        if status.st_mode & 0o022:
            raise self._refused_error("may be written by others: chmod go-w")
        if not (tokens := self._tokens_in(data)):
            raise self._refused_error("names no token yet")
        return tokens

    def add(
        self,
        name: str,
        scopes: Sequence[str],
        principal: str = "",
        role: str = "",
        expires: datetime | None = None,
    ) -> str:
        """Append a new token's table to the file, creating it if absent, and return the token,
        which is stored nowhere. Raises RequestError for a name that exists; StorageError.
        """
        token = new_key()
        lines = [
            f"[tokens.{json.dumps(name)}]",
            f'sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"',
        ]
        lines.append(f"scopes = {json.dumps(list(scopes))}")
        lines += [
            f"{key} = {json.dumps(text)}"
            for key, text in (("principal", principal), ("role", role))
            if text
        ]
        lines += [f"expires = {expires.isoformat()}"] if expires is not None else []
        table = "\n".join(lines) + "\n"
        self._tokens_in(table.encode())
        try:
            descriptor = os.open(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600
            )
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                if (names := os.fstat(descriptor).st_nlink) > 1:
                    raise OSError(errno.EMLINK, f"it is a hard link: the file has {names} names")
                fcntl.flock(
                    descriptor, fcntl.LOCK_EX
                )  # the same name twice would make the whole file unreadable
                is_written = os.fstat(descriptor).st_size > 0
                if is_written and any(row.caller.name == name for row in self.read()):
                    raise RequestError(
                        f"the token file {str(self.path)!r} already has a token {name!r}",
                        advice="choose another name",
                    )
                file.write(f"\n{table}" if is_written else table)
        except OSError as error:
            raise storage_error(f"{self.path} can't be written", error) from error
        return token

    def _tokens_in(self, data: bytes) -> tuple[NamedToken, ...]:
        try:
            table = TokenTable.model_validate(tomllib.loads(data.decode()))
        except (UnicodeDecodeError, tomllib.TOMLDecodeError):
            raise self._refused_error("is not TOML") from None
        except ValidationError as wrong:
            row = wrong.errors(include_input=False, include_url=False, include_context=False)[0]
            raise self._refused_error(f"{'.'.join(map(str, row['loc']))}: {row['msg']}") from None
        return tuple(_named_token(name, entry) for name, entry in table.tokens.items())

    def _refused_error(self, why: str) -> RequestError:
        return RequestError(
            f"the token file {str(self.path)!r} {why}",
            advice=(
                "`bundle-router token NAME --tokens FILE` adds one: [tokens.NAME] with sha256 and"
                " scopes"
            ),
        )


def _named_token(name: str, entry: TokenEntry) -> NamedToken:
    caller = Caller(name, frozenset(entry.scopes), entry.principal, entry.role)
    return NamedToken(
        bytes.fromhex(entry.sha256), caller, entry.expires.timestamp() if entry.expires else None
    )
