"""Pages for the people who review and edit: an ASGI application over a `RunReader`, and the same pages as files.

Rules:
1. Reading needs no JavaScript, and changes nothing. What changes something is a POST with a token of this process, from
   a page of this origin, by somebody who may.
2. Every logged string is hostile. Templates escape; the policy of every answer permits no script but our own file, no
   inline style, no frame, no connection elsewhere. Artifacts come from an address with a policy of its own.
3. An address is a permalink. The same address with `.json` behind it answers the same facts as JSON.
4. A list reads what it shows. Pages of runs and records have an end, and say how many more there are.
5. Words are the closed codes' own, each with its sentence.
"""
