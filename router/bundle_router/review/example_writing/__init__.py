"""Examples that a model writes for bundles: what it is asked, what of its answer is taken, and the
text of `bundles.toml` with it. Asking is in `workbench.example_writer`.
"""
