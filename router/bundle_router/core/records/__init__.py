"""The contents of a run's files: the chain of lines, the header, decisions and calls as JSON, and
replay.
"""
