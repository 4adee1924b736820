"""The field names whose values are secrets: `password`, `X-Api-Key`, `githubToken`, `DB_PASSWD`.

One list covers every spelling: names are compared without case and without `-`, `_`, `.` and
spaces.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

ENDINGS: Final = (
    *(
        "password",
        "passwd",
        "passphrase",
        "passcode",
        "secret",
        "apikey",
        "accesskey",
        "secretkey",
        "privatekey",
    ),
    *(
        "signingkey",
        "encryptionkey",
        "accountkey",
        "sharedkey",
        "masterkey",
        "authkey",
        "credential",
        "credentials",
    ),
    *("authorization", "cookie", "cookies", "token"),
)
EXACT: Final = frozenset(
    {"pass", "pwd", "jsessionid", "phpsessid", "connectsid", "aspnetsessionid"}
)

NOT_SECRET: Final = (
    *(
        "pagetoken",
        "nexttoken",
        "prevtoken",
        "previoustoken",
        "continuationtoken",
        "synctoken",
        "cursortoken",
    ),
    *(
        "resumetoken",
        "skiptoken",
        "stoptoken",
        "eostoken",
        "bostoken",
        "padtoken",
        "pertoken",
        "progresstoken",
    ),
    *(
        "maxtoken",
        "inputtoken",
        "outputtoken",
        "clientrequesttoken",
        "forgotpassword",
        "resetpassword",
    ),
)
"""Cursors, units and ids that end in "token" but are needed to understand a record, and two names
of pages.
"""

HEADERS: Final = frozenset(
    {"authorization", "proxyauthorization", "cookie", "setcookie", "xapikey", "xauthtoken"}
)
"""Names that mark a secret even in a bare pair, `["Authorization", "…"]`; other pairs could be any
two words.
"""

IN_TEXT: Final = (
    r"[\w.-]{0,60}(?:passw(?:or)?d|passphrase|passcode|secret|credentials?|authorization|cookies?|token"
    r"|(?:api|access|secret|private|signing|encryption|account|shared|master|auth)[ _.-]?key"
    r"|\bpass|\bpwd|jsessionid|phpsessid|connect\.sid)"
)
"""The same list as a regex over text; `is_secret_name` confirms its matches."""

NAME_ENDS: Final = "|".join(r"[\s_.-]*".join(name) for name in (*ENDINGS, *EXACT))
"""The ends of all such names, with any separators: matches wherever `is_secret_name` may be
true.
"""

HARMLESS: Final = (
    r"[~^]?\d{1,4}\.\d{1,4}\.\d{1,4}|(?i:your[-_ ](?:[a-z]+[-_ ])*(?:key|token|secret|password))"
    r"|(?:[A-Z]:\\|/(?:app|bin|etc|home|mnt|opt|path|root|run|srv|tmp|usr|var|work|workspace|Users)/)\S*"
)
"""Matches values that are no secret under any name: a version, `your-token`, a path."""

_SEPARATORS = re.compile(r"[\s_.-]+")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a field of this name holds a secret, whatever its value looks like."""
    if len(name) > 100:
        return False
    bare = _SEPARATORS.sub("", name).lower()
    return bare in EXACT or (bare.endswith(ENDINGS) and not bare.endswith(NOT_SECRET))


@lru_cache(maxsize=4096)
def is_header_name(name: str) -> bool:
    """Return whether this is the name of a header that carries a secret."""
    return len(name) <= 40 and _SEPARATORS.sub("", name).lower() in HEADERS
