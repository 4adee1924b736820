"""The router's own tools, with which an agent finds, calls and reads what is not in its array.

Pure.

Rules:
1. Their definitions are constants: the same bytes for every catalog, run and step. Only the
   guidance varies.
2. They see only the current decision. A tool beyond it is refused with its reason, and recorded as
   a gap; search never finds it.
3. Search returns signatures, not schemas, in a bounded number of characters. A schema is returned
   on request, or with the error for wrong arguments.
4. A name is resolved if only one tool can be meant: canonical, exposed, without its prefix, or with
   other case and separators. If several match, or a more trusted server has one of that name,
   nothing is called.
5. Untrusted text is shown as data: on one line, shortened, marked.
6. An answer is a pure function of the catalog, the placement, the ranking and the question.
"""
