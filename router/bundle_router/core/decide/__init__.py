"""Decides what a step may see: mapping, policy, ceilings, budgets, the sticky set, and the question
to a selector.
"""
