"""Which field names announce a secret: `password`, `X-Api-Key`, `githubToken`, `DB_PASSWD`.

One list for every spelling: names are compared without case and without `-`, `_`, `.` and spaces.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

ENDINGS: Final = (
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "secret",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "signingkey",
    "encryptionkey",
    "accountkey",
    "sharedkey",
    "masterkey",
    "authkey",
    "credential",
    "credentials",
    "authorization",
    "cookie",
    "cookies",
    "token",
)
EXACT: Final = frozenset({"pass", "pwd", "jsessionid", "phpsessid", "connectsid", "aspnetsessionid"})

NOT_SECRET: Final = (
    # Cursors and units that end in "token" and are needed to read a record.
    "pagetoken",
    "nexttoken",
    "prevtoken",
    "previoustoken",
    "continuationtoken",
    "synctoken",
    "cursortoken",
    "resumetoken",
    "skiptoken",
    "stoptoken",
    "eostoken",
    "bostoken",
    "padtoken",
    "pertoken",
    "progresstoken",
    "maxtoken",
    "forgotpassword",
    "resetpassword",
)

HEADERS: Final = frozenset({"authorization", "proxyauthorization", "cookie", "setcookie", "xapikey", "xauthtoken"})
"""Names that announce a secret also in a bare pair, `["Authorization", "…"]`, where others could be any two words."""

IN_TEXT: Final = (
    r"[\w.-]{0,60}(?:passw(?:or)?d|passphrase|passcode|secret|credentials?|authorization|cookies?|token"
    r"|(?:api|access|secret|private|signing|encryption|account|shared|master|auth)[ _.-]?key"
    r"|\bpass|\bpwd|jsessionid|phpsessid|connect\.sid)"
)
"""The same list as a regex over text; what it finds is confirmed by `is_secret_name`."""

NAME_ENDS: Final = "|".join(r"[\s_.-]*".join(name) for name in (*ENDINGS, *EXACT))
"""How every such name ends, whatever separators stand in it: it matches where `is_secret_name` may be true."""

_SEPARATORS = re.compile(r"[\s_.-]+")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether the value under this name is a secret whatever it looks like."""
    if len(name) > 100:
        return False
    bare = _SEPARATORS.sub("", name).lower()
    return bare in EXACT or (bare.endswith(ENDINGS) and not bare.endswith(NOT_SECRET))


@lru_cache(maxsize=4096)
def is_header_name(name: str) -> bool:
    """Return whether this is the name of a header that carries a secret."""
    return len(name) <= 40 and _SEPARATORS.sub("", name).lower() in HEADERS
