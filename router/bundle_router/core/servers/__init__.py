"""What tool servers send, as data: admission of definitions, pins, warnings about their text, and
the values of calls. Pure.
"""
