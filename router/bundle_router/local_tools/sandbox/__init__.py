"""Runs one program confined: its own root and namespaces, Landlock, seccomp, resource bounds, and
an end for all its processes.

`launcher` is a process of its own (`python -I -S`), because what it does to itself can't be undone
and must not happen in a process with threads. It and the modules that it imports use only the
standard library.

| module | what |
|---|---|
| plan, tree | values: the plan of a sandbox, and the root folder as a list of mounts |
| bubblewrap, namespaces | two ways to make that root and the namespaces |
| launcher, supervisor, target | entering them, ending everything, becoming the program |
| landlock, seccomp, bounds | files, system calls, and bounds on the whole |
| linux | system calls that Python has no function for |
"""
