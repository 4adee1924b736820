"""What a step may see, decided: mapping, policy, ceilings, budgets, the sticky set, and the question to a model."""
