"""Primitives: one file is one primitive, its algorithm and its sync facade side by side."""
