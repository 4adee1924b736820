"""What an issuer's access token says, and why one is not taken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token of the issuer whose signature and claims hold."""

    principal: str
    """The person or service that it was issued for."""
    role: str
    """The role that it names; empty where the config names no claim for one."""
    scopes: frozenset[str]
    """The values of its scope, without the prefix; those of other services among them are left
    out.
    """


@dataclass(frozen=True, slots=True)
class TokenRefusal:
    """A token that is not taken."""

    reason: str
    """Why, as the rest of a sentence that begins with 'the token'. It quotes nothing of the token.
    """
