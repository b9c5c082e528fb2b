"""Integrations with frameworks: one file or folder each, which imports its framework and nothing else."""
