"""Rules and values for servers' tools: admission, pins, exposure, calls, shaping of results.

No effects.
"""
