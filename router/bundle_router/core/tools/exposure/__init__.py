"""What the agent sees now: which tools stand in its array, which wait behind search, and the words that say so. Pure.

Rules:
1. A surface is a view of a decision: the same catalog, decision, activation and ranking give the same bytes.
2. An exposed name is at most 64 characters of `[A-Za-z0-9_-]` and leads back to exactly one tool. `server__tool` stands
   as it is where it can be read back; every other name ends in a digest of the canonical one, and no plain name looks
   like that. One trusted server may do without its name before those of its tools that can't be mistaken. So no tool
   can be named into another's place, and neither the order in which servers are heard of nor a server that comes later
   changes a name.
3. A permitted tool is in the place that its bundle's mode wants (`core.models.MODES`). `direct`: its
   definition stands in the array. `deferred`: it is found by search, and joins the array when it was asked for. `meta`:
   it is only ever called by name through `call_tool`. `code`: programs alone call it.
   All of them may be called: what a step may do is the decision's, and does not depend on the place.
4. Text that a stranger wrote never stands in the array: an untrusted server's tools are `meta`, whatever the bundle is.
5. A bundle with more definitions than its `max_tokens` shows its companions and what its skill names, then what search
   ranks best for the goal, as far as they fit; the rest is deferred. What the skill of a deferred bundle names is
   direct. The step's `max_tokens` bounds everything, asked for or not.
   What a shortlist offers is deferred or `meta`, whatever its bundle's mode is, and so is all that its skill names.
6. The array is in the order in which bundles and tools first came into the run, so that a set that grows appends.
7. The guidance holds operator's words and names of tools that an operator listed, and fits a budget by saying less of
   each bundle, never by leaving out how many there are. It does not change when a tool is activated.
"""
