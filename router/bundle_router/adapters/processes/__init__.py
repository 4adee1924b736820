"""How programs are started, bounded and ended, wherever the router does so.

`starting` is the router's side: a command, its output as it arrives, its end. `family` is for the
small processes of ours that stand between the router and a program whose children may leave its
process group: the supervisor of stdio servers (`supervision`) and the launcher of
sandboxed programs (`adapters.sandbox`), which are started by `starting` themselves.
"""
