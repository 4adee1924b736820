"""The agent's view: which tools are in its array, which are behind search, and the guidance about
them. Pure.

Rules:
1. A surface is a view of a decision: the same catalog, decision, activation and ranking give the
   same bytes.
2. An exposed name is at most 64 characters of `[A-Za-z0-9_-]` and identifies exactly one tool.
   `server__tool` is used unchanged if it can be read back; every other name ends in a digest of the
   canonical one, which no plain name looks like. One trusted server may omit its prefix for those
   of its tools that can't be mistaken. So no tool can take another's name, and names depend neither
   on the order in which servers are contacted nor on servers added later.
3. A bundle's mode decides the place of its permitted tools (`core.values.MODES`). `direct`: the
   definition is in the array. `deferred`: the tool is found by search, and joins the array when it
   is asked for. `meta`: it is only called by name through `call_tool`. `code`: only programs call
   it. All of them are callable: permission comes from the decision and does not depend on the
   place.
4. Untrusted text is never in the array: an untrusted server's tools are `meta`, whatever the
   bundle's mode.
5. A bundle with more definitions than its `max_tokens` shows its companions and the tools that its
   skill names, then those that search ranks best for the goal, as far as they fit; the rest is
   deferred. The tools that a deferred bundle's skill names are direct. The step's `max_tokens`
   bounds everything, also tools that were asked for. A shortlist's tools are deferred or `meta`,
   whatever the bundle's mode, those that its skill names included.
6. The array is in the order in which bundles and tools first entered the run, so that a growing set
   appends.
7. The guidance consists of operators' words and of tool names that an operator listed. It fits its
   budget by saying less of each bundle, never by hiding how many there are. It does not change when
   a tool is activated.
"""
