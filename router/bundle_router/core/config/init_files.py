"""The files that `bundle-router init` writes: a config that changes nothing yet, and shows what
could be changed.

Rules:
1. Entries that merge with the shipped config (servers, bundles, router) are written as comments, so
   that defaults of later versions still apply; uncommenting an entry takes it over. Of router.toml,
   whose sections merge key by key, the headers stand: uncommenting one key changes it. Files that
   replace the shipped ones whole (routes, policy) are written in full, since an empty one would
   mean "nothing".
2. The texts are the shipped files, so the two can't differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bundle_router.core.config.written_forms import schema_texts

_OVERLAID: Final[Mapping[str, str]] = {
    "servers.toml": (
        """\
# Your servers, over the ones that come with Bundle Router.
# An entry here replaces the shipped entry of the same name whole; every other shipped entry stays.
# What follows are the shipped ones, commented out: lines that start with '#' and no space are
# theirs.
"""
    ),
    "bundles.toml": (
        """\
# Your bundles, over the ones that come with Bundle Router.
# An entry here replaces the shipped entry of the same id whole; every other shipped entry stays.
# What follows are the shipped ones, commented out: lines that start with '#' and no space are
# theirs.
"""
    ),
    "router.toml": (
        """\
# Your settings, over the ones that come with Bundle Router, key by key.
# What follows are the shipped ones, commented out: to change one, take the '#' from it.
"""
    ),
}
_REPLACING: Final[Mapping[str, str]] = {
    "routes.toml": (
        "# Your routes. This file replaces the shipped one whole; as written it is the same.\n"
    ),
    "policy.toml": (
        "# Your policy. This file replaces the shipped one whole; as written it is the same.\n"
    ),
}
_BUNDLES_README: Final = """\
# bundles/

Reviewed content that goes with the bundles in `config/bundles.toml`: skills
(`skill = "repo/SKILL.md"` names a file here), pins of tool definitions, vendored text. It is data:
Bundle Router runs no code from this folder unless the program that opens it asks for that.

Bundles are declared in `config/`, since a declaration is a decision: short, and read in a review.
What lies here is what it rests on: mostly written by commands, and changed when a server changes.
"""


_GITIGNORE: Final = """\
# What runs of Bundle Router leave: records of what agents asked and saw.
/runs/
"""


def ignores_runs(gitignore: str) -> bool:
    """Return whether some line of a .gitignore excludes the runs folder."""
    return any(
        line.strip().strip("/").removesuffix("/*") in ("runs", "**/runs")
        for line in gitignore.splitlines()
    )


def scaffold_texts(shipped: Mapping[str, str]) -> dict[str, str]:
    """Return the texts by path, relative to the project's root.

    `shipped` has the shipped config files by name.
    """
    texts = {
        f"config/{name}": _overlay_head(shipped[name], head, keep_headers=name == "router.toml")
        for name, head in _OVERLAID.items()
    }
    texts |= {
        f"config/{name}": _insert_head(shipped[name], head) for name, head in _REPLACING.items()
    }
    texts |= {f"config/{path}": text for path, text in schema_texts().items()}
    texts["bundles/README.md"] = _BUNDLES_README
    texts[".gitignore"] = _GITIGNORE
    return dict(sorted(texts.items()))


def _insert_head(text: str, head: str) -> str:
    """Return the text with `head` after its first line, which names the schema."""
    directive, _, rest = text.partition("\n")
    return f"{directive}\n{head}#\n{rest}"


def _overlay_head(text: str, head: str, *, keep_headers: bool) -> str:
    directive, _, rest = text.partition("\n")
    lines = [
        line if keep_headers and line.startswith("[") else _comment_out(line)
        for line in rest.split("\n")
    ]
    return f"{directive}\n{head}\n" + "\n".join(lines)


def _comment_out(line: str) -> str:
    """Comment out a line (`  "x",` → ` #"x",`) after its indentation: only these comments have no
    space.
    """
    code = line.lstrip()
    return line if not code or code.startswith("#") else f"{line[: len(line) - len(code)]}#{code}"
