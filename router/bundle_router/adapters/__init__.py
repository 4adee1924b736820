"""One effect and at most one third-party library per module. Adapters never import each other."""
