"""Typed wrappers of tool servers, written by `bundle-router vendor` from their pins."""
