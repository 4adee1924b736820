"""Every rule is at work: samples made from its own regex are found, whatever was done to make it
fast.
"""

from __future__ import annotations

import json
import random
import re
import string
import subprocess
import sys
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.redaction import SecretRedactor
from bundle_router.adapters.redaction.detection import RuleBook
from bundle_router.adapters.redaction.encodings import pattern
from bundle_router.adapters.redaction.shapes import SHAPES, SecretShape

from tests.profiles import rounds

# The standard library's own regex parser. It has no stubs, and what mypy says of it depends on what
# else was read.
_constants, _parser = (import_module(f"re.{name}") for name in ("_constants", "_parser"))
ROOT = Path(__file__).parents[3]
RULES: list[dict[str, Any]] = json.loads(
    (ROOT / "router/bundle_router/adapters/redaction/gitleaks.json").read_text("utf-8")
)["rules"]
PRINTABLE = [ord(c) for c in string.ascii_letters + string.digits + string.punctuation + " "]


def sample(regex: str, chance: random.Random) -> str:
    """A text that the regex matches. Case flags are ignored: what they allow is not needed."""
    return "".join(map(chr, _drawn(_parsed(regex), chance)))


@cache
def _parsed(regex: str) -> Sequence[Any]:
    plain = regex.replace("[[:alnum:]]", "[A-Za-z0-9]").replace(r"\z", r"\Z").replace("(?s:.)", ".")
    plain = re.sub(r"\(\?-?i:", "(?:", plain).replace("(?i)", "")
    tree: Sequence[Any] = _parser.parse(plain)
    return tree


def _drawn(tree: Sequence[Any], chance: random.Random) -> list[int]:
    drawn: list[int] = []
    for kind, argument in tree:
        if kind is _constants.LITERAL:
            drawn.append(argument)
        elif kind in (_constants.IN, _constants.ANY, _constants.NOT_LITERAL):
            drawn.append(
                chance.choice(
                    _allowed(kind, tuple(argument) if isinstance(argument, list) else argument)
                )
            )
        elif kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            least, most, inner = argument
            for _ in range(chance.randint(least, min(int(most), least + 3))):
                drawn += _drawn(inner, chance)
        elif kind is _constants.SUBPATTERN:
            drawn += _drawn(argument[3], chance)
        elif kind is _constants.BRANCH:
            drawn += _drawn(chance.choice(argument[1]), chance)
        else:
            assert kind is _constants.AT, kind
    return drawn


@cache
def _allowed(kind: Any, argument: Any) -> list[int]:
    if kind is _constants.ANY:
        return PRINTABLE
    if kind is _constants.NOT_LITERAL:
        return [code for code in PRINTABLE if code != argument]
    allowed: set[int] = set()
    negated = False
    for item, value in argument:
        if item is _constants.NEGATE:
            negated = True
        elif item is _constants.LITERAL:
            allowed.add(value)
        elif item is _constants.RANGE:
            allowed.update(range(value[0], value[1] + 1))
        else:
            inverse = value in (_constants.CATEGORY_NOT_SPACE, _constants.CATEGORY_NOT_WORD)
            one = {"WORD": r"\w", "SPACE": r"\s", "DIGIT": r"\d"}[str(value).rpartition("_")[2]]
            allowed.update(
                code for code in PRINTABLE if bool(re.match(one, chr(code), re.ASCII)) != inverse
            )
    return sorted(set(PRINTABLE) - allowed if negated else allowed & set(range(128)))


@pytest.fixture(scope="module")
def book() -> RuleBook:
    return RuleBook.of(frozenset())


@pytest.fixture(scope="module")
def redactor() -> SecretRedactor:
    return SecretRedactor()


def test_the_shipped_rules_are_what_the_generator_makes_of_gitleaks() -> None:
    script = ROOT / "tests/adapters/redaction/generate_secret_rules.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0


def test_all_221_rules_with_a_regex_are_there() -> None:
    assert len({rule["id"] for rule in RULES}) == len(RULES) == 221


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["id"]))
def test_a_rule_redacts_samples_of_its_own_regex(
    rule: dict[str, Any], redactor: SecretRedactor
) -> None:
    chance = random.Random(rule["id"])
    redacted = 0
    for _ in range(rounds(40)):
        text = f"# {rule['keywords'][0]}\n{sample(rule['regex'], chance)}\n"
        data = text.encode()
        if not any(True for _ in pattern(rule["regex"]).spans(data)):
            continue  # an end or a word boundary that the sampler does not draw
        assert not redactor.are_clean([text]), text  # no probe is narrower than its rule
        redacted += redactor.redact(text) != text
    assert redacted


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.id))
def test_the_probe_of_a_shape_and_its_gate_match_samples_of_the_shape(
    shape: SecretShape, book: RuleBook
) -> None:
    chance = random.Random(shape.regex)
    samples = (sample(shape.regex, chance).encode() for _ in range(4_000))
    holding = list(islice(filter(partial(_holds_a_secret, shape), samples), rounds(20)))
    assert holding
    assert [
        data for data in holding if (shape.probe or shape.regex) not in book.matching(data)
    ] == []


def _holds_a_secret(shape: SecretShape, data: bytes) -> bool:
    return any(end > 0 for found in pattern(shape.regex).spans(data) for _, end in found[1:])


KEY = "service_api_key = '{}'"
LEFT = [
    "aws_access_key_id AKIAIOSFODNN7EXAMPLE",  # allowed as a whole
    KEY.format("aabbccdd12345678"),  # 3.5 bits a character, which is the rule's bound
    KEY.format("abcdefghijklmnopqrstuvwxyz0123"),  # holds a stop word
    KEY.format("abcdEFGHijkl/mnop+QRST"),  # no digit
    "api_version_key = 'q7T9xV2mK4pL8nR3wZ6s'",  # allowed by what stands before it
    'SRC_key = "q7T9xV2mK4pL8nR3wZ6s"',  # by one of three that are allowed
    "curl -u admin:changeme https://x.example",
]
FOUND = [
    *((KEY.format(secret), KEY.format("[redacted:generic-api-key]")) for secret in (
        "q7false9V2mK4pL8nR3", "true7T9xV2mK4pL8nR3", "aabbccd123456789", "abcdefghijklmnopqrstuvwxyA0123",
        "abcdEFGHijkl/mnop+QRST0", "abcdEFGHijkl/mnop+QRST9",
    )),
    ("curl -u admin:hunter-pass https://x.example", "curl -u [redacted:curl-auth-user] https://x.example"),
    ("curl -u 'admin:hunter-pass' https://x.example", "curl -u '[redacted:curl-auth-user]' https://x.example"),
    ("sonar_token = 'a1b2c3d4e5f6a1b2c3d4e5f6a1b2c3d4e5f6a1b2'", "sonar_token = '[redacted:sonar-api-token]'"),
    ("kind: Secret\ndata:\n  a: c2VjcmV0LXNlY3JldA==\n", "kind: Secret\ndata:\n  [redacted:kubernetes-secret-yaml]\n"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "redacted"), [*((text, text) for text in LEFT), *FOUND])
def test_what_a_rule_allows_is_left_alone_and_the_rest_goes(
    redactor: SecretRedactor, text: str, redacted: str
) -> None:
    assert redactor.redact(text) == redacted
