"""From a server's tool definitions to cards, or to refusals with a reason. Pure, and linear in what it is given.

Rules:
1. Definitions are untrusted bytes. Size, depth and number of nodes are bounded before anything else looks at them, so
   nothing here can be made to run long or deep.
2. One bad tool costs one tool. Every refusal names the tool, a code of the closed list `REFUSAL_CODES`, and the place.
3. A name matches `[A-Za-z0-9_.-]{1,128}`. A name that is listed twice with different contents is refused both times:
   nobody could say which one a call would reach.
4. Text that a model or a reader sees loses its invisible characters (controls, terminal sequences, bidirectional
   marks, tags, zero-width, private use): what hides in them is worth nothing to an honest tool, and an escape would
   still spell it out to a model. The pin keeps the text as it came, and the diff shows them. What has to be sent back
   as it is (property names, enum, const) can't be cleaned, so a tool that hides something there is refused.
5. No reference leaves the schema, whatever its scheme: nothing is ever fetched. References inside it may be recursive;
   one that leads only to itself, or that multiplies beyond the bound, is refused.
6. A schema is not rewritten. Two things are added that mean the same and that providers insist on: `type: object` at
   the root, and empty `properties` there. What is odd but valid (`default: null` on a string, an empty enum) stays.
7. The digest covers the whole definition as it came, known fields and unknown ones, and the server's instructions:
   minus what the operator declared volatile, and minus order where order means nothing.
8. A server's hints about itself (annotations) can only add effects, never take one away.
"""

from bundle_router.core.tools.admission.admit import admit
from bundle_router.core.tools.admission.admitted import (
    REFUSAL_CODES,
    Admitted,
    AdmittedTool,
    DefinitionLimits,
    RefusedTool,
)
from bundle_router.core.tools.admission.identity import VolatileError, identity, volatile_paths

__all__ = [
    "REFUSAL_CODES",
    "Admitted",
    "AdmittedTool",
    "DefinitionLimits",
    "RefusedTool",
    "VolatileError",
    "admit",
    "identity",
    "volatile_paths",
]
