"""The shapes of secrets that gitleaks' rules miss: headers, cookies, URL user info, query
parameters, named values, and the tokens of `token_shapes.json`, which tells of each where it was
read and when.

Each shape is an RE2 regex over bytes with the secret in a group, and a check that excludes harmless
text where the regex alone can't. A shape has only its plain spelling: `encodings` gives it
unescaped texts.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bundle_router.adapters.redaction.field_names import HARMLESS, IN_TEXT, is_secret_name

Check = Callable[[bytes], bool]

PLACEHOLDER_WORDS: Final = frozenset(
    b"string str text number integer boolean bool null none nil true false undefined required"
    b" optional default value bearer basic digest token password passwd secret authorization"
    b" authentication header headers example changeme aws4-hmac-sha256 negotiate".split()
)
_REFERENCE = re.compile(
    rb"(?:\w+[ \t]+)?(?:\$\{?\w+(?:[.:-][^}]*)?\}?|\$\(.*|\{\{?.*\}?\}|<[^<>]*>|%\w+%|[*.xX]+)"
)
_HARMLESS = re.compile(HARMLESS.encode())
_MADE = r"[A-Za-z0-9._~+/=|:%!@#^&*-]"


def is_value(value: bytes) -> bool:
    """Return whether it is no reference (`${NAME}`, `<token>`, `***`), no placeholder word, and not
    harmless.
    """
    return not (
        value.lower() in PLACEHOLDER_WORDS
        or _REFERENCE.fullmatch(value)
        or _HARMLESS.fullmatch(value)
    )


def is_token(value: bytes) -> bool:
    """Return whether it looks generated (a digit, mixed case, longer than a word), unlike
    `options.password`.
    """
    letters = value.translate(None, b"-_./")
    generated = (
        not letters.isalpha() or len(value) >= 16 or not (letters.islower() or letters.istitle())
    )
    return (
        generated
        and is_value(value)
        and not is_secret_name(value.partition(b".")[2].decode("latin-1"))
    )


def is_long_token(value: bytes) -> bool:
    """Return whether it is a token with a digit: for places where prose is as likely."""
    return is_value(value) and re.search(rb"[0-9]", value) is not None


def is_mixed_token(value: bytes) -> bool:
    """Return whether it has digits and letters of both cases: for short prefixes that words begin
    with, too.
    """
    return is_long_token(value) and value.upper() != value != value.lower()


def is_basic(value: bytes) -> bool:
    """Return whether it is the base64 of `user:password`."""
    try:
        return b":" in base64.b64decode(value + b"==")
    except binascii.Error:
        return False


@dataclass(frozen=True, slots=True)
class SecretShape:
    """Every group of `regex` that matched is a secret, except `name`: a group that must pass
    `is_secret_name`. With `inner`, the groups are regions, and the groups of `inner` in them are
    the secrets. `probe`: a simpler regex that matches wherever `regex` does.
    """

    id: str
    regex: str
    check: Check = is_value
    name: int = 0
    inner: str = ""
    probe: str = ""


# Printable ASCII that can occur in a URL's user info; passwords with a raw `@` or `:` are common.
_USER = r"[!$%&()*+,.0-9;=A-Z\[\]^_a-z{|}~-]"
_USER_OR_SIGN = r"[!$%&()*+,.0-9;=A-Z\[\]^_a-z{|}~:@-]"
_OPERATOR = r"""["']?\s*(?:=>|[:=,])\s*[bru]?["']?"""
_SCHEMES = (
    r"(?:bearer|basic|token|api-?key|negotiate|ntlm|dpop|key|bot|sso-key|oauth2?|jwt|splunk"
    r"|genie-?key|private-token)"
)
_QUOTED_NAME = r"""["'`](IN_TEXT)["'`]\s*(?:=>|[:=])\s*[bru]?""".replace("IN_TEXT", IN_TEXT)
_WEAK_PARAMETER = (
    r"key|code|token|sig|signature|auth|hash|hmac|se?ssion(?:_?id)?|sid|assertion|ticket"
    r"|x-amz-credential"
)
_PARAMETER = (
    r"[\w.-]*(?:access|refresh|id|auth|session|security|bearer|api|csrf|xsrf)[_-]?token|[\w.-]*api[_-]?key"
    r"|[\w.-]*secret|passw(?:or)?d|pwd|pass|authorization|x-(?:amz|goog)-signature|[\w-]*private[_-]?key"
)

STRUCTURES: Final = (
    SecretShape(
        "authorization-header",
        rf"""(?i)authorization{_OPERATOR}{_SCHEMES}[ \t:=]+(?:token=)?["']?({_MADE}{{4,}})""",
        is_token,
    ),
    SecretShape(
        "authorization-header",
        rf"""(?i)authorization["']?\s*(?:=>|[:=])\s*[bru]?["']?({_MADE}{{8,}})(?:["'\s,;)}}\]\\]|$)""",
        is_token,
    ),
    SecretShape(
        "authorization-header",
        rf"""(?i)authorization{_OPERATOR}(?:digest|aws4-hmac-\w+|oauth|hawk|mac|signature|eg1-hmac-\w+|scram-[\w-]+"""
        rf"""|sharedkey(?:lite)?|sharedaccesssignature)[ \t]+([^\r\n]+)""",
        inner=r"""(?i)(?:^[\w.-]+:|\b(?:response|signature|mac|hash|nonce|cnonce|credential|sig|oauth_(?:token|signature"""
        r"""|nonce|consumer_key)|data|access_token|client_token)["']?\s*=\s*["']?)([^\s"',;&\\]+)""",
    ),
    SecretShape("bearer-token", r"(?i)\bbearer[ \t]+([A-Za-z0-9._~+/-]{16,}=*)", is_long_token),
    SecretShape("router-token", r"(?:\b|_)(brk_[A-Za-z0-9_-]{43})"),
    SecretShape("basic-credentials", r"(?i)\bbasic[ \t]+([A-Za-z0-9+/]{8,}={0,2})", is_basic),
    SecretShape(
        "cookie",
        r"""(?i)(?:\b(?:set-)?cookie2?["']?\s*(?:=>|[:=,])\s*[bru]?["']?|--cookie[= \t]+["']?)"""
        r"""([\w!#$%&'*+.^`|~-]+=[^"'\r\n]*)""",
        inner=r"(?:^|;)\s*(?:(?i:expires|path|domain|max-age|samesite|version|priority)=[^;]*|[^=;\s]+=([^;\s]+))",
    ),
    SecretShape("url-credentials", rf"[A-Za-z][A-Za-z0-9+.-]*://{_USER}*:({_USER_OR_SIGN}+)@"),
    SecretShape("url-credentials", rf"[A-Za-z][A-Za-z0-9+.-]*://({_USER}{{16,}})@", is_long_token),
    SecretShape(
        "url-credentials", rf"\b[\w.-]+:({_USER}{{4,}})@(?:(?:tcp|unix)\(|[\w.-]+:\d{{2,5}}\b)"
    ),
    SecretShape("url-parameter", rf"""(?i)[?&;#](?:{_PARAMETER})=([^&\s"'<>#\\;`]{{3,}})"""),
    SecretShape(
        "url-parameter",
        rf"""(?i)[?&](?:{_WEAK_PARAMETER})=([^&\s"'<>#\\;`]{{12,}})""",
        is_long_token,
    ),
    SecretShape("named-secret", rf"""(?i){_QUOTED_NAME}"((?:[^"\\]|\\.)+)\"""", name=1),
    SecretShape("named-secret", rf"""(?i){_QUOTED_NAME}'((?:[^'\\]|\\.)+)'""", name=1),
    SecretShape(
        "environment-assignment",
        r"""\b([A-Z0-9_]*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY"""
        r"""|CREDENTIALS?))=(?:"([^"\r\n]{4,})"|'([^'\r\n]{4,})'|([^\s"'`;&|()<>\\]{4,}))""",
        name=1,
    ),
    SecretShape(
        "password-assignment",
        r"""(?i)\b[\w.-]*(?:passw(?:or)?d|passphrase|\bpwd|accountkey|sharedaccesskey)"""
        r"""[ \t]*(?:=|:[ \t])[ \t]*["']?"""
        r"""([^\s"'`,;&|()<>{}\[\]\\]{6,})""",
        is_token,
    ),
    SecretShape(
        "command-line-secret",
        r"""(?i)(?:^|[\s"'])--?(?:[\w-]*(?:password|passwd|passphrase|token|secret|api-?key|access-?key))"""
        r"""(?:=|[ \t]+|["'],\s*["'])["']?([^\s"'`,;&|()<>{}\[\]\\]{4,})""",
        is_token,
    ),
    SecretShape(
        "private-key",
        # The end may have been cut off: then everything that can be part of the key is redacted.
        r"""(?i)-----BEGIN[ A-Z0-9_-]{0,100}PRIVATE KEY(?: BLOCK)?-----"""
        r"""((?:[A-Za-z0-9+/=\s:,.\\]|-[A-Za-z0-9 ])*)""",
        lambda value: bool(value.strip()),
        probe=r"(?i)-----BEGIN[ A-Z0-9_-]*PRIVATE KEY",
    ),
)
STRUCTURE: Final = (
    rf"""(?i)authorization|cookie|-----BEGIN|brk_|(?:bearer|basic)[ \t]|://{_USER_OR_SIGN}*@"""
    rf"""|@(?:(?:tcp|unix)\(|[\w.-]+:\d\d)|[?&](?:{_WEAK_PARAMETER})="""
    r"""|(?:passw(?:or)?d|passphrase|passcode|secret|credentials?|token|key|pass|pwd|signature|jsessionid|phpsessid"""
    r"""|connect\.sid)["'`=: \t]"""
)
"""Matches wherever one of these does: their names, before what may follow them."""
_CHECKS: Final = {
    "value": is_value,
    "token": is_token,
    "long": is_long_token,
    "mixed": is_mixed_token,
}
TOKEN_SHAPES: Final = tuple(
    SecretShape(
        row["id"], row["regex"], _CHECKS[row.get("check", "value")], probe=row.get("probe", "")
    )
    for row in json.loads(
        Path(__file__).with_name("token_shapes.json").read_text(encoding="utf-8")
    )["rows"]
)
SHAPES: Final = (*STRUCTURES, *TOKEN_SHAPES)
