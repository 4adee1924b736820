"""The main job, end to end: a workflow of six steps over a real repository, as an engine would run
it.
"""
