"""Pins: the reviewed definitions of a server, and whether the server still matches them. Pure.

Rules:
1. A pin is the whole original definition, its digest, and its origin: the server's id in our
   config, its transport, and its command with arguments and the names of its variables, or its
   address. The file has text and digest side by side; if they disagree, the file is refused
   (`CorruptPins`).
2. A tool that is new, changed or gone, or whose server has other instructions or another start
   command, is neither listed, nor found, nor callable: `usable` gives the one set for all three.
3. Agents see the reviewed text, never the live one. So a field that is declared volatile may differ
   without an alarm, and still can't carry a word to a model.
4. Order without meaning raises no alarm: of tools, of object keys, of `required`, `enum`, `type`
   and `anyOf` lists.
5. Before a server was contacted, its pins are used: it can be listed and searched without starting
   it.
6. A difference names the field, with invisible and look-alike characters written out.
"""
