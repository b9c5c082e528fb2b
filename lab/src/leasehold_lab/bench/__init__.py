"""Measures locks side by side, in one run on one server: leasehold, the floor, and other libraries."""
