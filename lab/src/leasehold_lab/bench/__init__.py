"""Measure locks side by side, in one run on one server: leasehold, the least that is possible, other libraries."""
