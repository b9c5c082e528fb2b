"""The bug museum: known defects of distributed locks, as scenarios that any lock can be put through."""
