"""Turns a server's tool definitions into cards, or into refusals with a reason.

Pure, and linear in the input. `admit` does it, `admitted` has what it comes to, and `identity` the
digest.

Rules:
1. Definitions are untrusted bytes. Size, depth and number of nodes are bounded before all other
   work, so no definition can make this code run long or deep.
2. One bad tool costs one tool. Every refusal names the tool, a code of the closed list
   `RefusalCode`, and the place.
3. A name matches `[A-Za-z0-9_.-]{1,128}`. All definitions of a name that is listed twice with
   different contents are refused, because nobody could say which one a call would reach.
4. Text for a model or a reader is cleaned of invisible characters (controls, terminal sequences,
   bidirectional marks, tags, zero-width, private use): honest tools do not need them, and an escape
   would still spell them out to a model. The pin keeps the original text, and the diff shows them.
   Text that must be sent back unchanged (property names, enum, const) can't be cleaned, so a tool
   with invisible characters there is refused.
5. No reference may leave the schema, whatever its scheme: nothing is ever fetched. References
   inside it may be recursive. A reference that leads only to itself, or that multiplies beyond the
   bound, is refused.
6. A schema is not rewritten. Two things are added that change nothing and that providers demand:
   `type: object` at the root, and empty `properties` there. Odd but valid parts (`default: null` on
   a string, an empty enum) stay.
7. The digest covers the whole original definition, with unknown fields, and the server's
   instructions. It excludes what the operator declared volatile, and order where order has no
   meaning.
8. A server's hints about itself (annotations) can only add effects, never remove one.
"""
