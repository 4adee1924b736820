"""Runs one program confined: its own root and namespaces, Landlock, seccomp, bounds, and an end for all it started.

`launcher` is started as a process of its own (`python -I -S`), because what it does to itself can't be undone and
must not happen in a process with threads. It and the modules it imports use the standard library only.

| module | what |
|---|---|
| plan, tree | what is to hold, as values: the plan, and the root folder as a list of mounts |
| bubblewrap, namespaces | two ways to make that root and the namespaces |
| launcher, supervisor, target | entering them, ending everything, becoming the program |
| landlock, seccomp, bounds | files, system calls, and bounds on the whole |
| linux | the calls Python has no name for |
"""
