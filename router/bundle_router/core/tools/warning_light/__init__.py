"""A warning light for poisoned definitions: text that speaks to the model where it should describe a tool. Pure.

Rules:
1. It warns and explains; it never decides. Pins, policy and confinement are the boundaries. A quiet light proves
   nothing: what is written well enough passes.
2. Every text of a definition is read: names, descriptions, enum values, defaults, titles, annotations, unknown fields.
3. A finding names its rule, the place, and the words it saw, with invisible characters written out.
4. Findings add up. Some are enough alone (`ALONE`); others are ordinary in honest tools and only count together:
   one honest description in eight shouts MUST, and tools do send e-mail.
5. Speaking of an attack is not one: a phrase in quotation marks where the text explains or detects does not count.
6. Tools of one server may speak of each other. Speaking of another server's tool, or wearing its name and words, is a
   finding; equal short names alone are not.

Theory of operation: `hidden` gathers and folds the texts and looks at characters and encodings, `wording` (with
the words of `vocabulary`) at sentences, `neighbours` at other servers' tools; `inspect` adds up.
"""

from bundle_router.core.tools.warning_light.inspect import ALONE, RULES, LightFinding, LightVerdict, inspect
from bundle_router.core.tools.warning_light.neighbours import Neighbour, Neighbourhood

__all__ = ["ALONE", "RULES", "LightFinding", "LightVerdict", "Neighbour", "Neighbourhood", "inspect"]
