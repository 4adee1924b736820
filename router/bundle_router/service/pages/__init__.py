"""Pages for reviewers and editors: an ASGI application over a `RunReader`, and the same pages as
files.

Rules:
1. Reading needs no JavaScript, and changes nothing. A change is a POST with a token of this
   process, from a page of this origin, by a caller with permission.
2. Every logged string is hostile. Templates escape. The content security policy of every answer
   permits no script but our own file, no inline style, no frame, and no foreign connection.
   Artifacts have their own address and policy.
3. An address is a permalink. With `.json` appended it answers the same facts as JSON.
4. A list reads only the rows it shows. Long lists of runs and records are cut, and say how many
   more there are.
5. The pages use the closed codes as words, each with an explanation.
"""
