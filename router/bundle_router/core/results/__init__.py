"""Results of calls: shaping for a model, artifacts and their handles, and results that may be used
again. Pure.
"""
