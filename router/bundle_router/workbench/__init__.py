"""What people do with a project: edit its config, review and pin servers, log in to them, try
models, and read its runs. It stands on the router, which imports nothing of it.
"""
