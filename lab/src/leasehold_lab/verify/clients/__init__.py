"""The clients of a run: one process each."""
