"""Pins: what a person has reviewed of a server, and whether the server still is that. Pure.

Rules:
1. A pin is the whole definition as it came, its digest, and where it came from: the server's id in our config, its
   transport, and its command with arguments and the names of its variables, or its address. The file keeps text and
   digest side by side; where they disagree, the file is refused (`CorruptPins`).
2. A tool that is new, changed or gone, or whose server changed its instructions or is started in another way, is
   neither listed, nor found, nor callable: `usable` gives the one set that all three go by.
3. What agents are shown is the reviewed text, never the live one. So a field that was declared volatile may differ
   without an alarm, and still can't carry a word to a model.
4. Order that means nothing raises no alarm: of tools, of object keys, of `required`, `enum`, `type` and `anyOf` lists.
5. Before a server was contacted its pins are what is known of it: it can be listed and searched without starting it.
6. A difference names the field and shows what a reader can't see: invisible characters and letters that only look like
   Latin ones are written out.
"""
