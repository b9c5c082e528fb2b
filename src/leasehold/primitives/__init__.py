"""Primitives: one file is one primitive, its algorithm and its blocking face side by side."""
