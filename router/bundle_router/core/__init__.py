"""The pure core: the standard library without effects, and pydantic.

No async, clock, randomness, disk or network.
"""
