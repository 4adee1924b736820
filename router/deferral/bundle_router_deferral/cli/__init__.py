"""The verbs of `bundle-router deferral`."""
