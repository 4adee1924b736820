"""The router's own tools: how an agent finds, calls and reads what does not stand in its array. Pure.

Rules:
1. Their definitions are constants: the same bytes for every catalog, run and step. What changes is in the guidance.
2. They look only inside the current decision. What is beyond it is refused by name and reason, and recorded as a gap;
   search never finds it.
3. Search gives signatures, not schemas, in a bounded number of characters; a schema is given on request, or with the
   error that wrong arguments get.
4. A name is understood as it was meant where only one tool can be meant: canonical, exposed, without its prefix, or in
   another spelling of case and separators. Where several could be, nothing is called.
5. What strangers wrote is shown as data: one line, shortened, marked.
6. An answer is a pure function of the catalog, the placement, the ranking and the question.
"""
