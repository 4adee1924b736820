"""Runs one program confined, on Linux: by bubblewrap (its own root folder and namespaces), Landlock
and seccomp; without bubblewrap by Landlock and seccomp; without one of these, too, not at all. Its
resources are bounded, and all its processes are ended.

`launcher` is a process of its own (`python -I -S`), because what it does to itself can't be undone
and must not happen in a process with threads. It and the modules that it imports use only the
standard library.

| module | what |
|---|---|
| plan, tree | values: the plan of a sandbox, and the root folder as a list of mounts |
| bubblewrap | a plan as the arguments of bubblewrap |
| launcher, supervisor, target | starting, ending everything, becoming the program |
| landlock, seccomp, bounds | files, system calls, and bounds on the whole |
| linux | system calls that Python has no function for |
"""
