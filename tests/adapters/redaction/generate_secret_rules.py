"""Turns gitleaks' rules into `router/bundle_router/adapters/redaction/gitleaks.json`, the form the
redactor loads.

    python tests/adapters/redaction/generate_secret_rules.py            writes the file
    python tests/adapters/redaction/generate_secret_rules.py --check    exits with 1 when it would differ

What is done to a rule, and why:
1. Its regex is kept, but for the characters that may follow a secret: gitleaks reads source files,
   where a quote, a space or a semicolon ends one; in a log also a comma, a bracket or an ampersand
   does.
2. It gets a *probe*: a looser regex that matches wherever the rule could, with counted repetitions
   cut short so that all probes fit one small automaton. A text that no probe matches holds no hit
   of any rule.
3. The rules of the form `name … = value` (some hundred) share one probe, which is only looked for
   behind a name.
4. Entropy thresholds stay where the shape alone is weak. A rule with a prefix of its own (`ghp_`)
   drops its threshold: redacting a made-up `ghp_xxxx…` harms nobody, letting a real token through
   does.
5. A token may also begin and end at `_`, as in `my_TOKEN_key`, where no word does.
6. Path conditions are dropped: a log record has no path.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "tests/data/gitleaks/gitleaks.toml"
TARGET = ROOT / "router/bundle_router/adapters/redaction/gitleaks.json"

NAME = re.compile(
    r"\[\\w\.-\]\{0,50\}\?(?:\(\?i:\[\\w\.-\]\{0,50\}\?)?(\(\?:.*?\))\(\?:\[ \\t\\w\.-\]\{0,20\}\)"
)
VALUE = r"""(?:[\w.=+/-]{10}|(?i:[0-9a-f]{8}):|[0-9]{5,16}:A|"[a-z0-9=_-]{8})"""
ASSIGNMENT = r"""[ \t\w.-]*[\s'"]*[=>:|?,][=>:|\x60'"\s]*"""

WEAK_SHAPES = {
    "vault-service-token",
    "sourcegraph-access-token",
    "facebook-access-token",
    "curl-auth-user",
}
"""Rules without a prefix of their own that keep their entropy threshold."""

PROBES = {
    # `.*` over several lines, bare runs and cut counts make poor probes: these are the parts that
    # are always there.
    "azure-ad-client-secret": r"[0-9]Q~[a-zA-Z0-9_~.-]{8}",
    "hashicorp-tf-api-token": r"\.atlasv1\.",
    "maxmind-license-key": "[A-Za-z0-9]_mmk",
    "microsoft-teams-webhook": r"\.webhook\.office\.com/webhookb2/",
    "sourcegraph-access-token": r"(?i:sgp_|sourcegraph)",
    "curl-auth-header": r"\bcurl\b[\s\S]*[ \t\n\r](?:-H|--header)",
    "curl-auth-user": r"\bcurl\b[\s\S]*[ \t\n\r](?:-u|--user)",
    "kubernetes-secret-yaml": r"""(?i:\bkind:[ \t]*["']?secret\b)""",
    "vault-service-token": r"\b(?:hvs\.[\w-]{8}|s\.(?i:[a-z0-9]{24}))",
    "private-key": r"(?i:-----BEGIN[ A-Z0-9_-]*PRIVATE KEY)",
}

TOLD_BY_VALUE = {
    "lob-api-key": r"(?i:(?:live|test)_[a-f0-9]{35})",
    "lob-pub-api-key": r"(?i:(?:live|test)_pub_[a-f0-9]{31})",
}
"""Probes of rules of the form `name = value` whose value tells more than the name: `lob` is in
`global` and `blob`.
"""

ALSO = {"atlassian-api-token": r"\bATATT3[A-Za-z0-9_=-]{8}"}
"""Probes of rules of the form `name = value` that have a second form."""

WHOLE_MATCH = {"microsoft-teams-webhook", "jwt-base64"}
"""Rules whose groups repeat or alternate, so that the first group is a fragment of the secret."""

END = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
LOG_END = r"""(?:[\x60'"\s;,&<>|)\]}]|\\[nr]|$)"""
WITHOUT_COMMA = {"hashicorp-tf-password"}
"""Rules written for one language, where `"password", "user"` in a list of names is no
assignment.
"""
TOKEN_END = r"(?:[^A-Za-z0-9-]|$)"
EDGE = r"(?:\b|_)"
TOKEN = re.compile(
    r"(?P<flag>(?:\(\?i\))?)\\b(?:(?P<token>\((?!\?).+?)|(?P<bare>[A-Za-z](?:[^(]|\(\?)+?))(?P<end>\\b)?"
)
"""A rule of nothing but a token: a group, or a regex without one, that begins at `\\b`."""


def at_underscores(regex: str) -> str:
    """A token's regex, as the token may also stand between two `_`."""
    found = TOKEN.fullmatch(regex)
    if found is None or "curl" in regex:
        return regex
    return (
        found["flag"]
        + EDGE
        + (found["token"] or f"({found['bare']})")
        + (EDGE if found["end"] else "")
    )


def loosened(regex: str) -> str:
    """A regex that matches wherever `regex` does, small as an automaton: no assertions on ends, no
    long counts.
    """

    def count(match: re.Match[str]) -> str:
        least = min(int(match[1]), 8)
        return f"{{{least},}}" if least else "*"

    shorter = re.sub(r"\{(\d+)(?:,\d*)?\}\??", count, regex)
    shorter = shorter.replace(END, "")
    return re.sub(r"(?<!\\)\((?!\?)", "(?:", shorter)


def allowances(rule: dict[str, Any]) -> list[dict[str, Any]]:
    """A rule's allowlists without the conditions on paths."""
    return [
        {
            "target": entry.get("regexTarget", "secret"),
            "regexes": entry.get("regexes", []),
            "stopwords": sorted(entry.get("stopwords", [])),
        }
        for entry in rule.get("allowlists", ())
        if entry.get("regexes") or entry.get("stopwords")
    ]


def generated(source: bytes) -> dict[str, Any]:
    """The content of `gitleaks.json` for the given gitleaks.toml."""
    config = tomllib.loads(source.decode())
    rules, names, probes = [], set(), []
    for rule in config["rules"]:
        if "regex" not in rule:
            continue
        name = NAME.search(rule["regex"])
        regex = (
            rule["regex"] if name or rule["id"] in WEAK_SHAPES else at_underscores(rule["regex"])
        )
        shared = name and rule["id"] not in TOLD_BY_VALUE
        special = TOLD_BY_VALUE.get(rule["id"]) or ALSO.get(rule["id"])
        own = special if name else PROBES.get(rule["id"]) or loosened(regex)
        if name and shared:
            names.add(name[1])
        if own:
            probes.append(own)
        regex = regex.replace(END, LOG_END if name else TOKEN_END)
        rules.append(
            {
                "id": rule["id"],
                "regex": regex.replace("|,)", ")") if rule["id"] in WITHOUT_COMMA else regex,
                "group": 0 if rule["id"] in WHOLE_MATCH else rule.get("secretGroup"),
                "entropy": rule.get("entropy", 0) if name or rule["id"] in WEAK_SHAPES else 0,
                "keywords": rule.get("keywords", []),
                "assignment": bool(name),
                "probes": [0] * bool(shared) + [len(probes)] * bool(own),
                "allow": allowances(rule),
            }
        )
    shared = config["allowlist"]
    any_name = f"(?i:{'|'.join(sorted(names))})"
    return {
        "source": "gitleaks.toml of the gitleaks project, MIT licence: see gitleaks.LICENSE",
        "sha256": hashlib.sha256(source).hexdigest(),
        "allow": [
            {
                "target": "secret",
                "regexes": shared["regexes"],
                "stopwords": sorted(shared["stopwords"]),
            }
        ],
        "names": any_name,
        "probes": [any_name + ASSIGNMENT + VALUE, *probes],
        "rules": rules,
    }


def main() -> int:
    text = json.dumps(generated(SOURCE.read_bytes()), indent=1, ensure_ascii=True) + "\n"
    if "--check" in sys.argv[1:]:
        return int(TARGET.read_text(encoding="utf-8") != text)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
