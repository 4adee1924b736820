"""The warning light for poisoned definitions: text that instructs the model instead of describing a
tool. Pure.

Rules:
1. It warns and explains, but never decides. Pins, policy and confinement are the boundaries. No
   warning proves nothing: a carefully written attack passes.
2. Every text of a definition is read: names, descriptions, enum values, defaults, titles,
   annotations, unknown fields.
3. A finding names its rule, the place, and the words, with invisible characters written out.
4. Findings add up. Some suffice alone (`ALONE`); others are common in honest tools and only count
   together: one honest description in eight shouts MUST, and some tools do send e-mail.
5. Mentioning an attack is not one: a phrase in quotation marks does not count if the text explains
   or detects it.
6. Tools of one server may mention each other. Mentioning another server's tool, or copying its name
   and words, is a finding; equal short names alone are not.

`hidden` collects and folds the texts and examines characters and encodings, `sentence_rules` (with
`vocabulary`) sentences, `neighbours` other servers' tools; `inspect` adds up.
"""

from bundle_router.core.servers.warning_light.inspect import (
    ALONE,
    RULES,
    LightFinding,
    LightVerdict,
    inspect,
)
from bundle_router.core.servers.warning_light.neighbours import Neighbour, Neighbourhood

__all__ = [
    "ALONE",
    "RULES",
    "LightFinding",
    "LightVerdict",
    "Neighbour",
    "Neighbourhood",
    "inspect",
]
