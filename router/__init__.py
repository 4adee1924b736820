"""Bundle Router: which bundles of tools a workflow step may see, and why."""
