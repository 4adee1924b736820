"""Tasks of people between runs: lint, explain, evaluate, learn, import, vendor.

Pure, like the core.
"""
