"""Measure locks side by side, in one run on one server: leasehold, the floor that the wire sets, other libraries."""
