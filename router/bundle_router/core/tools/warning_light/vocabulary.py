"""The verbs, objects, places and phrases that `sentence_rules` combines. They are data (`vocabulary.toml`)."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import Any, Final

_VOCABULARY: Final[dict[str, Any]] = tomllib.loads(
    files("bundle_router.core.tools.warning_light").joinpath("vocabulary.toml").read_text(encoding="utf-8")
)


def _any_of_words(name: str) -> re.Pattern[str]:
    return re.compile(r"(?<![a-z])(?:" + "|".join(_VOCABULARY["words"][name]) + r")(?![a-z])")


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("".join(_VOCABULARY["patterns"][name].splitlines()))


DROP: Final = _any_of_words("drop")
BEFORE: Final = _any_of_words("before")
RULES: Final = _any_of_words("rules")
BARE_DROP: Final = _pattern("bare_drop")
ELSEWHERE: Final = _pattern("elsewhere")
BECOME: Final = _pattern("become")
SHOW: Final = _any_of_words("show")
PROMPT: Final = _any_of_words("prompt")
SEND: Final = _any_of_words("send")
STEAL: Final = _any_of_words("steal")
SECRET: Final = _any_of_words("secret")
FILE_SECRET: Final = _pattern("file_secret")
OUTSIDE: Final = _any_of_words("outside")
HOME: Final = _pattern("home")
CONTENTS: Final = _pattern("contents")
FETCH: Final = _any_of_words("fetch")
CARRY: Final = _pattern("carry")
HIDE: Final = _pattern("hide")
QUIETLY: Final = _pattern("quietly")
PROTECTS: Final = _pattern("protects")
BESIDES: Final = _pattern("besides")
ACTS_OUTSIDE: Final = _any_of_words("acts_outside")
FAR: Final = _any_of_words("far")
ORDER: Final = _pattern("order")
EVERYTHING: Final = _pattern("everything")
EVERY_REQUEST: Final = _pattern("every_request")
WHENEVER: Final = _any_of_words("whenever")
IS_CALLED: Final = _any_of_words("is_called")
ALTERS: Final = _any_of_words("alters")
ARGUMENTS: Final = _any_of_words("arguments")
ANOTHER: Final = _pattern("another")
MUST: Final = _pattern("must")
MENTION: Final = _pattern("mention")
INDIRECT: Final = _pattern("indirect")
LABEL: Final = _pattern("label")
LINK: Final = _pattern("link")
QUOTED: Final = _pattern("quoted")
