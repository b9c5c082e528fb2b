"""The faults that a run injects, on clients and on servers."""
