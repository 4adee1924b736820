"""What people do between runs: lint, explain, evaluate, learn, import, vendor. Pure, as the core is."""
